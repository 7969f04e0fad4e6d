// SPDX-License-Identifier: Apache-2.0

// Command mutation puts deliberate faults into a copy of the tree, one at a time, and asserts that
// the tests find each:
//
//	go run ./hack/mutation [-only REGEXP] [-faults-only] [-attacks] [-v] [-list]
//
// The tests have to pass without a fault first: those of attacks are run by themselves, and one
// that is skipped tries nothing. It needs root, as the tests do, and takes up to a few minutes a
// fault on a calm machine. The tree that it is run in is not touched; the copy and all that the
// tests make of it are gone when it ends, by a signal too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	only := flag.String("only", "", "only faults whose name matches this regular expression")
	faultsOnly := flag.Bool("faults-only", false, "do not look first whether the tests pass without a fault")
	attacks := flag.Bool("attacks", false, "only the guards against attacks, each by the test of its attack")
	verbose := flag.Bool("v", false, "print what the tests that find a fault print")
	list := flag.Bool("list", false, "print the names of the attacks, one a line, and do nothing else")
	flag.Parse()
	if *list {
		for _, f := range all() {
			if f.pkg != "" {
				fmt.Println(f.attack())
			}
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *only, *faultsOnly, *attacks, *verbose)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, faultsOnly, attacks, verbose bool) error {
	if os.Getuid() != 0 {
		return errors.New("the tests load programs: run as root")
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var chosen []mutant
	for _, f := range all() {
		if pattern.MatchString(f.name) && (!attacks || f.pkg != "") {
			chosen = append(chosen, f)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no fault is called %q", only)
	}
	scratch, err := os.MkdirTemp("", "weir-mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	c, err := newCopy(ctx, scratch)
	if err != nil {
		return fmt.Errorf("copying the tree: %w", err)
	}
	fmt.Printf("%-66s %-36s %5s  %s\n", "fault", "file", "time", "found by")
	if !faultsOnly && slices.ContainsFunc(chosen, func(f mutant) bool { return f.pkg == "" }) {
		begin := time.Now()
		if out, err := c.test(ctx, tests); err != nil {
			return fmt.Errorf("the tests fail without any fault: %w\n%s", err, out)
		}
		fmt.Printf("%-66s %-36s %4.0fs  %s\n", "(none)", "", time.Since(begin).Seconds(), "nothing, as it should be")
	}
	var missed, wrong []string
	passes := map[[2]string]error{} // of packages and tests of attacks
	for i := range chosen {
		f := &chosen[i]
		begin := time.Now()
		var by, output string
		var err error
		if !faultsOnly && f.pkg != "" {
			key := [2]string{f.pkg, f.run}
			if _, done := passes[key]; !done {
				passes[key] = c.passes(ctx, f)
			}
			err = passes[key]
		}
		if err == nil {
			by, output, err = c.plant(ctx, f)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			wrong = append(wrong, fmt.Sprintf("%s: %v", f.name, err))
			by = "NOT TRIED: see below"
		case by == "":
			missed = append(missed, f.name)
			by = "MISSED"
		}
		fmt.Printf("%-66s %-36s %4.0fs  %s\n", f.name, f.file, time.Since(begin).Seconds(), by)
		if verbose {
			fmt.Print(output)
		}
	}
	return result(len(chosen), missed, wrong)
}

func result(tried int, missed, wrong []string) error {
	var errs []error
	if len(missed) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d faults are found by no test: %s", len(missed), tried, strings.Join(missed, "; ")))
	}
	for _, w := range wrong {
		errs = append(errs, errors.New(w))
	}
	if len(errs) == 0 {
		fmt.Printf("mutation: all %d faults were found\n", tried)
	}
	return errors.Join(errs...)
}

// plant puts one fault into the copy, runs the tests, and takes it out again; by names the test
// that found it, "" when none did, and output is what it printed.
func (c *copied) plant(ctx context.Context, f *mutant) (by, output string, err error) {
	path := filepath.Join(c.tree, f.file)
	before, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	after, err := f.apply(string(before))
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(path, []byte(after), 0o644); err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, before, 0o644)) }()
	if f.program() {
		defer func() { err = errors.Join(err, c.restore(ctx)) }()
		if out, err := c.compile(ctx); err != nil {
			return "", "", fmt.Errorf("the programs cannot be compiled with it: %w\n%s", err, out)
		}
	}
	out, err := c.test(ctx, f.tests())
	if err == nil {
		return "", "", nil
	}
	if by = finder(out); by == "" || strings.Contains(out, "processed ") && strings.Contains(out, "insns") {
		return "", "", fmt.Errorf("no test could be run with it: %w\n%s", err, out)
	}
	return by, out, nil
}

// passes reports why the tests of an attack do not show, without any fault, that it is held: they
// fail, there is none, or one is skipped.
func (c *copied) passes(ctx context.Context, f *mutant) error {
	out, err := c.test(ctx, [][]string{append(f.tests()[0], "-v")})
	return shows(out, err)
}

// shows reports what is wrong with tests that printed output (go test -v) and ended with err.
func shows(output string, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("the test fails without any fault: %w\n%s", err, output)
	case strings.Contains(output, "--- SKIP: "):
		return fmt.Errorf("the test is skipped\n%s", output)
	case !strings.Contains(output, "--- PASS: "):
		return errors.New("there is no such test")
	}
	return nil
}

// finder returns the innermost test that failed first, by the output of go test.
func finder(output string) (name string) {
	for line := range strings.Lines(output) {
		text := strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(text, "--- FAIL: "); ok {
			next, _, _ := strings.Cut(rest, " ")
			if name != "" && !strings.HasPrefix(next, name+"/") {
				break
			}
			name = next
		}
		if name == "" && strings.HasPrefix(text, "panic: test timed out") {
			return "" // a busy machine finds no fault
		}
		if name == "" && strings.HasPrefix(text, "panic: ") {
			return "panic"
		}
	}
	return name
}
