// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/nettest"
)

// Every cell names a test that there is, or says why there is none, and is there once.
func TestCells(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cells() {
		key := strings.Join([]string{c.Mode, c.Family, c.Plane, c.What}, ", ")
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
		if text, err := os.ReadFile("../kernels/main.go"); err != nil || c.Kernels != "" && !strings.Contains(string(text), strconv.Quote(c.Kernels)) {
			t.Errorf("%s: make kernels has no check %q (%v)", key, c.Kernels, err)
		}
		if (c.Test == "") == (c.Why == "") {
			t.Errorf("%s has the test %q and the reason %q", key, c.Test, c.Why)
		}
		if c.Test == "" {
			continue
		}
		folder, name, _ := strings.Cut(c.Test, " ")
		test, _, _ := strings.Cut(name, "/")
		files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %s: no tests there (%v)", key, folder, err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			nettest.Must(t, err)
			found = found || regexp.MustCompile(`(?m)^func `+test+`\(t \*testing\.T\)`).Match(text)
		}
		if !found {
			t.Errorf("%s: there is no %s in %s", key, test, folder)
		}
	}
	for _, what := range asked {
		for _, mode := range []string{"WireGuard, IPv4, eBPF, ", "WireGuard, IPv6, nftables, ", "IP in IP, IPv4, eBPF, ", "IP in IP, IPv4, nftables, ", "BGP, IPv4, eBPF, ", "BGP, IPv6, eBPF, ", "BGP, IPv4, nftables, ", "BGP, IPv6, nftables, "} {
			if !seen[mode+what] {
				t.Errorf("%s%s is not there", mode, what)
			}
		}
	}
}

func TestRead(t *testing.T) {
	results := map[string]string{}
	g := &group{folder: "a"}
	err := g.read(strings.NewReader(`{"Action":"run","Test":"TestX"}
{"Action":"pass","Test":"TestX/one"}
{"Action":"skip","Test":"TestX/two"}
{"Action":"output","Test":"TestX/three","Output":"why\n"}
{"Action":"fail","Test":"TestX/three"}
{"Action":"fail","Test":"TestX"}
`), results)
	if err != nil || len(results) != 3 || results["a TestX/one"] != "passed" || results["a TestX/three"] != "failed" || results["a TestX"] != "failed" {
		t.Errorf("results are %v (%v)", results, err)
	}
	if g.read(strings.NewReader("x\n"), results) == nil {
		t.Error("what is no event was taken")
	}
}

func TestGroups(t *testing.T) {
	got := groups([]Cell{{Test: "a TestX/one"}, {Test: "a TestX/two"}, {Test: "a TestX/one"}, {Why: "none"}, {Test: "a TestY"}, {Test: "b TestZ"}})
	if len(got) != 2 || strings.Join(got[0].patterns(), " ") != "^TestX$/^(one|two)$ ^TestY$" || strings.Join(got[1].patterns(), " ") != "^TestZ$" {
		t.Errorf("groups are %+v", got)
	}
}

func TestFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures")
	t.Setenv(nettest.FiguresVariable, path)
	nettest.Figure(t, "b", 2)
	nettest.Figure(t, "a", 3.5)
	nettest.Figure(t, "b", 1)
	r := Results{Figures: map[string][]float64{}, Cells: []Cell{{Mode: "m", What: "w", Test: "a TestX", Result: "passed"}, {Mode: "n", Why: "none", Result: "not run"}}}
	nettest.Must(t, r.readFigures(path))
	tables, err := r.tables()
	nettest.Must(t, err)
	for _, want := range []string{"`a TestX`", "none", "| b ", "3.50"} {
		if !strings.Contains(tables, want) {
			t.Errorf("%q is not in\n%s", want, tables)
		}
	}
	mark := bench.BeginMark("test/routing")
	doc := filepath.Join(t.TempDir(), "doc.md")
	nettest.Must(t, os.WriteFile(doc, []byte("before\n"+mark+"\nold\n"+bench.EndMark+"\nafter\n"), 0o600))
	nettest.Must(t, writeDoc(doc, &r))
	text, err := os.ReadFile(doc)
	nettest.Must(t, err)
	if !strings.HasPrefix(string(text), "before\n"+mark) || strings.Contains(string(text), "old") || !strings.HasSuffix(string(text), bench.EndMark+"\nafter\n") {
		t.Errorf("the document is %s", text)
	}
}
