// SPDX-License-Identifier: Apache-2.0

// Command policyapi runs the conformance suite of sigs.k8s.io/network-policy-api on Weir: it
// brings a lab up, runs the suite's tests in it as they are, prints a line for each, and writes
// out/policyapi.json. Every test has to pass, but for those that skips.golden names, with the
// reason. Run it in the folder of the repository, as make e2e-policyapi does.
//
// The kernel of the lab may have no SCTP sockets, so SCTP is spoken by a program of its own, on raw
// sockets: see sctp.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type options struct {
	module, lab, only, out, skips, programs, install string
	repeat                                           int
	request                                          time.Duration
	keep, useExisting                                bool
}

func main() {
	var o options
	flag.StringVar(&o.module, "module", "test/policyapi", "folder of the suite's module")
	flag.StringVar(&o.lab, "lab", "weir-policyapi", "name of the lab")
	flag.StringVar(&o.only, "only", "", "only tests whose names match this expression")
	flag.StringVar(&o.out, "out", "out/policyapi.json", "where the result goes")
	flag.StringVar(&o.skips, "skips", "test/policyapi/skips.golden", "tests that may be skipped, with reasons")
	flag.StringVar(&o.programs, "programs", "", "folder with the programs suite and sctp, built before (default: they are built)")
	flag.StringVar(&o.install, "install", "", "further arguments of weir install, with spaces between: --fanout=always has agents fed by a fan-out")
	flag.IntVar(&o.repeat, "repeat", 1, "how many times to run the suite, all in one lab")
	flag.DurationVar(&o.request, "request-timeout", 1500*time.Millisecond, "how long a client waits for a connection; 0: as the suite has it")
	flag.BoolVar(&o.keep, "keep", false, "leave the lab up")
	flag.BoolVar(&o.useExisting, "use-existing", false, "use the lab of that name, as an earlier run with --keep left it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "policyapi:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	skips, err := readSkips(o.skips)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-policyapi-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.programs != "" {
		dir = o.programs
	} else if err := build(ctx, o.module, dir); err != nil {
		return err
	}
	res := &result{Suite: "sigs.k8s.io/network-policy-api", Only: o.only, Install: o.install}
	err = inLab(ctx, o, dir, res)
	if err == nil {
		err = res.evaluate(skips, o.only)
	}
	if ctx.Err() != nil {
		err = errors.Join(errors.New("interrupted"), err)
	}
	return errors.Join(err, res.write(o.out))
}

// build makes the suite's program and the one that speaks SCTP.
func build(ctx context.Context, module, dir string) error {
	for _, args := range [][]string{
		{"test", "-c", "-tags", "conformance", "-o", filepath.Join(dir, "suite"), "./suite"},
		{"build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "sctp"), "./sctp"},
	} {
		c := exec.CommandContext(ctx, "go", args...)
		c.Dir = module
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// command is a call of the lab's program that prints to our output.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "bin/weir-lab", args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	// A Ctrl-C goes to us; what is under way ends by what we send.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	return c
}

// inLab runs the suite in a lab, which is removed in the end, also when ctx ends before.
func inLab(ctx context.Context, o options, dir string, res *result) (err error) {
	if !o.useExisting {
		if !o.keep {
			defer func() {
				if derr := command(context.Background(), "down", "--name", o.lab).Run(); derr != nil {
					err = errors.Join(err, fmt.Errorf("removing the lab %s: %w", o.lab, derr))
				}
			}()
		}
		up := []string{"up", "--name", o.lab}
		for _, arg := range strings.Fields(o.install) {
			up = append(up, "--install-arg="+arg)
		}
		if err := command(ctx, up...).Run(); err != nil {
			return fmt.Errorf("bringing the lab %s up: %w", o.lab, err)
		}
	}
	for n := 1; n <= o.repeat && ctx.Err() == nil; n++ {
		if o.repeat > 1 {
			fmt.Printf("policyapi: run %d of %d\n", n, o.repeat)
		}
		if err := clear(ctx, o.lab); err != nil {
			return err
		}
		if err := suite(ctx, o, dir, n, res); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// houses are the names of the suite's namespaces after "network-policy-conformance-".
var houses = []string{"gryffindor", "slytherin", "hufflepuff", "ravenclaw", "forbidden-forrest"}

// clear waits until what an earlier run left is gone: the suite makes nothing in a namespace that
// is being deleted.
func clear(ctx context.Context, lab string) error {
	args := []string{"kubectl", "--name", lab, "delete", "namespace", "--ignore-not-found", "--timeout=5m"}
	for _, h := range houses {
		args = append(args, "network-policy-conformance-"+h)
	}
	c := command(ctx, args...)
	c.Stdout, c.Stderr = nil, nil
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("waiting for the namespaces of an earlier run to be gone: %w: %s", err, out)
	}
	return nil
}

// suite runs the suite's program on the control-plane node, where the API server is at hand.
func suite(ctx context.Context, o options, dir string, n int, res *result) error {
	log := fmt.Sprintf("%s-%d.log", o.out[:len(o.out)-len(filepath.Ext(o.out))], n)
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Printf("policyapi: the log is %s\n", log)
	args := []string{"exec", "--name", o.lab, "cp", "--", filepath.Join(dir, "suite"), "-test.v=test2json", "-test.timeout=2h",
		"-sctp=" + filepath.Join(dir, "sctp"), "-request-timeout=" + o.request.String()}
	if o.only != "" {
		args = append(args, "-test.run=TestConformance/("+o.only+")")
	}
	c := command(ctx, args...)
	began := time.Now()
	p := &progress{log: f, to: os.Stdout, began: began, run: n}
	c.Stdout, c.Stderr = p, f
	err = c.Run()
	res.add(p.tests)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || len(p.tests) == 0 || !p.ended) {
		return fmt.Errorf("running the suite: %w; see %s", err, log)
	}
	if !p.ended {
		return fmt.Errorf("the suite did not end; see %s", log)
	}
	if err := p.whole(err); err != nil {
		return fmt.Errorf("%w; see %s", err, log)
	}
	fmt.Printf("policyapi: run %d took %.0f s\n", n, time.Since(began).Seconds())
	return nil
}
