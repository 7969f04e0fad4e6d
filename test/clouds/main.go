// SPDX-License-Identifier: Apache-2.0

// Command clouds brings up labs with the CNI plugins of clouds, and with network plugins that Weir
// takes nodes over from, runs Weir's tests and upstream's specs in them, and writes what works
// there:
//
//	go run ./test/clouds [-parts lab,netns,latency,conformance,netpol,egress,migrate] [-on aws-vpc-cni] [-resume]
//		[-out out/clouds.json] [-doc FILE] [-list]
//
// It fails when a test or a spec fails. What has no test, or was not chosen, counts as not run. It
// needs root, and what `make e2e-build aws-vpc-cni azure-cni` builds; -parts migrate also what
// `make e2e-migrate` brings. One lab is up at a time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/test/cells"
)

type options struct {
	out, doc, on string
	parts        []string
	resume       bool
}

var parts = []string{"lab", "netns", "latency", "conformance", "netpol", "egress", "migrate"}

func main() {
	var o options
	flag.StringVar(&o.out, "out", "out/clouds.json", "where to write the results")
	flag.StringVar(&o.doc, "doc", "", "Markdown file whose tables, after the mark of this program, are written anew")
	flag.StringVar(&o.on, "on", "", "only this CNI plugin")
	chosen := flag.String("parts", strings.Join(parts, ","), "what to run")
	flag.BoolVar(&o.resume, "resume", false, "keep the results of the earlier run in -out, of the same version, for what is not run now")
	list := flag.Bool("list", false, "print what there is, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *list {
		cells.List(asks())
		return
	}
	o.parts = strings.Split(*chosen, ",")
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "clouds:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	for _, p := range o.parts {
		if p != "" && !slices.Contains(parts, p) {
			return fmt.Errorf("-parts %s: %q is none of %s", strings.Join(o.parts, ","), p, strings.Join(parts, ", "))
		}
	}
	if o.on != "" && !slices.ContainsFunc(clusters, func(c cluster) bool { return c.on == o.on }) {
		return fmt.Errorf("-on %s: there is no lab with it", o.on)
	}
	all, results, figures := asks(), map[string]string{}, map[string][]float64{}
	if o.resume {
		if err := o.earlier(ctx, results, figures); err != nil {
			return err
		}
	}
	var errs []error
	if slices.Contains(o.parts, "netns") && o.on != "generic" {
		errs = append(errs, cells.Runner{}.Run(ctx, append(testsOf(all, "test/netns "), testsOf(all, "internal/")...), results))
	}
	for _, c := range clusters {
		if o.on != "" && o.on != c.on {
			continue
		}
		if slices.Contains(o.parts, "lab") && ctx.Err() == nil {
			errs = append(errs, c.inLab(ctx, all, results, figures))
		}
		if !c.specs() {
			continue
		}
		if slices.Contains(o.parts, "latency") && ctx.Err() == nil {
			errs = append(errs, c.latency(ctx, figures))
		}
		for part, which := range map[string]string{"conformance": conformance, "netpol": netpol} {
			if slices.Contains(o.parts, part) && ctx.Err() == nil {
				results[specs(c.on, which)] = o.runSpecs(ctx, c.on, which)
			}
		}
	}
	errs = append(errs, o.egress(ctx, all, results, figures))
	measured, err := o.migrate(ctx, all, results)
	errs = append(errs, err)
	maps.Copy(figures, measured)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r, failed := cells.New(ctx, all, results)
	maps.Copy(r.Figures, figures)
	errs = append(errs, failed, bench.WriteJSON(o.out, r))
	if o.doc != "" {
		errs = append(errs, r.WriteDoc(o.doc, "test/clouds"))
	}
	fmt.Printf("clouds: %d passed, %d failed, %d not run; written to %s\n", r.Passed, r.Failed, r.NotRun, o.out)
	return errors.Join(errs...)
}

// egress counts packets with wrong sources as `make e2e-egress` does, where that was chosen, in a
// lab that the test brings up.
func (o options) egress(ctx context.Context, all []cells.Cell, results map[string]string, figures map[string][]float64) error {
	if !slices.Contains(o.parts, "egress") || o.on != "" || ctx.Err() != nil {
		return ctx.Err()
	}
	of := testsOf(all, "test/lab "+egressAtStart)
	return inLab(ctx, of, results, egressAtStart, "egress gateways", figures, "-egress-adds=10000", "-egress-pods=300")
}

