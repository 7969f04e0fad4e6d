// SPDX-License-Identifier: Apache-2.0

// Command hostile runs the tests of attacks (TestHostile… in all packages) and writes what they
// recorded:
//
//	go run ./test/hostile [-out out/hostile.json] [-only TEXT]
//
// It fails when a test fails, when an attack was not held, and when an attack has no mutant in
// hack/mutation or the other way round: that of a test that was skipped is missing. It needs root,
// and an API server at WEIR_APISERVER_BIN_DIR, as the tests do.
package main

import (
	"bufio"
	"cmp"
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

	"github.com/weir-net/weir/internal/hostile"
)

func main() {
	out := flag.String("out", "out/hostile.json", "where to write the rows")
	only := flag.String("only", "", "only packages whose path contains this text; attacks without a row are then not missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, only string) error {
	packages, err := withAttacks(only)
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return fmt.Errorf("no package has tests of attacks (func TestHostile…) and %q in its path", only)
	}
	scratch, err := os.MkdirTemp("", "weir-hostile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	lines := filepath.Join(scratch, "rows")
	args := []string{"test", "-count=1", "-timeout=60m", "-run", "^TestHostile"}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Env = append(os.Environ(), hostile.OutputVariable+"="+lines)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	tested := cmd.Run()
	rows, err := read(lines)
	if err != nil {
		return errors.Join(tested, err)
	}
	if err := write(out, rows); err != nil {
		return errors.Join(tested, err)
	}
	errs := []error{tested, summarize(rows)}
	if only == "" {
		names, err := mutants(ctx)
		errs = append(errs, err, compare(rows, names))
	}
	return errors.Join(errs...)
}

// mutants returns the names of the attacks that have one in hack/mutation.
func mutants(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./hack/mutation", "-list")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the mutants: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"), nil
}

// compare returns the attacks that have a row or a mutant alone.
func compare(rows []hostile.Row, mutants []string) error {
	recorded := map[string]bool{}
	for _, r := range rows {
		recorded[r.Attack] = true
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(recorded)) {
		if !slices.Contains(mutants, name) {
			errs = append(errs, fmt.Errorf("no mutant in hack/mutation: %s", name))
		}
	}
	for _, name := range mutants {
		if !recorded[name] {
			errs = append(errs, fmt.Errorf("no test recorded (there is none, or it was skipped): %s", name))
		}
	}
	return errors.Join(errs...)
}

// withAttacks returns the packages that have tests of attacks.
func withAttacks(only string) ([]string, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir := "./" + filepath.Dir(path)
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") || !strings.Contains(dir, only) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "\nfunc TestHostile") {
			found[dir] = true
		}
		return nil
	})
	return slices.Sorted(maps.Keys(found)), err
}

func read(path string) ([]hostile.Row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("no attack was recorded: %w", err)
	}
	defer f.Close()
	var rows []hostile.Row
	for s := bufio.NewScanner(f); s.Scan(); {
		var r hostile.Row
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b hostile.Row) int {
		return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.Attack, b.Attack), cmp.Compare(a.Plane, b.Plane),
			cmp.Compare(a.Family, b.Family), cmp.Compare(a.Test, b.Test))
	})
	return rows, nil
}

func write(path string, rows []hostile.Row) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(rows, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// summarize prints how many attacks each actor tried, and returns what was not held.
func summarize(rows []hostile.Row) error {
	attacks := map[string]map[string]bool{}
	var errs []error
	for _, r := range rows {
		if attacks[r.Actor] == nil {
			attacks[r.Actor] = map[string]bool{}
		}
		attacks[r.Actor][r.Attack] = true
		if !r.Held {
			errs = append(errs, fmt.Errorf("not held: %s (%s, %s; %s)", r.Attack, r.Plane, r.Family, r.Test))
		}
	}
	total := 0
	for _, actor := range slices.Sorted(maps.Keys(attacks)) {
		fmt.Printf("actor %s: %d attacks\n", actor, len(attacks[actor]))
		total += len(attacks[actor])
	}
	if len(errs) == 0 {
		fmt.Printf("hostile: %d attacks in %d rows, all held\n", total, len(rows))
	}
	return errors.Join(errs...)
}
