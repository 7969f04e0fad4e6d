// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench/result"
)

// latencyRounds is how often each row is measured, in turns, of one second each.
const latencyRounds = 20

// latencyTests are the tests of `weir bench` by which a pod's way to a Service is compared with
// that to the pod behind it.
var latencyTests = map[string]string{
	"tcp-rr": "a round trip of TCP", "crr": "connect, request, answer, close", "udp-rr": "a round trip of UDP",
}

// latency has `weir bench` measure in a lab with Weir, and notes how long the median operation of
// a round takes to a Service, as a multiple of what it takes to a pod: the median over the rounds.
func (c cluster) latency(ctx context.Context, figures map[string][]float64) error {
	defer labDown()
	if err := c.labUp(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-clouds-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file, weir := filepath.Join(dir, "bench.json"), filepath.Join("bin", "weir")
	if weir, err = filepath.Abs(weir); err != nil {
		return err
	}
	var rows []string
	for test := range latencyTests {
		rows = append(rows, "pod2pod/"+test, "pod2svc/"+test)
	}
	if err := labProgram(ctx, "--name", labName, "exec", "client1", "--", weir, "bench", "run", "--client-node", "worker1", "--server-node", "worker2", "--duration", "1s",
		"--warm-up", "100ms", "--rounds", fmt.Sprint(latencyRounds), "--rows", strings.Join(rows, ","), "--output", file).Run(); err != nil {
		return fmt.Errorf("weir bench in a lab with %s: %w", c.on, err)
	}
	f, err := result.Read(file)
	if err != nil {
		return err
	}
	for test, what := range latencyTests {
		ratio, err := toPod(f.Row("pod2svc/"+test), f.Row("pod2pod/"+test))
		if err != nil {
			return fmt.Errorf("%s, %s: %w", c.on, test, err)
		}
		figures[c.on+": pod to Service against pod to pod, "+what+": ratio of medians"] = []float64{ratio}
	}
	return nil
}

// toPod is the median of the ratios of two rows' median operations, round by round. Rounds in which
// one of the two failed do not count.
func toPod(svc, pod *result.Row) (float64, error) {
	if svc == nil || pod == nil {
		return 0, fmt.Errorf("not measured")
	}
	of := map[int]float64{}
	for _, r := range pod.Rounds {
		if r.Error == "" && r.Latency != nil {
			of[r.Round] = r.Latency.P50
		}
	}
	var ratios []float64
	for _, r := range svc.Rounds {
		if was := of[r.Round]; r.Error == "" && r.Latency != nil && was > 0 {
			ratios = append(ratios, r.Latency.P50/was)
		}
	}
	if len(ratios) < latencyRounds/2 {
		return 0, fmt.Errorf("%d of %d rounds have a figure", len(ratios), latencyRounds)
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}
