// SPDX-License-Identifier: Apache-2.0

// Command lab compares Weir with kube-proxy and with no data plane at all in labs of the same shape
// that are up at the same time: latency of new connections, throughput of a TCP stream, UDP round
// trips. Rounds take turns; the result is the median of the rounds. It writes out/bench.json and
// out/bench-targets.json, and removes the labs that it started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/bench"
)

type options struct {
	bin, out       string
	configurations string
	rows           string
	rounds, extra  int
	connections    int
	streamTime     time.Duration
	others         float64
	quick          bool
	sizes          string
	pods           string
	backends       int
	apacheCount    int
	peerLimit      int
	keep, realTime bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder with weir-lab, weir-bench and Weir's programs")
	flag.StringVar(&o.out, "out", "out", "folder for bench.json and bench-targets.json")
	flag.StringVar(&o.configurations, "configurations", strings.Join(configurations, ","), "what to compare")
	flag.StringVar(&o.rows, "rows", "", "only rows whose name holds this text")
	flag.IntVar(&o.rounds, "rounds", 21, "rounds that count")
	flag.IntVar(&o.extra, "extra", 9, "further rounds at most, for those that other work disturbed")
	flag.IntVar(&o.connections, "connections", 1000, "connections of a round; five times as many UDP round trips")
	flag.DurationVar(&o.streamTime, "stream-time", time.Second, "length of a TCP stream")
	flag.Float64Var(&o.others, "others", 0.25, "CPUs that other work may keep busy in a round that counts, beyond what the idle labs do")
	flag.StringVar(&o.sizes, "sizes", "", "measure the Service rows with so many other Services, such as 10,1000,10000")
	flag.IntVar(&o.peerLimit, "peer-limit", 10000, "sizes above this are measured with Weir alone: kube-proxy takes minutes to program them")
	flag.StringVar(&o.pods, "pods", "", "measure by ApacheBench while so many pods are behind Services, two behind each, such as 10,1000,16000")
	flag.IntVar(&o.apacheCount, "apache-count", 50000, "requests of ApacheBench in a round")
	flag.IntVar(&o.backends, "backends", 0, "measure a Service of so many backends alongside one with one")
	flag.BoolVar(&o.quick, "quick", false, "five short rounds: a first look, not a result")
	flag.BoolVar(&o.realTime, "real-time", true, "run clients and servers at real-time priority")
	flag.BoolVar(&o.keep, "keep", false, "use labs that are up, and leave them up")
	flag.Parse()
	if o.quick {
		o.rounds, o.extra, o.connections, o.streamTime, o.apacheCount = 5, 2, 500, 500*time.Millisecond, o.apacheCount/10
	}

	growth, err := o.growth()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	started := time.Now()
	r := &runner{options: o, growth: growth}
	err = r.run(ctx)
	err = errors.Join(err, r.close())
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted; the labs are removed")
		}
		fmt.Fprintln(os.Stderr, "bench: FAILED:", err)
		stop()
		os.Exit(1)
	}
	fmt.Printf("bench: done in %.0f s; results in %s\n", time.Since(started).Seconds(), r.file())
}

// growth are the numbers of other Services that are gone through.
func (o options) growth() ([]int, error) {
	special := 0
	for _, is := range []bool{o.sizes != "", o.pods != "", o.backends != 0} {
		if is {
			special++
		}
	}
	if special > 1 {
		return nil, errors.New("-sizes, -pods and -backends are runs of their own")
	}
	if o.backends < 0 || o.backends > maxBackends {
		return nil, fmt.Errorf("-backends: want up to %d", maxBackends)
	}
	if o.pods == "" {
		sizes, err := parseSizes(o.sizes)
		if err != nil {
			return nil, fmt.Errorf("-sizes: %w", err)
		}
		return sizes, nil
	}
	pods, err := parseSizes(o.pods)
	if err != nil {
		return nil, fmt.Errorf("-pods: %w", err)
	}
	for i, n := range pods {
		if n%podsPerService != 0 {
			return nil, fmt.Errorf("-pods: %d is not a multiple of %d", n, podsPerService)
		}
		pods[i] = n / podsPerService
	}
	return pods, nil
}

// maxIdle is what four idle labs may do, in CPUs: a machine that is busier is disturbed.
const maxIdle = 0.6

func (r *runner) run(ctx context.Context) error {
	if err := r.start(ctx); err != nil {
		return err
	}
	idle, err := idleCPUs(ctx)
	if err != nil {
		return err
	}
	limit := min(idle, maxIdle) + r.others
	fmt.Printf("bench: the machine keeps %.2f CPUs busy while nothing is measured; rounds in which others keep more than %.2f busy do not count\n", idle, limit)
	var outcomes []bench.Outcome
	for _, row := range r.plan() {
		if err := r.growTo(ctx, row.others); err != nil {
			return errors.Join(err, r.report(outcomes))
		}
		fmt.Printf("\nbench: %s (%s)\n", row.name, row.kind.unit())
		got, err := r.measure(ctx, row, limit)
		outcomes = append(outcomes, got...)
		if err != nil {
			return errors.Join(err, r.report(outcomes))
		}
	}
	return r.report(outcomes)
}

// plan is what is measured, in this order: the rows, or those about Services at each size.
func (r *runner) plan() []row {
	var out []row
	wanted := func(w row) bool {
		switch {
		case !strings.Contains(w.name, r.rows):
			return false
		case r.pods != "":
			return w.kind == apache || w.name == rowPodRemote // as a control
		case r.backends > 0:
			return w.crowd
		case len(r.growth) > 0:
			return w.sized
		}
		return w.kind != apache && !w.crowd
	}
	for _, w := range rows {
		if len(r.growth) == 0 && wanted(w) {
			out = append(out, w)
		}
	}
	for _, size := range r.growth {
		for _, w := range rows {
			if wanted(w) {
				out = append(out, w.withOthers(size))
			}
		}
	}
	return out
}

// file is where the results are written.
func (r *runner) file() string {
	switch {
	case r.pods != "":
		return filepath.Join(r.out, "bench-pods.json")
	case r.backends > 0:
		return filepath.Join(r.out, "bench-backends.json")
	case len(r.growth) > 0:
		return filepath.Join(r.out, "bench-services.json")
	}
	return filepath.Join(r.out, "bench.json")
}

// growTo makes so many other Services in the labs that the size is not too large for.
func (r *runner) growTo(ctx context.Context, size int) error {
	for _, s := range r.sites {
		if s.fillers >= size || s.lab.Proxy == none || s.lab.Proxy != "weir" && size > r.peerLimit {
			continue
		}
		if err := s.grow(ctx, size); err != nil {
			return err
		}
	}
	return nil
}

// idleCPUs is what the labs and everything else do when nobody measures: the least of some seconds.
func idleCPUs(ctx context.Context) (float64, error) {
	least := 0.0
	for i := range 5 {
		w, err := bench.Open()
		if err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Second):
		}
		var run bench.Run
		if err := w.Close(&run, 0); err != nil {
			return 0, err
		}
		if i == 0 || run.Others < least {
			least = run.Others
		}
	}
	return least, nil
}
