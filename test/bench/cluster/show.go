// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/weir-net/weir/internal/bench"
)

// show writes the tables of a file of results as Markdown, and what else it is asked for.
func show(path, summary, picture, doc string, to io.Writer) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var results []*Result
	if err := json.Unmarshal(text, &results); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := present(results, summary, picture, doc); err != nil {
		return err
	}
	return markdown(results, to)
}

// markdown writes the tables.
func markdown(results []*Result, to io.Writer) error {
	if len(results) == 0 {
		return errors.New("there are no results")
	}
	largest := slices.MaxFunc(results, func(a, b *Result) int { return cmp.Compare(a.Nodes, b.Nodes) })
	if err := wantedTable(largest).Write(to, true); err != nil {
		return err
	}
	fmt.Fprintln(to)
	sizes := &bench.Table{Head: []string{"nodes"}}
	for _, r := range results {
		sizes.Head = append(sizes.Head, strconv.Itoa(r.Nodes))
	}
	for _, of := range figures {
		row := []any{of.name}
		for _, r := range results {
			if v := of.of(r); v == 0 {
				row = append(row, "–")
			} else {
				row = append(row, v)
			}
		}
		sizes.Add(row...)
	}
	if err := sizes.Write(to, true); err != nil {
		return err
	}
	for _, r := range results {
		if a := r.Away; a != nil {
			fmt.Fprintf(to, "\n%d nodes, the API server away for %.0f s: %d streams ended, %d snapshots or parts of them were sent, %d of %d probes were not treated as before.\n",
				r.Nodes, a.Seconds, a.StreamsEnded, a.Snapshots, a.ProbesFailed, a.Probes)
		}
	}
	for _, r := range results {
		fmt.Fprintf(to, "\n%d nodes, fed by a fan-out, %s:\n\n", r.Nodes, r.Machine)
		if err := loadsTable(r.Fed, true).Write(to, true); err != nil {
			return err
		}
		if err := grownTable(to, r, r.Grown, true); err != nil {
			return err
		}
		if r.Direct != nil {
			fmt.Fprintf(to, "\n%d nodes, without a fan-out:\n\n", r.Nodes)
			if err := loadsTable(r.Direct, false).Write(to, true); err != nil {
				return err
			}
			if err := grownTable(to, r, r.GrownDirect, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// grownTable writes the rows of many policies, or why there are none.
func grownTable(to io.Writer, r *Result, g *Grown, fed bool) error {
	if g == nil {
		return nil
	}
	how := map[bool]string{true: "fed by a fan-out", false: "without a fan-out"}[fed]
	fmt.Fprintf(to, "\n%d nodes, %s, with %d policies in place of %d", r.Nodes, how, g.Policies, r.Policies)
	if g.Error != "" {
		fmt.Fprintf(to, ": %s\n", g.Error)
		return nil
	}
	fmt.Fprint(to, ":\n\n")
	return loadsTable(&AgentResult{Rows: g.Rows}, fed).Write(to, true)
}

// figures are those of a size that are looked at first.
var figures = []struct {
	name string
	of   func(*Result) float64
}{
	{"pods", func(r *Result) float64 { return float64(r.Pods) }},
	{"agent: memory, MiB", func(r *Result) float64 { return r.AgentRSS }},
	{"agent: memory after its start, by that with 100 nodes", func(r *Result) float64 { return r.RSSToReference }},
	{"agent: mcore, nothing changes", func(r *Result) float64 { return r.AgentIdle }},
	{"agent: mcore, 20 pods/s", func(r *Result) float64 { return r.AgentAt20 }},
	{"agent: mcore, 100 pods/s", func(r *Result) float64 { return r.AgentAt100 }},
	{"agent: start, s", func(r *Result) float64 { return r.AgentStart }},
	{"agent without fan-out: memory, MiB", func(r *Result) float64 { return direct(r).RSSAfter }},
	{"agent without fan-out: mcore, nothing changes", func(r *Result) float64 { return direct(r).Idle }},
	{"agent without fan-out: mcore, 20 pods/s", func(r *Result) float64 { return direct(r).At20 }},
	{"agent without fan-out: mcore, 100 pods/s", func(r *Result) float64 { return direct(r).At100 }},
	{"agent without fan-out: start, s", func(r *Result) float64 { return direct(r).StartSeconds }},
	{"fan-out: memory, MiB", func(r *Result) float64 { return r.FanOutRSS }},
	{"fan-out: cores, the most of all loads", func(r *Result) float64 { return r.FanOutCores }},
	{"fan-out: start, s", func(r *Result) float64 { return r.FanOutStart }},
	{"all agents start, s", func(r *Result) float64 { return r.StartAllSeconds }},
	{"snapshot of a node, MB", func(r *Result) float64 { return r.BytesSnapshot / 1e6 }},
	{"change of a pod to a node, bytes", func(r *Result) float64 { return r.BytesPerChange }},
	{"pods that change each second, machine at most 70 % busy", func(r *Result) float64 { return r.LatencyRate }},
	{"change to effect, p50, ms", func(r *Result) float64 { return r.EffectP50 }},
	{"change to effect, p99, ms", func(r *Result) float64 { return r.EffectP99 }},
	{"change to the last node, p50, ms", func(r *Result) float64 { return r.ReceivedP50 }},
	{"change to the last node, p99, ms", func(r *Result) float64 { return r.ReceivedP99 }},
	{"policy of all pods, to its effect, ms", func(r *Result) float64 { return fed(r).EveryoneMs }},
	{"policy of all pods, the agent's CPU, ms", func(r *Result) float64 { return fed(r).EveryoneCPU }},
	{"many policies", func(r *Result) float64 { return float64(grown(r).Policies) }},
	{"many policies: in force after the last was written, s", func(r *Result) float64 { return grown(r).InForceS }},
	{"many policies: the agent's CPU, s", func(r *Result) float64 { return grown(r).AgentCPU }},
	{"many policies: agent's memory, MiB", func(r *Result) float64 { return grown(r).AgentRSS }},
	{"many policies: fan-out's memory, MiB", func(r *Result) float64 { return most(grown(r).FanOutRSS) }},
	{"many policies: in force, without fan-out, s", func(r *Result) float64 { return orEmpty(r.GrownDirect).InForceS }},
	{"many policies: memory without fan-out, MiB", func(r *Result) float64 { return orEmpty(r.GrownDirect).AgentRSS }},
	{"streams that a policy of one pod is sent on", func(r *Result) float64 { return float64(r.OnePodStreams) }},
	{"memory of all processes, MiB", func(r *Result) float64 { return r.AllRSS }},
	{"watches at the API server of an agent without fan-out", func(r *Result) float64 { return float64(r.APIWatchesDirect) }},
	{"a fan-out is killed: all served again, s", func(r *Result) float64 {
		if r.Lost == nil {
			return 0
		}
		return r.Lost.AllServedS
	}},
	{"what each of its nodes lacked then, kB", func(r *Result) float64 {
		if r.Lost == nil {
			return 0
		}
		return r.Lost.BytesEach / 1e3
	}},
	{"API server away, s", func(r *Result) float64 { return away(r).Seconds }},
	{"API server away: fan-outs said so after, s", func(r *Result) float64 { return most(away(r).SaidAfterS) }},
	{"API server away: nodes that were served at the least", func(r *Result) float64 { return float64(away(r).LeastServed) }},
	{"API server back: fan-outs in touch after, s", func(r *Result) float64 { return most(away(r).BackAfterS) }},
	{"API server back: a change in force after, s", func(r *Result) float64 { return away(r).InForceS }},
	{"API server back: a change at the last node after, s", func(r *Result) float64 { return away(r).ReceivedAllS }},
}

func direct(r *Result) *AgentResult { return orEmpty(r.Direct) }
func fed(r *Result) *AgentResult    { return orEmpty(r.Fed) }
func grown(r *Result) *Grown        { return orEmpty(r.Grown) }

// orEmpty is what was measured, or nothing.
func orEmpty[T any](of *T) *T {
	if of == nil {
		return new(T)
	}
	return of
}

func away(r *Result) *Away { return orEmpty(r.Away) }

func most(of []float64) (m float64) {
	for _, v := range of {
		m = max(m, v)
	}
	return m
}

// loadsTable has a row for each load.
func loadsTable(a *AgentResult, fed bool) *bench.Table {
	t := &bench.Table{Head: []string{"changes each second", "agent, mcore", "pod, p50/p99", "policy, p50/p99", "endpoint, p50/p99", "machine busy (others, cores)"}}
	if fed {
		t.Head = append(t.Head, "fan-outs, cores", "last node, p50/p99", "bytes a change and node")
	}
	if a == nil {
		return t
	}
	times := func(m *sample) string {
		if m == nil {
			return "–"
		}
		return bench.Number(m.P50) + "/" + bench.Number(m.P99)
	}
	for _, r := range a.Rows {
		row := []any{r.Name, r.AgentMcore, times(r.Effect["pod"]), times(r.Effect["policy"]), times(r.Effect["slice"]), fmt.Sprintf("%.0f %% (%.2f)", 100*r.BusyDuring, r.ForeignDuring)}
		if fed {
			cores := ""
			for i, c := range r.FanOutCores {
				if i > 0 {
					cores += ", "
				}
				cores += bench.Number(c)
			}
			sent := "–"
			if r.BytesPerChange > 0 {
				sent = bench.Number(r.BytesPerChange)
			}
			row = append(row, cores, times(r.Received["all"]), sent)
		}
		t.Add(row...)
	}
	return t
}
