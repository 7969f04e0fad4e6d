// Command lab compares Weir with kube-proxy and with no data plane at all in labs of the same shape that
// are up at the same time: latency of new connections, throughput of a TCP stream, UDP round trips. Rounds
// take turns; the result is the median of the rounds. It writes out/bench.json and
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
	flag.BoolVar(&o.quick, "quick", false, "five short rounds: a first look, not a result")
	flag.BoolVar(&o.realTime, "real-time", true, "run clients and servers at real-time priority")
	flag.BoolVar(&o.keep, "keep", false, "use labs that are up, and leave them up")
	flag.Parse()
	if o.quick {
		o.rounds, o.extra, o.connections, o.streamTime = 5, 2, 500, 500*time.Millisecond
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	started := time.Now()
	r := &runner{options: o}
	err := r.run(ctx)
	err = errors.Join(err, r.close())
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted; the labs are removed")
		}
		fmt.Fprintln(os.Stderr, "bench: FAILED:", err)
		stop()
		os.Exit(1)
	}
	fmt.Printf("bench: done in %.0f s; results in %s\n", time.Since(started).Seconds(), filepath.Join(o.out, "bench.json"))
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
	fmt.Printf("bench: the machine keeps %.2f CPUs busy while nothing is measured; rounds with more than %.2f beside them do not count\n", idle, limit)
	var outcomes []bench.Outcome
	for _, row := range rows {
		if !strings.Contains(row.name, r.rows) {
			continue
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
