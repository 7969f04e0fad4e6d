// SPDX-License-Identifier: Apache-2.0

// Command flows measures what flow records cost and what they are good for, each part by itself:
// the store of them (made-up records of 2,000 workloads, pairs by Zipf's law, random source ports
// and clients), a packet in programs that account for flows and in those that do not, 50,000 new
// flows a second on a node, first connections to names, the preview of policies, and the page in a
// browser, whose times are those of a machine that does nothing else. All but the first run the
// tests of these, and take figures from them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/weir-net/weir/internal/bench"
)

// result is the file that is written.
type result struct {
	Version string        `json:"version"`
	Machine bench.Machine `json:"machine"`
	// Load is how many threads ran or wanted to, on average of a minute, when the store was
	// measured: times are of a machine alone where it is about 2.
	Load  float64 `json:"load"`
	Store *stored `json:"store,omitempty"`
	// Packets are nanoseconds a packet of programs in the kernel.
	Packets  []packets      `json:"packets,omitempty"`
	NewFlows *newFlows      `json:"newFlows,omitempty"`
	Names    *names         `json:"names,omitempty"`
	Preview  *previewed     `json:"preview,omitempty"`
	Tests    map[string]ran `json:"tests,omitempty"` // by part; that of the page is "browser"
	// Times are figures of part "handed" (first connections to names by answers that the agent
	// reads) and of part "page", by their names, of both families the larger one.
	Times map[string]map[string]float64 `json:"times,omitempty"`
}

// allParts in the order in which they run.
var allParts = []string{"store", "packets", "begun", "names", "handed", "preview", "browser", "page"}

func main() {
	o := storing{}
	flag.IntVar(&o.count, "records", 1_000_000, "how many `records`")
	flag.IntVar(&o.workloads, "workloads", 2000, "how many `workloads`")
	flag.Float64Var(&o.rate, "rate", 100e6/86400, "`records` in a second of their own time")
	flag.Float64Var(&o.pace, "pace", 0, "`records` a second that are added; 0 = as fast as the store takes them")
	flag.StringVar(&o.dir, "dir", "", "`folder` of the store (default: a temporary one)")
	flag.Int64Var(&o.memory, "memory", 400<<20, "memory limit of the Go runtime for the store, in `bytes`: that of the Deployment")
	flag.Int64Var(&o.bytes, "bytes", 1<<40, "`bytes` that the store keeps")
	flag.DurationVar(&o.coarse, "coarse-after", 0, "the `age` from which on records are coarser; 0 = never")
	flag.StringVar(&o.profile, "cpuprofile", "", "`file` for a profile of the store (pprof)")
	parts := flag.String("parts", strings.Join(allParts, ","), "what to measure, with commas between")
	out := flag.String("out", "", "`file` for the result (default: standard output alone)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, strings.Split(*parts, ","), *out); err != nil {
		fmt.Fprintln(os.Stderr, "flows:", err)
		stop()
		os.Exit(1)
	}
}

// load is the load average of a minute.
func load() (n float64, err error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &n)
	}
	return n, err
}

// run measures the parts. What was measured is written also where a test failed, which is an error.
func run(ctx context.Context, o storing, parts []string, out string) (err error) {
	for _, p := range parts {
		if !slices.Contains(allParts, p) {
			return fmt.Errorf("part %q: there are %s", p, strings.Join(allParts, ", "))
		}
	}
	r := &result{Machine: bench.ThisMachine(), Tests: map[string]ran{}}
	version, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("git describe: %w", err)
	}
	r.Version = strings.TrimSpace(string(version))
	// The store first: what it takes is a maximum of this process.
	if slices.Contains(parts, "store") {
		if r.Store, err = o.measure(); err != nil {
			return err
		}
		if r.Load, err = load(); err != nil {
			return err
		}
	}
	var failed error
	for _, p := range tested {
		if !slices.Contains(parts, p.part) {
			continue
		}
		of, figures, err := p.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", p.part, err)
		}
		if r.Tests[p.part] = of; of.Failed > 0 || of.Passed == 0 {
			failed = errors.Join(failed, fmt.Errorf("%s: %d tests failed, %d passed", p.part, of.Failed, of.Passed))
		}
		if err := r.note(p.part, figures); p.figures && err != nil && of.Failed == 0 {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.part, err))
		}
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	if out != "" {
		err = bench.WriteJSON(out, r)
	}
	return errors.Join(failed, err)
}
