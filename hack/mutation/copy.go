// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// scenarioFiles are the tests that play the scenario files: they are quick.
const scenarioFiles = "^(TestSim|TestPrograms)$"

// notElse are these, and those about the nftables driver, in which no fault is.
const notElse = "^(TestSim|TestPrograms|TestNFT|TestDifferentialNFT.*)$"

// timeLimit of a package's tests; alongside other work they take many times what they take alone.
const timeLimit = "-timeout=2h"

// tests are what must find the faults, the quick ones first: properties of calc, conversions,
// scenarios on the oracle and on the loaded programs, and then all else of these, the fixed rounds
// of random clusters and packets above all.
var tests = [][]string{
	{"./internal/calc/..."}, {"./internal/watch/..."}, {"./test/scenarios", "-run", scenarioFiles}, {"./test/scenarios", "-skip", notElse},
}

// copied is a copy of the tree, in a repository of its own.
type copied struct {
	tree string
	env  []string
}

// newCopy copies what git knows of the tree, as it is in the working directory, to a folder in
// scratch.
func newCopy(ctx context.Context, scratch string) (*copied, error) {
	c := &copied{tree: filepath.Join(scratch, "tree")}
	temporary := filepath.Join(scratch, "tmp")
	if err := os.MkdirAll(temporary, 0o755); err != nil {
		return nil, err
	}
	c.env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "WEIR_SEED=") || strings.HasPrefix(v, "WEIR_DIFFERENTIAL=")
	})
	c.env = append(c.env, "GOTMPDIR="+temporary, "TMPDIR="+temporary)
	out, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(c.tree, name), name); err != nil {
			return nil, err
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
		if out, err := c.command(ctx, "git", args...); err != nil {
			return nil, fmt.Errorf("git %s: %w\n%s", args[0], err, out)
		}
	}
	return c, nil
}

// tests are those that must find the fault. Where only the programs are other ones, only what loads
// them.
func (f *mutant) tests() [][]string {
	switch {
	case f.pkg != "":
		return [][]string{{f.pkg, "-run", f.run}}
	case f.program():
		return slices.DeleteFunc(slices.Clone(tests), func(t []string) bool { return t[0] != "./test/scenarios" })
	}
	return tests
}

// test runs tests, one part after the other until one fails.
func (c *copied) test(ctx context.Context, tests [][]string) (output string, err error) {
	for _, t := range tests {
		if output, err = c.command(ctx, "go", append([]string{"test", "-failfast", timeLimit}, t...)...); err != nil {
			return output, err
		}
	}
	return output, nil
}

// compile makes the programs anew; restore takes back those of the tree.
func (c *copied) compile(ctx context.Context) (output string, err error) {
	return c.command(ctx, "go", "generate", "./internal/dataplane/ebpf")
}

func (c *copied) restore(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil // the copy goes
	}
	out, err := c.command(ctx, "git", "checkout", "-q", "--", "internal/dataplane/ebpf")
	if err != nil {
		return fmt.Errorf("git checkout: %w\n%s", err, out)
	}
	return nil
}

// command runs something in the copy. Where ctx ends, so do all processes that it started.
func (c *copied) command(ctx context.Context, name string, args ...string) (output string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = c.tree, c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func copyFile(to, from string) error {
	info, err := os.Lstat(from)
	if os.IsNotExist(err) || err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil // removed from the working directory, or not part of what is tested
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
