// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench"
)

const (
	someCells = `[{"row": "a → b, connections", "configuration": "weir-tunnel", "rounds": 3, "dropped": 1, "median": 34.56, "ratio_to_host": 1.05},
{"row": "a → b, connections", "configuration": "none", "rounds": 3, "median": 33, "ratio_to_host": 1},
{"row": "a → b, connections", "configuration": "new", "rounds": 3, "median": 44, "ratio_to_host": 1.33},
{"row": "a → c, connections", "configuration": "weir-dsr", "rounds": 2, "disturbed": 1, "median": 40, "ratio_to_host": 1.2},
{"row": "a → b, TCP stream", "configuration": "none", "rounds": 3, "median": 50, "ratio_to_host": 1, "cpu_s_per_gb": 0.3}]`
	someTargets = `[{"target": "A", "reached": 0.9, "limit": 1, "met": true}, {"target": "B", "reached": 0.9, "limit": 1, "at_least": true}, {"target": "C", "limit": 1}]`
	someMachine = `{"date": "2026-11-22T12:00:00Z", "cpus": 2, "model": "X", "kernel": "6.18"}`
)

// TestDocument writes a document's tables twice: what is around them stays, and a second time
// changes nothing.
func TestDocument(t *testing.T) {
	in, docs := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"bench.json": someCells, "bench-targets.json": someTargets, "bench-machine.json": someMachine} {
		if err := os.WriteFile(filepath.Join(in, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	doc, pictures := filepath.Join(docs, "doc.md"), filepath.Join(docs, "bench")
	if err := run(in, pictures, doc); err == nil {
		t.Fatal("a document that is not there was written")
	}
	for _, text := range []string{"no marks", bench.BeginMark(program), bench.EndMark + bench.BeginMark(program)} {
		if err := os.WriteFile(doc, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(in, pictures, doc); err == nil || !strings.Contains(err.Error(), "lacks the line") {
			t.Errorf("a document without marks (%q): %v", text, err)
		}
	}
	if err := os.WriteFile(doc, []byte("before\n"+bench.BeginMark(program)+"\nold\n"+bench.EndMark+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for range 2 {
		if err := run(in, pictures, doc); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	if texts[0] != texts[1] {
		t.Errorf("the second time it is\n%s\nnot\n%s", texts[1], texts[0])
	}
	got := strings.Join(strings.Fields(texts[0]), " ")
	for _, want := range []string{
		"before " + bench.BeginMark(program), bench.EndMark + " after", "Measured on 2026-11-22, 2 CPUs (X), Linux 6.18: medians of 3 rounds; 14 runs count, 1 of them disturbed by other work, and 1 others were dropped",
		"| path | none | weir-tunnel | weir-dsr | new |", "| a → b | 33.0 (1.00) | 34.6 (1.05) | = tunnel | 44.0 (1.33) |", "| a → c | – | – | 40.0 (1.20) | – |",
		"| 50.0 (1.00), 0.30 |", "| A | at most 1.00 | 0.90 | met |", "| B | at least 1.00 | 0.90 | missed |", "| C | at most 1.00 | – | not measured |",
		"(bench/matrix-connections.svg)", "(bench/bench.json)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, texts[0])
		}
	}
	if strings.Contains(got, "old") || strings.Contains(got, "matrix-udp") {
		t.Errorf("what was not measured, or was there before, in\n%s", texts[0])
	}
	for _, name := range []string{"matrix-connections.svg", "matrix-streams.svg", "bench.json"} {
		if st, err := os.Stat(filepath.Join(pictures, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
