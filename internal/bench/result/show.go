// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// Figure is one round in a few words.
func (r *Row) Figure(x *Round) string {
	if x.Error != "" {
		return "failed: " + x.Error
	}
	m := r.Main()
	v, ok := x.figures(string(r.Spec.Test), 0)[m]
	if !ok {
		return "nothing measured"
	}
	return bench.Number(v) + " " + m.Unit()
}

// cell is a median with its interval.
func cell(v Value, ok bool) string {
	if !ok {
		return ""
	}
	if len(v.All) < 2 {
		return bench.Number(v.Median)
	}
	return fmt.Sprintf("%s [%s–%s]", bench.Number(v.Median), bench.Number(v.Low), bench.Number(v.High))
}

// Show prints the tables that end a run.
func (f *File) Show(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %s\n", f.Metadata.Name, f.Cluster.DataPlane)
	c := f.Cluster
	fmt.Fprintf(w, "Kubernetes %s, %d nodes; %s → %s; %d CPUs (%s), Linux %s; TCP %s, pod MTU %s\n", c.Kubernetes, c.Nodes, c.Client.Name, c.Server.Name,
		c.Client.CPUs, c.Client.Model, c.Client.Kernel, c.Client.Congestion, f.Data.MTU)
	for _, t := range []struct {
		title string
		tests []string
		head  []Metric
	}{
		{"Bandwidth", []string{"tcp", "tcp-many", "udp", "udp-rate"}, []Metric{Bandwidth, Loss, CPUPerGB, VCPUClient, VCPUServer}},
		{"Latency", []string{"tcp-rr", "udp-rr", "crr", "http"}, []Metric{Mean, P50, P90, P99, P999, CPUPerOp}},
		{"Rates", []string{"cps", "pps", "ab"}, []Metric{Rate, Packets, Total, Loss, P50, P99}},
		{"Control plane", []string{"endpoint", "policy", "pod"}, []Metric{P50, P90, Mean, InnerP50, DaemonCPU, DaemonMem}},
		{"Idle", []string{"idle"}, []Metric{VCPUClient, VCPUServer, MemClient, MemServer}},
	} {
		if err := f.table(w, t.title, t.tests, t.head); err != nil {
			return err
		}
	}
	notes := f.Notes()
	if len(notes) > 0 {
		fmt.Fprintln(w, "\nWhat to know")
		for _, n := range notes {
			fmt.Fprintln(w, "  "+n)
		}
	}
	return nil
}

func (f *File) table(w io.Writer, title string, tests []string, head []Metric) error {
	var rows []*Row
	used := map[Metric]bool{}
	for i := range f.Rows {
		r := &f.Rows[i]
		test := r.ID[strings.LastIndex(r.ID, "/")+1:]
		for _, t := range tests {
			if t == test {
				rows = append(rows, r)
				for m := range r.Values {
					used[m] = true
				}
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	tab := bench.Table{Head: []string{title}}
	var shown []Metric
	for _, m := range head {
		if used[m] {
			shown = append(shown, m)
			tab.Head = append(tab.Head, strings.TrimSpace(string(m)+" "+m.Unit()))
		}
	}
	tab.Head = append(tab.Head, "to host")
	for _, r := range rows {
		cells := []any{r.Key()}
		for i, m := range shown {
			v, ok := r.Values[m]
			if i == 0 || m == r.Main() {
				cells = append(cells, cell(v, ok))
			} else if ok {
				cells = append(cells, bench.Number(v.Median))
			} else {
				cells = append(cells, "")
			}
		}
		text := ""
		if v, ok := r.ToHost[r.Main()]; ok {
			text = cell(v, true)
		}
		tab.Add(append(cells, text)...)
	}
	fmt.Fprintln(w)
	return tab.Write(w, false)
}

// Notes are all that makes figures mean less than they seem to. What is the same of many rows is
// one of them.
func (f *File) Notes() []string {
	out := slices.Clone(f.Warnings)
	var noisy, order []string
	rows := map[string][]string{}
	measured := 0
	for i := range f.Rows {
		r := &f.Rows[i]
		if r.ID != "idle" {
			measured++
		}
		for _, text := range r.Warnings {
			if strings.HasPrefix(text, noisyWord) {
				noisy = append(noisy, fmt.Sprintf("%s %.0f %%", r.Key(), 100*r.Values[r.Main()].Spread()))
				continue
			}
			if rows[text] == nil {
				order = append(order, text)
			}
			rows[text] = append(rows[text], r.Key())
		}
	}
	for _, text := range order {
		if len(rows[text]) >= measured && measured > 1 {
			out = append(out, "all rows: "+text)
		} else {
			out = append(out, strings.Join(rows[text], ", ")+": "+text)
		}
	}
	if len(noisy) > 0 {
		out = append(out, fmt.Sprintf("noisy, so that differences smaller than their intervals mean nothing; widths of intervals in parts of the median: %s", strings.Join(noisy, ", ")))
	}
	if f.Interrupted != "" {
		out = append(out, "the run ended early: "+f.Interrupted)
	}
	return out
}
