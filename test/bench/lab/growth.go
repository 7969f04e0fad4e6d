// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

const (
	// flat is how much the largest size may cost of the smallest.
	flat = 1.03
	// below is how much of kube-proxy's a request may take at the largest number of pods.
	below = 0.70
	// drifted is how far the machine may have drifted, either way, for the drift to be taken for
	// one: beyond that the control was disturbed.
	drifted = 0.15
)

// Growth is one entry of out/bench-services-targets.json and out/bench-pods-targets.json: a path in
// a configuration, at all sizes.
type Growth struct {
	Path          string    `json:"path"`
	Configuration string    `json:"configuration"`
	Services      []int     `json:"services"`
	Pods          []int     `json:"pods,omitempty"` // behind them, of ApacheBench's runs
	Means         []float64 `json:"means_us"`       // medians of the rounds' means, by size
	P99           []float64 `json:"p99_us"`
	Ratio         float64   `json:"ratio"` // the largest size to the smallest
	// Drift is the same ratio of a path without a data plane, where nothing grew: what else changed
	// from the one size to the other. 0 = was not measured, and Corrected is Ratio.
	Drift     float64 `json:"drift"`
	Corrected float64 `json:"corrected"`
	// OfPeers are what the largest size takes of what it takes with the other data planes.
	OfPeers map[string]float64 `json:"of_peers,omitempty"`
	Limit   float64            `json:"limit"`
	Met     bool               `json:"met"` // Corrected is within Limit; Ratio, where Drift is too large to be one
}

// control is the path without a data plane that shows the drift of another: one between pods, or
// one between hosts.
func control(path string) string {
	if strings.HasPrefix(path, "pod") {
		return rowPodRemote
	}
	return rowHostLatency
}

// growths gathers the results by path and configuration.
func growths(results []Result, pods bool) []Growth {
	var out []Growth
	find := func(path, configuration string) int {
		return slices.IndexFunc(out, func(g Growth) bool { return g.Path == path && g.Configuration == configuration })
	}
	for _, x := range results {
		path, _, _ := strings.Cut(x.Row, ", beside")
		i := find(path, x.Configuration)
		if i < 0 {
			i = len(out)
			out = append(out, Growth{Path: path, Configuration: x.Configuration, Limit: flat})
		}
		g := &out[i]
		g.Services, g.Means, g.P99 = append(g.Services, x.Services), append(g.Means, x.Median), append(g.P99, x.P99)
		if pods {
			g.Pods = append(g.Pods, x.Services*podsPerService)
		}
	}
	for i := range out {
		g := &out[i]
		last := len(g.Means) - 1
		g.Ratio = bench.Ratio(g.Means[last], g.Means[0])
		g.Corrected = g.Ratio
		if at := find(control(g.Path), none); at >= 0 && g.Configuration != none {
			c := out[at]
			from, to := slices.Index(c.Services, g.Services[0]), slices.Index(c.Services, g.Services[last])
			if from >= 0 && to >= 0 {
				g.Drift = bench.Ratio(c.Means[to], c.Means[from])
				g.Corrected = bench.Ratio(g.Ratio, g.Drift)
			}
		}
		counts := g.Corrected
		if math.Abs(g.Drift-1) > drifted {
			counts = g.Ratio
		}
		g.Met = last > 0 && counts <= g.Limit
		for _, peer := range []string{kpIPTables, kpNFTables} {
			at := find(g.Path, peer)
			if at < 0 || !strings.HasPrefix(g.Configuration, "weir-") {
				continue
			}
			p := out[at]
			largest := len(p.Services) - 1
			if mine := slices.Index(g.Services, p.Services[largest]); mine >= 0 {
				if g.OfPeers == nil {
					g.OfPeers = map[string]float64{}
				}
				g.OfPeers[peer] = bench.Ratio(g.Means[mine], p.Means[largest])
			}
		}
	}
	return out
}

// reportGrowth prints what growing costs, and writes the files.
func (r *runner) reportGrowth(results []Result) error {
	all := growths(results, r.pods != "")
	head := []string{"path", "configuration"}
	for _, size := range r.growth {
		if r.pods != "" {
			size *= podsPerService
		}
		head = append(head, fmt.Sprint(size))
	}
	t := bench.Table{Head: append(head, "largest to smallest", "drift", "corrected", "of iptables", "of nftables", "")}
	for _, g := range all {
		cells := []any{g.Path, g.Configuration}
		for _, size := range r.growth {
			if i := slices.Index(g.Services, size); i >= 0 {
				cells = append(cells, g.Means[i])
			} else {
				cells = append(cells, "–")
			}
		}
		verdict := ""
		if strings.HasPrefix(g.Configuration, "weir-") {
			verdict = fmt.Sprintf("flat (at most %.2f)", g.Limit)
			if !g.Met {
				verdict = fmt.Sprintf("MISSED (at most %.2f)", g.Limit)
			}
			if strings.HasPrefix(g.Path, rowApache) {
				for _, peer := range []string{kpIPTables, kpNFTables} {
					if of := g.OfPeers[peer]; of > below {
						verdict += fmt.Sprintf(", MISSED %.2f of %s", below, peer)
					}
				}
			}
		}
		t.Add(append(cells, ratio(g.Ratio), ratio(g.Drift), ratio(g.Corrected), ratio(g.OfPeers[kpIPTables]), ratio(g.OfPeers[kpNFTables]), verdict)...)
	}
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	return r.write(results, all)
}

// write writes the results, and what follows from them alongside.
func (r *runner) write(results []Result, follows any) error {
	if err := bench.WriteJSON(r.file(), results); err != nil {
		return err
	}
	return bench.WriteJSON(strings.TrimSuffix(r.file(), ".json")+"-targets.json", follows)
}

// Crowd is one entry of out/bench-backends-targets.json: what a Service of many backends costs of
// one of one.
type Crowd struct {
	Path          string  `json:"path"`
	Configuration string  `json:"configuration"`
	Backends      int     `json:"backends"`
	One           float64 `json:"one_us"`
	Many          float64 `json:"many_us"`
	Ratio         float64 `json:"ratio"`
	Limit         float64 `json:"limit"`
	Met           bool    `json:"met"`
}

func crowds(results []Result, backends int) []Crowd {
	var out []Crowd
	for _, x := range results {
		path, is := strings.CutSuffix(x.Row, rowMany)
		if !is {
			continue
		}
		c := Crowd{Path: path, Configuration: x.Configuration, Backends: backends, Many: x.Median, One: median(results, path+rowOne, x.Configuration), Limit: flat}
		c.Ratio = bench.Ratio(c.Many, c.One)
		c.Met = c.Ratio > 0 && c.Ratio <= c.Limit
		out = append(out, c)
	}
	return out
}

// reportCrowd prints what many backends cost, and writes the files.
func (r *runner) reportCrowd(results []Result) error {
	all := crowds(results, r.backends)
	t := bench.Table{Head: []string{"path", "configuration", "1 backend", fmt.Sprintf("%d backends", r.backends), "ratio", ""}}
	for _, c := range all {
		verdict := ""
		if strings.HasPrefix(c.Configuration, "weir-") {
			verdict = fmt.Sprintf("met (at most %.2f)", c.Limit)
			if !c.Met {
				verdict = fmt.Sprintf("MISSED (at most %.2f)", c.Limit)
			}
		}
		t.Add(c.Path, c.Configuration, c.One, c.Many, ratio(c.Ratio), verdict)
	}
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	return r.write(results, all)
}