// migrate changes nodes from other network plugins, where that was chosen, and returns what the
// tests have measured. They bring up labs of their own.
func (o options) migrate(ctx context.Context, all []cells.Cell, results map[string]string) (map[string][]float64, error) {
	if !slices.Contains(o.parts, "migrate") || o.on != "" || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	dir, err := os.MkdirTemp("", "weir-clouds-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := cells.Results{Figures: map[string][]float64{}}
	figures := filepath.Join(dir, "figures")
	err = cells.Runner{Tags: "lab", Figures: figures}.Run(ctx, testsOf(all, "test/migrate "), results)
	return r.Figures, errors.Join(err, r.ReadFigures(figures))
}

// earlier reads what an earlier run of the same version has written.
func (o options) earlier(ctx context.Context, results map[string]string, figures map[string][]float64) error {
	raw, err := os.ReadFile(o.out)
	if err != nil {
		return err
	}
	var was cells.Results
	if err := json.Unmarshal(raw, &was); err != nil {
		return fmt.Errorf("%s: %w", o.out, err)
	}
	if is := cells.Commit(ctx); was.Version != is {
		return fmt.Errorf("%s is of version %s, and this is %s", o.out, was.Version, is)
	}
	for _, c := range was.Cells {
		if c.Result == "passed" || c.Result == "failed" {
			results[c.Test] = c.Result
		}
	}
	maps.Copy(figures, was.Figures)
	return nil
}

// testsOf are the cells whose tests begin so.
func testsOf(all []cells.Cell, begin string) (out []cells.Cell) {
	for _, c := range all {
		if strings.HasPrefix(c.Test, begin) {
			out = append(out, c)
		}
	}
	return out
}

// tests are the cells of the test that runs in the lab, and of its parts.
func (c cluster) tests(all []cells.Cell) (out []cells.Cell) {
	for _, cell := range testsOf(all, "test/lab ") {
		if test, _, _ := strings.Cut(strings.TrimPrefix(cell.Test, "test/lab "), "/"); test == c.test {
			out = append(out, cell)
		}
	}
	return out
}

// inLab runs the test of package test/lab in a lab of its own, which is removed in the end.
func (c cluster) inLab(ctx context.Context, all []cells.Cell, results map[string]string, figures map[string][]float64) error {
	defer labDown()
	if err := c.labUp(ctx, "--no-install"); err != nil {
		return err
	}
	return inLab(ctx, c.tests(all), results, c.test, c.name(), figures, "-lab="+labName, c.flag+"="+labName, "-clouds-all")
}

// inLab runs a test of package test/lab, and adds what it has measured to the figures, with the
// name of what it was measured of.
func inLab(ctx context.Context, of []cells.Cell, results map[string]string, test, name string, figures map[string][]float64, args ...string) error {
	if err := os.Remove("out/lab.json"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := (cells.Runner{Tags: "lab", Args: args}).Run(ctx, of, results); err != nil {
		return err
	}
	return readFigures("out/lab.json", test, name, figures)
}

// readFigures reads what tests of package test/lab have noted.
func readFigures(path, test, name string, figures map[string][]float64) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var records []struct {
		Test    string
		Figures map[string]float64
	}
	if err := json.Unmarshal(raw, &records); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, rec := range records {
		top, sub, _ := strings.Cut(rec.Test, "/")
		if top != test {
			continue
		}
		of := name
		if top == egressAtStart {
			of += ", " + sub
		}
		for what, v := range rec.Figures {
			figures[of+": "+what] = []float64{v}
		}
	}
	return nil
}

// runSpecs runs upstream's specs in a lab of their own, or, to resume, those that an earlier run of
// the same programs has not run. The program is compiled before, as `go run` would not hand on an
// interrupt to it.
func (o options) runSpecs(ctx context.Context, on, which string) string {
	dir, err := os.MkdirTemp("", "weir-clouds-")
	if err != nil {
		return "failed"
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "e2e")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./test/e2e").CombinedOutput(); err != nil {
		fmt.Printf("compiling test/e2e: %v\n%s", err, out)
		return "failed"
	}
	file := filepath.Join("out", "clouds-"+on+strings.ReplaceAll(which, "=", "-")+".json")
	args := []string{"--on=" + on, which, "--out=" + file}
	if _, err := os.Stat(file); err == nil && o.resume {
		args = append(args, "--resume")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 2 * time.Minute
	if cmd.Run() != nil {
		return "failed"
	}
	return "passed"
}

// labName is that of the labs of this program, of which one is up at a time.
const labName = "weir-clouds"

// labUp brings up a lab with the plugin; labDown is to be called after an error, too.
func (c cluster) labUp(ctx context.Context, args ...string) error {
	if err := labProgram(ctx, append([]string{"--name", labName, "up", "--on", c.on, "--ip-family", strings.ToLower(c.family)}, args...)...).Run(); err != nil {
		return fmt.Errorf("bringing up a lab with %s: %w", c.on, err)
	}
	return nil
}

func labDown() { _ = labProgram(context.Background(), "--name", labName, "down").Run() }

// labProgram is a call of the lab's program.
func labProgram(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "weir-lab"), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd
}
