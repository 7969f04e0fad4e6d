// SPDX-License-Identifier: Apache-2.0

// Command gate compares what the eBPF programs cost in two versions, and fails when the new one is
// slower:
//
//	go run ./test/bench/gate -old COMMIT [-rounds 15] [-run REGEXP] [-out out/bench-gate.json]
//
// Each round runs the benchmarks of test/bench/micro three times, one after the other and in turned
// order: the old version, the old version again, and the working tree. All run the benchmarks as
// they are in the working tree. What a version costs is distinguished from noise by the second run
// of the old one.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/bench"
)

// The versions of a round.
const (
	old = iota
	again
	current
	versions
)

var names = [versions]string{"old", "old again", "new"}

func main() {
	o := options{}
	flag.StringVar(&o.old, "old", "", "the commit to compare with")
	flag.IntVar(&o.rounds, "rounds", 15, "how often to run each version")
	flag.StringVar(&o.run, "run", packets, "which benchmarks (go test -bench)")
	flag.StringVar(&o.out, "out", "out/bench-gate.json", "where to write the result")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.gate(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench-gate:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	old    string
	rounds int
	run    string
	out    string
}

// report is the file that is written.
type report struct {
	Machine bench.Machine `json:"machine"`
	Old     string        `json:"old"`
	New     string        `json:"new"`
	Rounds  int           `json:"rounds"`
	verdict
}

func (o options) gate(ctx context.Context) (err error) {
	if o.old == "" || o.rounds < 2 {
		return errors.New("-old names the commit to compare with, and -rounds is 2 or more")
	}
	commit, err := git(ctx, "rev-parse", "--short", o.old+"^{commit}")
	if err != nil {
		return err
	}
	head, err := git(ctx, "describe", "--always", "--dirty")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-gate-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree := filepath.Join(dir, "tree")
	if _, err := git(ctx, "worktree", "add", "--detach", tree, commit); err != nil {
		return err
	}
	defer func() { // also after Ctrl-C
		_, removing := git(context.WithoutCancel(ctx), "worktree", "remove", "--force", tree)
		err = errors.Join(err, removing)
	}()
	fmt.Printf("building the programs of %s and of %s, with the benchmarks of the latter\n", commit, head)
	if err := sameBenchmarks(tree); err != nil {
		return err
	}
	binaries := [versions]string{filepath.Join(dir, "old.test"), filepath.Join(dir, "old.test"), filepath.Join(dir, "new.test")}
	if err := compile(ctx, tree, binaries[old]); err != nil {
		return err
	}
	if err := compile(ctx, ".", binaries[current]); err != nil {
		return err
	}
	var samples []sample
	started := time.Now()
	for round := range o.rounds {
		for i := range versions {
			v := (round + i) % versions
			rows, err := o.measure(ctx, binaries[v], filepath.Join(dir, fmt.Sprint(v)))
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, names[v], err)
			}
			for row, ns := range rows {
				samples = append(samples, sample{row: row, round: round, version: v, ns: ns})
			}
		}
		fmt.Printf("round %d of %d, after %s\n", round+1, o.rounds, time.Since(started).Round(time.Second))
	}
	v, err := compare(samples)
	if err != nil {
		return err
	}
	r := report{Machine: bench.ThisMachine(), Old: commit, New: head, Rounds: o.rounds, verdict: v}
	if err := r.print(os.Stdout); err != nil {
		return err
	}
	if err := bench.WriteJSON(o.out, r); err != nil {
		return err
	}
	fmt.Println("bench-gate: written to", o.out)
	return r.err()
}

// packets are the benchmarks of what a packet costs. The others compare sizes of tables with each
// other, and take minutes.
const packets = "^Benchmark(Established|HostTraffic|Cold|NewFlow|Connection|Policy|Untracked)$"

// benchmarks is the folder of the benchmarks, from the folder of go.mod.
const benchmarks = "test/bench/micro"

// sameBenchmarks puts the benchmarks of the working tree in the place of those of the tree of the
// old version: a ratio means something only where both sides measure the same packets in the same
// way. They have to compile there.
func sameBenchmarks(tree string) error {
	to := filepath.Join(tree, benchmarks)
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(benchmarks)); err != nil {
		return err
	}
	offline := filepath.Join(tree, "internal/dataplane/ebpf/offline")
	if _, err := os.Stat(offline); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(offline, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(offline, "offline.go"), oldOffline, 0o644)
}

// oldOffline is the package offline for versions from before there was one.
//
//go:embed files/offline.go.txt
var oldOffline []byte

func git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(text)), nil
}

func compile(ctx context.Context, tree, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./"+benchmarks)
	cmd.Dir = tree
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the benchmarks in %s: %w\n%s", tree, err, out)
	}
	return nil
}

// measure runs the benchmarks once, and returns nanoseconds a packet by row. The benchmarks write
// their result below the folder of go.mod, which here is a folder of the run's own.
func (o options) measure(ctx context.Context, binary, dir string) (map[string]float64, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), nil, 0o644); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "out", "bench-micro.json")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.bench", o.run, "-test.benchtime", "1x")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, tail(out))
	}
	return read(path)
}

func read(path string) (map[string]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var file struct {
		Rows []struct {
			Row, Program, Mode string
			NS                 float64
		}
	}
	if err := json.NewDecoder(io.LimitReader(f, 16<<20)).Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	out := map[string]float64{}
	for _, r := range file.Rows {
		out[r.Row+", "+r.Program+", "+r.Mode] = r.NS
	}
	return out, nil
}

// tail is the end of a program's output.
func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }
