// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/lab"
)

// clientCPU is where the timed client and nginx run.
const clientCPU = 0

// time times the connections of all modes of a group of labs, in turns.
func (d *demo) time(ctx context.Context, stages []*stage) error {
	var modes []*mode
	for _, s := range stages {
		modes = append(modes, s.modes...)
	}
	each := d.connections / d.rounds
	d.step("%d connections in each mode, one after the other, in %d rounds in which the modes take turns", each*d.rounds, d.rounds)
	d.say("client and nginx share CPU %d at real-time priority, so that a connection's time is its own work and no wait for another CPU", clientCPU)
	for _, s := range stages {
		if err := s.prepare(ctx); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "weir-demo-")
	if err != nil {
		return fmt.Errorf("making a folder for raw numbers: %w", err)
	}
	defer os.RemoveAll(dir)
	var cases []bench.Case
	for _, m := range modes {
		runs := 0
		cases = append(cases, bench.Case{Row: "client → NodePort → nginx", Configuration: m.name, Run: func(ctx context.Context) (bench.Run, error) {
			runs++
			return m.timed(ctx, each, filepath.Join(dir, fmt.Sprintf("%s-%d", m.name, runs)))
		}})
	}
	rounds := bench.Rounds{Count: d.rounds, Others: d.others, Fill: d.rounds, Extra: d.rounds / 2, Retry: 1, Quiet: 3 * time.Second,
		Say: func(round int, c bench.Case, r bench.Run, verdict string) {
			if verdict != "kept" {
				verdict = fmt.Sprintf("disturbed: something else kept %.1f CPUs busy", r.Others)
			} else {
				verdict = ""
			}
			d.say("round %2d  %-20s  mean %6.1f µs   p50 %6.1f   p99 %6.1f   %s", round, c.Configuration, r.Times.Mean, r.Times.P50, r.Times.P99, verdict)
		}}
	outcomes, err := rounds.Interleave(ctx, cases)
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		modes[i].rounds = o
		for n, r := range o.Kept {
			if err := modes[i].read(r.Raw); err != nil {
				return fmt.Errorf("round %d: %w", n+1, err)
			}
		}
	}
	return nil
}

// prepare binds and raises nginx, and says that clients are raised from now on.
func (s *stage) prepare(ctx context.Context) error {
	pids, err := s.nginx.Processes(ctx)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := errors.Join(lab.Bind(pid, clientCPU), lab.Raise(pid)); err != nil {
			return err
		}
	}
	s.lab.RealTime = true
	return nil
}

// timed is one run: the mode is entered, and forgotten connections of the last one do not count.
func (m *mode) timed(ctx context.Context, count int, raw string) (bench.Run, error) {
	s := m.stage
	if s.weir() {
		want := lab.Tunnel
		if m.name == "weir-dsr" {
			want = lab.DSR
		}
		if err := s.lab.SetMode(ctx, want); err != nil {
			return bench.Run{}, err
		}
		if _, err := lab.AwaitMode(ctx, s.client1, door, want); err != nil {
			return bench.Run{}, err
		}
	} else {
		for _, node := range []string{"cp", "worker1"} {
			if _, err := s.lab.Host(node, lab.ControlPlane).Bench(ctx, "flush-conntrack"); err != nil {
				return bench.Run{}, err
			}
		}
		if _, err := lab.PacketsThrough(ctx, s.client1, door, 300); err != nil {
			return bench.Run{}, err
		}
	}
	r, err := s.client1.Measure(ctx, "requests", door.String(), "--count", strconv.Itoa(count), "--cpu", strconv.Itoa(clientCPU),
		"--ports", "10000-49999", "--reuse-time-wait", "--raw", raw)
	// Client and nginx together keep one CPU busy; the client cannot tell nginx' time from others'.
	r.Others = max(0, r.Busy/r.Elapsed-1)
	r.Raw = raw
	return r, err
}

func (m *mode) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading raw numbers: %w", err)
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return fmt.Errorf("reading raw numbers: %w", err)
	}
	for _, rec := range records {
		v, err := strconv.ParseFloat(rec[0], 64)
		if err != nil {
			return fmt.Errorf("reading raw numbers: %w", err)
		}
		m.raw = append(m.raw, v)
	}
	return nil
}
