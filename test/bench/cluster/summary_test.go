// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench"
)

// measured are results of two sizes.
func measured() []*Result {
	agent := func(rss float64) *AgentResult {
		return &AgentResult{RSS: rss, RSSAfter: rss + 5, At100: 12, Rows: []Row{{Name: "20 pods", Effect: map[string]*sample{"all": {raw: []float64{7}}}}}}
	}
	return []*Result{{Nodes: 100, Pods: 10010, Fed: agent(50), Away: &Away{Seconds: 300, InForceS: 1.5, StreamsEnded: 2, Snapshots: 2, Probes: 9}},
		{Nodes: 1000, Pods: 100010, Fed: agent(60), Direct: agent(200), AgentRSS: 65, LatencyRow: "20 pods", APIWatchesDirect: 26, OnePodStreams: 2}}
}

// TestSummary holds the keys of the file that is compared, what an agent without a fan-out has in
// it, and what is next to it.
func TestSummary(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.json")
	if err := write(file, measured()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(text, &got); err != nil || len(got) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	want := strings.Fields("agent_mcore_at_100 agent_rss_mib api_watches bytes_snapshot direct effect_p50_ms effect_p99_ms fanout_cores fanout_rss_mib nodes pods start_all_s")
	if keys := slices.Sorted(maps.Keys(got[1])); !slices.Equal(keys, want) {
		t.Errorf("keys %q", keys)
	}
	if d := got[1]["direct"].(map[string]any); d["agent_rss_mib"] != 205.0 || d["effect_p50_ms"] != 7.0 || d["api_watches"] != 26.0 {
		t.Errorf("direct: %v", d)
	}
	var rows []*Result
	if text, err = os.ReadFile(rowsFile(file)); err != nil || json.Unmarshal(text, &rows) != nil || rows[1].RSSToReference != 1.2 || len(rows[1].Fed.Rows) != 1 {
		t.Errorf("rows: %v %s", err, text)
	}
}

// TestDocument holds that the tables are put between the marks, and say what is missed.
func TestDocument(t *testing.T) {
	t.Parallel()
	doc := filepath.Join(t.TempDir(), "x.md")
	if err := os.WriteFile(doc, []byte("before\n\n"+bench.BeginMark("test/bench/cluster")+"\nold\n"+bench.EndMark+"\n\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is written once can be written again
		if err := present(measured(), "", "", doc); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.SplitSeq(string(text), "\n") {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{"before", "after", "| agent: memory, MiB | ≤ 80 | 65.0 | met |", "| agent: memory after its start, by that with 100 nodes | ≤ 1.10 | 1.20 | missed |",
		"| streams that a policy of one pod is sent on | 1 | 2.00 | missed |", "| fan-out: start, s | ≤ 15 | – | not measured |",
		"| API server back: a change in force after, s | 1.50 | – |",
		"100 nodes, the API server away for 300 s: 2 streams ended, 2 snapshots or parts of them were sent, 0 of 9 probes were not treated as before."} {
		if !lines[want] {
			t.Errorf("there is no line %q in\n%s", want, text)
		}
	}
	if lines["old"] {
		t.Error("what was between the marks is still there")
	}
	if err := present(measured(), "", "", filepath.Join(t.TempDir(), "none.md")); err == nil {
		t.Error("a document that is not there is written")
	}
}

// TestHighest holds which rate is found, also where each or none makes the machine too busy.
func TestHighest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		each float64 // what a change takes of the machine
		want int
	}{{0.001, 300}, {0.02, 30}, {0.3, 2}, {0.8, 0}} {
		got := 0
		if at := highest(func(rate int) float64 { return c.each * float64(rate) }); at >= 0 {
			got = steps[at]
		}
		if got != c.want {
			t.Errorf("with %v a change the highest rate is %d, want %d", c.each, got, c.want)
		}
	}
}
