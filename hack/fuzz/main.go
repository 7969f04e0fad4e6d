// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs each fuzz target of the tree for a while, one after the other, and keeps inputs
// that reached new code in the target's testdata/fuzz, where go test plays them:
//
//	go run ./hack/fuzz [-time 2m] [-only TEXT] [-keep 20]
//
// It ends with an error when a target failed; the failing input is then in testdata/fuzz too.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// target is a fuzz function of a package.
type target struct{ dir, name string }

func main() {
	each := flag.Duration("time", 2*time.Minute, "how long to run each target")
	only := flag.String("only", "", "only targets whose package or name contains this text")
	keep := flag.Int("keep", 20, "how many of the smallest new inputs of a target to keep")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *each, *only, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, each time.Duration, only string, keep int) error {
	all, err := targets(only)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("no fuzz target has %q in its package or name", only)
	}
	var errs []error
	for i, t := range all {
		fmt.Printf("fuzz %d of %d: %s %s for %s\n", i+1, len(all), t.dir, t.name, each)
		if err := t.run(ctx, each, keep); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", t.dir, t.name, err))
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, errors.New("interrupted"))...)
		}
	}
	if len(errs) == 0 {
		fmt.Printf("fuzz: %d targets, %s each, none failed\n", len(all), each)
	}
	return errors.Join(errs...)
}

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// targets finds the fuzz functions below the working directory.
func targets(only string) (out []target, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			t := target{"./" + filepath.Dir(path), string(m[1])}
			if strings.Contains(t.dir+" "+t.name, only) {
				out = append(out, t)
			}
		}
		return err
	})
	return out, err
}

// run fuzzes, in a cache of inputs of its own.
func (t target) run(ctx context.Context, each time.Duration, keep int) error {
	cache, err := os.MkdirTemp("", "weir-fuzz-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), t.dir,
		"-args", "-test.fuzzcachedir="+cache)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return errors.Join(cmd.Run(), t.keep(filepath.Join(cache, t.name), keep))
}

// keep copies the smallest inputs that were found; their names are digests of what is in them.
func (t target) keep(found string, keep int) error {
	entries, err := os.ReadDir(found)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	texts := map[string][]byte{}
	for _, e := range entries {
		if texts[e.Name()], err = os.ReadFile(filepath.Join(found, e.Name())); err != nil {
			return err
		}
	}
	names := slices.SortedFunc(maps.Keys(texts), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(texts[a]), len(texts[b])), cmp.Compare(a, b))
	})
	dir := filepath.Join(t.dir, "testdata", "fuzz", t.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names[:min(keep, len(names))] {
		if err := os.WriteFile(filepath.Join(dir, name), texts[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
