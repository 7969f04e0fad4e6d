package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// flat is how much the largest size may cost of the smallest.
const flat = 1.03

// Growth is one entry of out/bench-services-targets.json: a path in a configuration, at all sizes.
type Growth struct {
	Path          string    `json:"path"`
	Configuration string    `json:"configuration"`
	Services      []int     `json:"services"`
	Means         []float64 `json:"means_us"` // medians of the rounds' means, by size
	P99           []float64 `json:"p99_us"`
	Ratio         float64   `json:"ratio"` // the largest size to the smallest
	Limit         float64   `json:"limit"`
	Met           bool      `json:"met"`
}

// growths gathers the results by path and configuration.
func growths(results []Result) []Growth {
	var out []Growth
	for _, x := range results {
		path, _, _ := strings.Cut(x.Row, ", beside")
		i := slices.IndexFunc(out, func(g Growth) bool { return g.Path == path && g.Configuration == x.Configuration })
		if i < 0 {
			i = len(out)
			out = append(out, Growth{Path: path, Configuration: x.Configuration, Limit: flat})
		}
		g := &out[i]
		g.Services, g.Means, g.P99 = append(g.Services, x.Services), append(g.Means, x.Median), append(g.P99, x.P99)
	}
	for i := range out {
		g := &out[i]
		g.Ratio = bench.Ratio(g.Means[len(g.Means)-1], g.Means[0])
		g.Met = len(g.Means) > 1 && g.Ratio <= g.Limit
	}
	return out
}

// reportGrowth prints what growing costs, and writes the files.
func (r *runner) reportGrowth(results []Result) error {
	all := growths(results)
	head := []string{"path", "configuration"}
	for _, size := range r.growth {
		head = append(head, fmt.Sprint(size))
	}
	t := bench.Table{Head: append(head, "largest to smallest", "")}
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
		}
		t.Add(append(cells, ratio(g.Ratio), verdict)...)
	}
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	if err := bench.WriteJSON(r.file(), results); err != nil {
		return err
	}
	return bench.WriteJSON(strings.TrimSuffix(r.file(), ".json")+"-targets.json", all)
}
