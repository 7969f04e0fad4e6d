// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// Summary is what is compared of a size.
type Summary struct {
	Nodes         int            `json:"nodes"`
	Pods          int            `json:"pods"`
	AgentRSS      float64        `json:"agent_rss_mib"`
	AgentAt100    float64        `json:"agent_mcore_at_100"`
	FanOutRSS     float64        `json:"fanout_rss_mib"`
	FanOutCores   float64        `json:"fanout_cores"`
	EffectP50     float64        `json:"effect_p50_ms"`
	EffectP99     float64        `json:"effect_p99_ms"`
	StartAll      float64        `json:"start_all_s"`
	BytesSnapshot float64        `json:"bytes_snapshot"`
	APIWatches    int            `json:"api_watches"`
	Direct        *DirectSummary `json:"direct"`
}

// DirectSummary is the part of it that an agent without a fan-out has.
type DirectSummary struct {
	AgentRSS   float64 `json:"agent_rss_mib"`
	AgentAt100 float64 `json:"agent_mcore_at_100"`
	EffectP50  float64 `json:"effect_p50_ms"`
	EffectP99  float64 `json:"effect_p99_ms"`
	APIWatches int     `json:"api_watches"`
}

func (r *Result) summary() Summary {
	out := Summary{r.Nodes, r.Pods, r.AgentRSS, r.AgentAt100, r.FanOutRSS, r.FanOutCores, r.EffectP50, r.EffectP99, r.StartAllSeconds, r.BytesSnapshot, r.APIWatches, nil}
	if d := r.Direct; d != nil {
		out.Direct = &DirectSummary{AgentRSS: max(d.RSS, d.RSSAfter), AgentAt100: d.At100, APIWatches: r.APIWatchesDirect}
		if row := d.row(r.LatencyRow); row != nil { // with the same load
			e := row.Effect["all"].summary()
			out.Direct.EffectP50, out.Direct.EffectP99 = e.P50, e.P99
		}
	}
	return out
}

// reference is the number of nodes of the cluster whose agent those of others are compared with: it
// has the same Services, with as many endpoints, and as many pods of its own.
const reference = 100

// write writes the file of what is compared of each size, and next to it all that was measured.
func write(file string, results []*Result) error {
	if err := writeSummary(file, results); err != nil {
		return err
	}
	return bench.WriteJSON(rowsFile(file), results)
}

func writeSummary(file string, results []*Result) error {
	summaries := []Summary{}
	for _, r := range results {
		summaries = append(summaries, r.summary())
	}
	refer(results)
	return bench.WriteJSON(file, summaries)
}

// refer compares the memory of agents with that in the cluster of reference, where there is one.
func refer(results []*Result) {
	for _, of := range results {
		if of.Nodes != reference || of.Fed == nil || of.Fed.RSS == 0 {
			continue
		}
		for _, r := range results {
			if r.Fed != nil {
				r.RSSToReference = r.Fed.RSS / of.Fed.RSS
			}
		}
	}
}

// rowsFile is where all goes that was measured.
func rowsFile(summary string) string { return strings.TrimSuffix(summary, ".json") + "-rows.json" }

// present draws results and writes them into a document, as far as there are files for that, and
// their summary.
func present(results []*Result, summary, picture, doc string) error {
	refer(results)
	if summary != "" {
		if err := writeSummary(summary, results); err != nil {
			return err
		}
	}
	if picture != "" {
		if err := draw(results, picture); err != nil {
			return err
		}
	}
	if doc == "" {
		return nil
	}
	var tables bytes.Buffer
	if err := markdown(results, &tables); err != nil {
		return err
	}
	return bench.Rewrite(doc, "test/bench/cluster", tables.String())
}

// wanted are the figures that a size is to have.
var wanted = []struct {
	name, bound string
	most        float64
	of          func(*Result) (float64, bool) // false = it was not measured
}{
	{"agent: memory, MiB", "≤ 80", 80, func(r *Result) (float64, bool) { return some(r.AgentRSS) }},
	{"agent: memory after its start, by that with 100 nodes", "≤ 1.10", 1.1, func(r *Result) (float64, bool) { return some(r.RSSToReference) }},
	{"agent: mcore, 100 pods/s", "≤ 20", 20, func(r *Result) (float64, bool) { return some(r.AgentAt100) }},
	{"fan-out: cores", "≤ 1", 1, func(r *Result) (float64, bool) { return some(r.FanOutCores) }},
	{"fan-out: memory, MiB", "≤ 2048", 2048, func(r *Result) (float64, bool) { return some(r.FanOutRSS) }},
	{"change to effect, p50, ms", "≤ 50", 50, func(r *Result) (float64, bool) { return some(r.EffectP50) }},
	{"change to effect, p99, ms", "≤ 500", 500, func(r *Result) (float64, bool) { return some(r.EffectP99) }},
	{"all agents start, s", "≤ 60", 60, func(r *Result) (float64, bool) { return some(r.StartAllSeconds) }},
	{"fan-out: start, s", "≤ 15", 15, func(r *Result) (float64, bool) { return some(r.FanOutStart) }},
	{"streams that a policy of one pod is sent on", "1", 1, func(r *Result) (float64, bool) { return some(float64(r.OnePodStreams)) }},
	{"agent's watches at the API server", "0", 0, func(r *Result) (float64, bool) { return float64(r.APIWatches), r.Fed != nil }},
}

func some(v float64) (float64, bool) { return v, v > 0 }

// wantedTable says how the largest size does.
func wantedTable(r *Result) *bench.Table {
	t := &bench.Table{Head: []string{fmt.Sprintf("%d nodes", r.Nodes), "wanted", "measured", ""}}
	for _, w := range wanted {
		v, ok := w.of(r)
		switch {
		case !ok:
			t.Add(w.name, w.bound, "–", "not measured")
		case v > w.most:
			t.Add(w.name, w.bound, v, "missed")
		default:
			t.Add(w.name, w.bound, v, "met")
		}
	}
	return t
}
