// Command mutation puts deliberate faults into a copy of the tree, one at a time, and asserts that the tests find each:
//
//	go run ./hack/mutation [-only TEXT] [-faults-only] [-attacks]
//
// It needs root, as the tests do, and takes up to a few minutes a fault on a calm machine. The tree that it is run in is not touched; the copy
// and all that the tests make of it are gone when it ends, by a signal too.
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
)

func main() {
	only := flag.String("only", "", "only faults whose name contains this text")
	faultsOnly := flag.Bool("faults-only", false, "do not look first whether the tests pass without a fault")
	attacks := flag.Bool("attacks", false, "only the guards against attacks, each by the test of its attack")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *only, *faultsOnly, *attacks)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, faultsOnly, attacks bool) error {
	if os.Getuid() != 0 {
		return errors.New("the tests load programs: run as root")
	}
	var chosen []mutant
	for _, f := range all() {
		if strings.Contains(f.name, only) && (!attacks || f.pkg != "") {
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
	if !faultsOnly {
		begin := time.Now()
		if out, err := c.test(ctx, tests); err != nil {
			return fmt.Errorf("the tests fail without any fault: %w\n%s", err, out)
		}
		fmt.Printf("%-66s %-36s %4.0fs  %s\n", "(none)", "", time.Since(begin).Seconds(), "nothing, as it should be")
	}
	var missed, wrong []string
	for i := range chosen {
		f := &chosen[i]
		begin := time.Now()
		by, err := c.plant(ctx, f)
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

// plant puts one fault into the copy, runs the tests, and takes it out again; by names the test that found it, "" when none did.
func (c *copied) plant(ctx context.Context, f *mutant) (by string, err error) {
	path := filepath.Join(c.tree, f.file)
	before, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	after, err := f.apply(string(before))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(after), 0o644); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, before, 0o644)) }()
	if f.program() {
		defer func() { err = errors.Join(err, c.restore(ctx)) }()
		if out, err := c.compile(ctx); err != nil {
			return "", fmt.Errorf("the programs cannot be compiled with it: %w\n%s", err, out)
		}
	}
	out, err := c.test(ctx, f.tests())
	if err == nil {
		return "", nil
	}
	if by = finder(out); by == "" || strings.Contains(out, "processed ") && strings.Contains(out, "insns") {
		return "", fmt.Errorf("no test could be run with it: %w\n%s", err, out)
	}
	return by, nil
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
