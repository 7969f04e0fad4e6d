// SPDX-License-Identifier: Apache-2.0

// Command routing runs the tests of BGP, IP in IP and WireGuard, and writes what of all that every
// mode has to do works, and what the tests have measured:
//
//	go run ./test/routing [-out out/routing.json] [-doc FILE] [-list]
//
// It fails when a test fails. What has no test, or whose test was skipped, counts as not run, but
// for what make kernels plays on an emulated kernel: that counts as emulated, not as passed. It
// needs root, and BIRD, FRR and OpenBGPD, which make setup brings, those of a newer Debian in the
// folder that WEIR_ROUTERS names, to which hack/routers.sh brings them.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/nettest"
)

// Results is what is written.
type Results struct {
	Machine bench.Machine `json:"machine"`
	Version string        `json:"version"` // the commit
	Passed  int           `json:"passed"`
	Failed  int           `json:"failed"`
	// Emulated were not run here, but are played by make kernels.
	Emulated int                  `json:"emulated"`
	NotRun   int                  `json:"not_run"`
	Cells    []Cell               `json:"cells"`
	Figures  map[string][]float64 `json:"figures"` // by what was measured, each time that it was
}

func main() {
	out := flag.String("out", "out/routing.json", "where to write the results")
	doc := flag.String("doc", "", "Markdown file whose tables, after the mark of this program, are written anew")
	list := flag.Bool("list", false, "print what there is, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *list {
		for _, c := range cells() {
			fmt.Println(strings.Join([]string{c.Mode, c.Family, c.Plane, c.What, c.Test + c.Why}, "\t"))
		}
		return
	}
	if err := run(ctx, *out, *doc); err != nil {
		fmt.Fprintln(os.Stderr, "routing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, doc string) error {
	scratch, err := os.MkdirTemp("", "weir-routing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	figures := filepath.Join(scratch, "figures")
	all := cells()
	results, errs := map[string]string{}, []error{}
	for _, g := range groups(all) {
		fmt.Printf("== %s: %s\n", g.folder, strings.Join(g.patterns(), " "))
		if err := g.run(ctx, figures, results); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", g.folder, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r := Results{Machine: bench.ThisMachine(), Version: commit(ctx), Figures: map[string][]float64{}}
	for i := range all {
		switch all[i].Result = results[all[i].Test]; all[i].Result {
		case "passed":
			r.Passed++
		case "failed":
			r.Failed++
			errs = append(errs, fmt.Errorf("failed: %s, %s, %s: %s (%s)", all[i].Mode, all[i].Family, all[i].Plane, all[i].What, all[i].Test))
		default:
			if all[i].Kernels != "" {
				all[i].Result = "emulated"
				r.Emulated++
				continue
			}
			all[i].Result = "not run"
			r.NotRun++
		}
	}
	r.Cells = all
	if err := r.readFigures(figures); err != nil {
		errs = append(errs, err)
	}
	if err := bench.WriteJSON(out, &r); err != nil {
		return err
	}
	if doc != "" {
		errs = append(errs, writeDoc(doc, &r))
	}
	fmt.Printf("routing: %d passed, %d failed, %d not run, %d are played by make kernels; written to %s\n", r.Passed, r.Failed, r.NotRun, r.Emulated, out)
	return errors.Join(errs...)
}

// commit is what the tree is at; empty where it is no clone.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// readFigures reads what tests have recorded.
func (r *Results) readFigures(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var row nettest.FigureRow
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return err
		}
		r.Figures[row.Name] = append(r.Figures[row.Name], row.Value)
	}
	for _, values := range r.Figures {
		slices.Sort(values)
	}
	return lines.Err()
}

// group is the tests of a package that are run by one call.
type group struct {
	folder string
	tests  map[string][]string // the names of subtests, by test; none = it has none
}

// groups are those of the cells.
func groups(all []Cell) []*group {
	var out []*group
	byFolder := map[string]*group{}
	for _, c := range all {
		folder, name, ok := strings.Cut(c.Test, " ")
		if !ok {
			continue
		}
		g := byFolder[folder]
		if g == nil {
			g = &group{folder: folder, tests: map[string][]string{}}
			byFolder[folder] = g
			out = append(out, g)
		}
		test, sub, _ := strings.Cut(name, "/")
		if !slices.Contains(g.tests[test], sub) {
			g.tests[test] = append(g.tests[test], sub)
		}
	}
	return out
}

// patterns are what `go test -run` takes, one for each test: a pattern of several tests would have
// subtests of one looked for in the others.
func (g *group) patterns() []string {
	var out []string
	for test, subs := range g.tests {
		p := "^" + test + "$"
		if subs[0] != "" {
			p += "/^(" + strings.Join(subs, "|") + ")$"
		}
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// run runs the tests, and notes the result of each by folder and name.
func (g *group) run(ctx context.Context, figures string, results map[string]string) error {
	dir, err := os.MkdirTemp("", "weir-routing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./"+g.folder).CombinedOutput(); err != nil {
		return fmt.Errorf("compiling: %w: %s", err, out)
	}
	var errs []error
	for _, pattern := range g.patterns() {
		cmd := exec.CommandContext(ctx, "go", "tool", "test2json", binary, "-test.v=test2json", "-test.count=1", "-test.timeout=20m", "-test.run", pattern)
		cmd.Dir = g.folder
		cmd.Env = append(os.Environ(), nettest.FiguresVariable+"="+figures)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return err
		}
		read := g.read(pipe, results)
		// The results say which test failed.
		if _, failed := errors.AsType[*exec.ExitError](cmd.Wait()); failed && ctx.Err() == nil && read == nil {
			continue
		}
		errs = append(errs, read)
	}
	return errors.Join(errs...)
}

// event is one of test2json.
type event struct{ Action, Test, Output string }

// read reads the events of a run, and prints what a failed test said.
func (g *group) read(from io.Reader, results map[string]string) error {
	said := map[string]*bytes.Buffer{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("an event of a test: %w", err)
		}
		key := g.folder + " " + e.Test
		switch e.Action {
		case "output":
			if said[key] == nil {
				said[key] = &bytes.Buffer{}
			}
			said[key].WriteString(e.Output)
		case "pass":
			results[key] = "passed"
		case "fail":
			results[key] = "failed"
			if b := said[key]; b != nil {
				os.Stdout.Write(b.Bytes())
			}
		}
	}
	return lines.Err()
}
