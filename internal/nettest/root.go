// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// NeedRoot skips a test that needs root, and says what for: "making network namespaces".
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("NOT RUN: %s needs root: run the test with sudo", what)
	}
}

// insideEnv is set in a process that Main or Isolated started.
const insideEnv = "WEIR_NETTEST_INSIDE"

// Main is for TestMain: it runs the tests of a package in a process in a network namespace of its
// own, which ends with the process, and does not return. flags are further namespaces to make
// (CLONE_NEWNS); setUp, if not nil, is called in the namespace before the tests. Without root the
// tests run in this process: those that need the namespace call NeedRoot.
func Main(m *testing.M, flags uintptr, setUp func() error) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(insideEnv) != "" {
		if setUp != nil {
			if err := setUp(); err != nil {
				fmt.Fprintln(os.Stderr, "setting up the tests' namespace:", err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	cmd := inside(flags, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "running the tests in a namespace of their own:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Isolated runs the calling test once more, in a process in a network namespace of its own, with
// what env adds to the environment, and reports whether this is that process: in the other one the
// test returns. It is skipped without root.
func Isolated(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	NeedRoot(t, "making a network namespace")
	cmd := inside(0, "-test.run="+OnlyTest(t.Name()), "-test.v")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	Played(t, out)
	return false
}

// OnlyTest is the pattern of one test (-test.run), each part of its name by itself.
func OnlyTest(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// Played is for a test that ran once more in a process of this program, which ended well and said
// out (-test.v): it is skipped where it skipped itself there, and fails where it was not run.
func Played(t *testing.T, out []byte) {
	t.Helper()
	skipped, err := outcome(string(out), t.Name())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if skipped {
		t.Skipf("%s", out)
	}
}

// outcome reads what a test program that succeeded said of one test (-test.v): it ends well too
// where the test skipped itself, or where it has no test of that name.
func outcome(out, name string) (skipped bool, err error) {
	for line := range strings.Lines(out) {
		verdict, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if of, _, _ := strings.Cut(rest, " ("); of != name {
			continue
		}
		switch verdict {
		case "--- PASS":
			return false, nil
		case "--- SKIP":
			return true, nil
		}
	}
	return false, fmt.Errorf("the process of %s did not run it", name)
}

// inside is this program once more, in namespaces of its own.
func inside(flags uintptr, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | flags, Pdeathsig: syscall.SIGKILL}
	return cmd
}
