// SPDX-License-Identifier: Apache-2.0

// Command demo is the hands-on walk-through of docs/guides/demo.md: nginx behind a node port,
// clients that keep their addresses, a policy that refuses one of them, 10,000 connections timed in
// tunnel and in DSR mode and with kube-proxy, in labs of the same shape. It prints what it does and
// sees, writes out/demo.json and the raw numbers, and removes the labs that it started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/bench"
)

type options struct {
	bin, out           string
	modes              string
	connections        int
	rounds             int
	together, oneByOne bool
	others             float64
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder with weir-lab, weir-bench and Weir's programs")
	flag.StringVar(&o.out, "out", "out", "folder for demo.json and the raw numbers")
	flag.StringVar(&o.modes, "modes", "weir-tunnel,weir-dsr,kube-proxy-iptables,kube-proxy-nftables", "what to show")
	flag.IntVar(&o.connections, "connections", 10000, "connections to time in each mode")
	flag.IntVar(&o.rounds, "rounds", 20, "rounds in which the modes take turns")
	flag.BoolVar(&o.together, "together", false, "keep all labs up at once, whatever the memory")
	flag.BoolVar(&o.oneByOne, "one-by-one", false, "one lab after the other, whatever the memory")
	flag.Float64Var(&o.others, "others", 0.5, "CPUs that other work may keep busy in a round that counts")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	started := time.Now()
	d := &demo{options: o, started: started}
	err := d.run(ctx)
	d.steps = append(d.steps, took{"Removing what is left", time.Now()})
	err = errors.Join(err, d.removeLabs())
	d.tellTimes()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted; the labs are removed")
		}
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		stop()
		os.Exit(1)
	}
	fmt.Printf("demo: everything was as it should be (%.0f s); results in %s\n", time.Since(started).Seconds(), filepath.Join(o.out, "demo.json"))
}

// demo is one run.
type demo struct {
	options
	started time.Time
	steps   []took
	stages  []*stage
}

// took is a step with when it began.
type took struct {
	what  string
	began time.Time
}

// memoryForAll is what the labs of all modes need beside each other, in KiB.
const memoryForAll = 9 << 20

func (d *demo) run(ctx context.Context) error {
	modes, err := d.selected()
	if err != nil {
		return err
	}
	if d.rounds < 1 || d.connections < d.rounds {
		return fmt.Errorf("%d connections in %d rounds: want at least one a round", d.connections, d.rounds)
	}
	groups, err := d.groups(modes)
	if err != nil {
		return err
	}
	var all []*mode
	for _, g := range groups {
		for _, s := range g {
			d.stages = append(d.stages, s)
			if err := d.walk(ctx, s); err != nil {
				return err
			}
			all = append(all, s.modes...)
		}
		if err := d.time(ctx, g); err != nil {
			return err
		}
		if len(groups) > 1 {
			if err := d.removeLabs(); err != nil {
				return err
			}
		}
	}
	return d.report(all)
}

func (d *demo) selected() ([]string, error) {
	known := []string{"weir-tunnel", "weir-dsr", "kube-proxy-iptables", "kube-proxy-nftables"}
	var modes []string
	for m := range strings.SplitSeq(d.modes, ",") {
		if !slices.Contains(known, m) {
			return nil, fmt.Errorf("mode %q: want some of %s", m, strings.Join(known, ","))
		}
		modes = append(modes, m)
	}
	return modes, nil
}

// groups are the labs that are up at the same time.
func (d *demo) groups(modes []string) ([][]*stage, error) {
	var stages []*stage
	for _, m := range modes {
		proxy, lab := m, "demo-"+strings.TrimPrefix(m, "kube-proxy-")
		if strings.HasPrefix(m, "weir-") {
			proxy, lab = "weir", "demo-weir"
		}
		if n := len(stages); n > 0 && stages[n-1].lab.Proxy == proxy {
			stages[n-1].add(m)
			continue
		}
		s, err := newStage(lab, proxy, d.bin)
		if err != nil {
			return nil, err
		}
		s.add(m)
		stages = append(stages, s)
	}
	free, err := bench.AvailableMemory()
	if err != nil {
		return nil, err
	}
	if d.together || (!d.oneByOne && free >= memoryForAll) {
		return [][]*stage{stages}, nil
	}
	d.say("%d MiB of memory are free: one lab after the other, so that the modes cannot take turns", free>>10)
	var groups [][]*stage
	for _, s := range stages {
		groups = append(groups, []*stage{s})
	}
	return groups, nil
}

func (d *demo) removeLabs() error {
	var errs []error
	for _, s := range d.stages {
		errs = append(errs, s.lab.Down())
	}
	d.stages = nil
	return errors.Join(errs...)
}

// step begins a step of the walk-through, say tells what is seen in it.
func (d *demo) step(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	d.steps = append(d.steps, took{what, time.Now()})
	fmt.Printf("\n[%5.1fs] %d. %s\n", time.Since(d.started).Seconds(), len(d.steps), what)
}

// tellTimes lists the steps with the seconds that each took.
func (d *demo) tellTimes() {
	fmt.Println("\nSeconds of each step:")
	for i, s := range d.steps {
		end := time.Now()
		if i+1 < len(d.steps) {
			end = d.steps[i+1].began
		}
		fmt.Printf("%8.1f  %s\n", end.Sub(s.began).Seconds(), s.what)
	}
}

func (d *demo) say(format string, args ...any) { fmt.Printf("         "+format+"\n", args...) }
