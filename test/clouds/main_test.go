// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/bench/result"
	"github.com/weir-net/weir/internal/nettest"
)

// Every cell names a test that there is, with its subtests, or says why there is none, and is there
// once.
func TestCells(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range asks() {
		key := strings.Join([]string{c.Mode, c.Family, c.Plane, c.What}, ", ")
		if seen[key] {
			t.Errorf("%s is there twice", key)
		}
		seen[key] = true
		if (c.Test == "") == (c.Why == "") {
			t.Errorf("%s has the test %q and the reason %q", key, c.Test, c.Why)
		}
		folder, name, _ := strings.Cut(c.Test, " ")
		if c.Test == "" || folder == "test/e2e" {
			continue
		}
		test, sub, _ := strings.Cut(name, "/")
		files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
		nettest.Must(t, err)
		found, foundSub := false, sub == "" // which several tests may have
		for _, f := range files {
			text, err := os.ReadFile(f)
			nettest.Must(t, err)
			found = found || regexp.MustCompile(`(?m)^func `+test+`\(t \*testing\.T\)`).Match(text)
			foundSub = foundSub || strings.Contains(string(text), `"`+strings.ReplaceAll(sub, "_", " ")+`"`)
		}
		if !found || !foundSub {
			t.Errorf("%s: there is no %s in %s", key, name, folder)
		}
	}
}

// Each lab runs its own test, also where the name of another one begins with that.
func TestTestsOfALab(t *testing.T) {
	for _, c := range clusters {
		tests := c.tests(asks())
		if len(tests) < 5 {
			t.Errorf("%s has the tests %v", c.on, tests)
		}
		for _, cell := range tests {
			if cell.Mode != c.on {
				t.Errorf("the lab with %s runs %s of %s", c.on, cell.Test, cell.Mode)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for _, o := range []options{{parts: []string{"lab", "moon"}}, {on: "flannel"}, {resume: true, out: filepath.Join(t.TempDir(), "none")}} {
		if err := o.run(t.Context()); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestReadFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.json")
	nettest.Must(t, os.WriteFile(path, []byte(`[{"test":"TestOnAWS/new_pods","figures":{"a":2.5}},{"test":"TestOther","figures":{"b":1}}]`), 0o600))
	figures := map[string][]float64{}
	nettest.Must(t, readFigures(path, clusters[0].test, clusters[0].on, figures))
	if len(figures) != 1 || figures["aws-vpc-cni: a"][0] != 2.5 {
		t.Errorf("figures are %v", figures)
	}
}

// TestToPod: the ratio is that of the rounds in which both were measured.
func TestToPod(t *testing.T) {
	row := func(p50 func(round int) float64) *result.Row {
		var r result.Row
		for i := range latencyRounds {
			x := result.Round{Round: i + 1}
			if v := p50(i); v > 0 {
				x.Latency = &probe.Latency{P50: v}
			} else {
				x.Error = "failed"
			}
			r.Rounds = append(r.Rounds, x)
		}
		return &r
	}
	pod := row(func(i int) float64 { return float64(10 * (i + 1)) })
	if got, err := toPod(row(func(i int) float64 { return float64(11 * (i + 1) * (i % 2)) }), pod); got != 1.1 || err != nil {
		t.Errorf("the ratio is %v (%v), want 1.1", got, err)
	}
	if got, err := toPod(row(func(i int) float64 { return float64(max(0, 5-i)) }), pod); err == nil {
		t.Errorf("five rounds give the ratio %v", got)
	}
	if _, err := toPod(nil, pod); err == nil {
		t.Error("a row that was not measured has a ratio")
	}
}
