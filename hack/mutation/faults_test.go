// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
)

// Every fault has exactly one place in the tree, and changes it.
func TestFaultsHaveAPlace(t *testing.T) {
	t.Parallel()
	counted := 0
	names := map[string]bool{}
	for _, f := range all() {
		if names[f.name] {
			t.Errorf("two faults are called %q", f.name)
		}
		names[f.name] = true
		if f.program() || strings.HasPrefix(f.file, "internal/calc/") {
			counted++
		}
		b, err := os.ReadFile(filepath.Join("..", "..", f.file))
		if err != nil {
			t.Fatal(err)
		}
		if after, err := f.apply(string(b)); err != nil || after == string(b) {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	for name := range recordedAs {
		if !names[name] {
			t.Errorf("no fault is called %q", name)
		}
	}
	if counted < 10 {
		t.Errorf("%d faults in calc and the programs", counted)
	}
}

func TestFaultWithoutAPlace(t *testing.T) {
	t.Parallel()
	f := fault{"twice", "file.c", "a = 1;", "a = 2;"}
	for _, text := range []string{"", "a = 1; a = 1;", "a  = 1;"} {
		if _, err := f.apply(text); err == nil {
			t.Errorf("%q was changed", text)
		}
	}
	if after, err := f.apply("b; a = 1; c"); err != nil || after != "b; a = 2; c" {
		t.Errorf("%q, %v", after, err)
	}
}

// What the tests print says whether one of them found the fault.
func TestFinder(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ok  \tgithub.com/weir-net/weir/internal/calc\t1s\n":                                                                     "",
		"# github.com/weir-net/weir/internal/calc/peer\ninternal/calc/peer/atoms.go:1:1: syntax error\nFAIL\tx [build failed]\n": "",
		"--- FAIL: TestSim (0.01s)\n    --- FAIL: TestSim/policy-ports (0.00s)\n":                                                "TestSim/policy-ports",
		"=== RUN TestX\n--- FAIL: TestDifferential (3.10s)\n    differential_test.go:43: WEIR_SEED=1\n":                          "TestDifferential",
		"panic: runtime error: index out of range\n\ngoroutine 7 [running]:\n":                                                   "panic",
		"panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestX (1m)\n":                                                  "",
	} {
		if got := finder(text); got != want {
			t.Errorf("%q: found by %q", text, got)
		}
	}
}

// A test that is skipped, or is not there, shows nothing.
func TestShows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"=== RUN   TestHostileX\n--- PASS: TestHostileX (0.00s)\nPASS\n":                                                     true,
		"--- PASS: TestHostileX (0.00s)\n    --- PASS: TestHostileX/a (0.00s)\n    --- SKIP: TestHostileX/b (0.00s)\nPASS\n": false,
		"--- SKIP: TestHostileX (0.00s)\nPASS\n":                                                                             false,
		"testing: warning: no tests to run\nPASS\n":                                                                          false,
	} {
		if err := shows(text, nil); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	if shows("--- PASS: TestHostileX (0.00s)\n", errors.New("exit status 1")) == nil {
		t.Error("a test that fails shows something")
	}
}

// TestAttacksAreRecorded: the attacks of the last make hostile are those that have a mutant.
func TestAttacksAreRecorded(t *testing.T) {
	text, err := os.ReadFile("../../docs/results/hostile.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []hostile.Row
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	recorded, mutants := map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		recorded[r.Attack] = true
	}
	for _, m := range all() {
		if m.pkg != "" {
			mutants[m.attack()] = true
		}
	}
	for name := range recorded {
		if !mutants[name] {
			t.Errorf("no mutant has the name, or is recordedAs: %s", name)
		}
	}
	for name := range mutants {
		if !recorded[name] {
			t.Errorf("docs/results/hostile.json has no row: %s", name)
		}
	}
}
