// SPDX-License-Identifier: Apache-2.0

// Package cells says of each thing that has to work whether it does, by the test that shows it: it
// runs the tests that cells name, each once, counts what passed, failed and was not run, and writes
// that as JSON and as tables of a document. What the cells are is the callers' (test/routing,
// test/clouds).
package cells

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/nettest"
)

// Cell is something that has to work, and the test that shows it.
type Cell struct {
	Mode   string `json:"mode"`
	Family string `json:"family"`
	Plane  string `json:"plane"`
	What   string `json:"what"`
	Test   string `json:"test,omitempty"` // folder and name; empty = there is none
	Why    string `json:"why,omitempty"`  // there is none
	// Kernels is the check of make kernels that plays the test, where this machine's kernel cannot.
	Kernels string `json:"kernels,omitempty"`
	Result  string `json:"result,omitempty"` // passed, failed, not run, emulated: not here but by Kernels
}

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

// New counts what came of all cells, by the results of their tests. A cell that failed is an error.
func New(ctx context.Context, all []Cell, results map[string]string) (*Results, error) {
	var errs []error
	r := &Results{Machine: bench.ThisMachine(), Version: Commit(ctx), Cells: all, Figures: map[string][]float64{}}
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
	return r, errors.Join(errs...)
}

// List prints what there is.
func List(all []Cell) {
	for _, c := range all {
		fmt.Println(strings.Join([]string{c.Mode, c.Family, c.Plane, c.What, c.Test + c.Why}, "\t"))
	}
}

// Commit is what the tree is at; empty where it is no clone.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// ReadFigures reads what tests have recorded by nettest.Figure.
func (r *Results) ReadFigures(path string) error {
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

// Runner is how tests are run.
type Runner struct {
	Tags    string   // of the compiler
	Args    []string // of the test's program
	Figures string   // file for what the tests record
}

// Run runs the tests that cells name, and notes the result of each by
// folder and name.
func (r Runner) Run(ctx context.Context, all []Cell, results map[string]string) error {
	var errs []error
	for _, g := range groups(all) {
		fmt.Printf("== %s: %s\n", g.folder, strings.Join(g.patterns(), " "))
		if err := g.run(ctx, r, results); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", g.folder, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
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
func (g *group) run(ctx context.Context, r Runner, results map[string]string) error {
	dir, err := os.MkdirTemp("", "weir-routing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-tags", r.Tags, "-o", binary, "./"+g.folder).CombinedOutput(); err != nil {
		return fmt.Errorf("compiling: %w: %s", err, out)
	}
	var errs []error
	for _, pattern := range g.patterns() {
		args := []string{"tool", "test2json", binary, "-test.v=test2json", "-test.count=1", "-test.timeout=60m", "-test.run", pattern}
		cmd := exec.CommandContext(ctx, "go", append(args, r.Args...)...)
		cmd.Dir = g.folder
		cmd.Env = append(os.Environ(), nettest.FiguresVariable+"="+r.Figures)
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

// Tables are those of a document.
func (r *Results) Tables() (string, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s; %s: %d passed, %d failed, %d not run, %d emulated.\n\n", r.Machine, r.Version, r.Passed, r.Failed, r.NotRun, r.Emulated)
	t := &bench.Table{Head: []string{"mode", "family", "data plane", "what", "result", "test"}}
	for _, c := range r.Cells {
		by := c.Why
		if c.Test != "" {
			by = "`" + c.Test + "`"
		}
		t.Add(c.Mode, c.Family, c.Plane, c.What, c.Result, by)
	}
	if err := t.Write(&out, true); err != nil {
		return "", err
	}
	if len(r.Figures) == 0 {
		return out.String(), nil
	}
	out.WriteString("\n")
	figures := &bench.Table{Head: []string{"figure", "median", "least", "most", "times"}}
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		v := r.Figures[name]
		figures.Add(name, v[len(v)/2], v[0], v[len(v)-1], len(v))
	}
	if err := figures.Write(&out, true); err != nil {
		return "", err
	}
	return out.String(), nil
}

// WriteDoc writes the tables of a document anew, after the mark of a program.
func (r *Results) WriteDoc(path, program string) error {
	tables, err := r.Tables()
	if err != nil {
		return err
	}
	return bench.Rewrite(path, program, tables)
}
