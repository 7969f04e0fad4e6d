// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/weir-net/weir/internal/bench"
)

// cell is an entry of bench.json: a path in a configuration.
type cell struct {
	Row           string  `json:"row"`
	Configuration string  `json:"configuration"`
	Rounds        int     `json:"rounds"`
	Dropped       int     `json:"dropped"`
	Disturbed     int     `json:"disturbed"`
	Median        float64 `json:"median"`
	Low           float64 `json:"low"`
	High          float64 `json:"high"`
	RatioToHost   float64 `json:"ratio_to_host"`
	CPUPerGB      float64 `json:"cpu_s_per_gb"`
}

// target is an entry of bench-targets.json.
type target struct {
	Name    string  `json:"target"`
	Reached float64 `json:"reached"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"`
	Met     bool    `json:"met"`
}

// matrix is what `make bench` measured.
type matrix struct {
	cells   []cell
	targets []target
	machine bench.Machine
}

// group is the rows of one kind: a table, and a picture.
type group struct{ file, suffix, title, unit string }

var groups = []group{
	{"matrix-connections.svg", ", connections", "Connect, request, close", "µs"},
	{"matrix-streams.svg", ", TCP stream", "One TCP stream", "Gbit/s"},
	{"matrix-udp.svg", ", UDP round trip", "UDP round trip of 64 bytes", "µs"},
	{"matrix-rate.svg", ", UDP at a fixed rate", "UDP at 250 Mbit/s, datagrams of 1,400 bytes", "CPU seconds of client, server and path for 10^9 bytes"},
}

// readMatrix returns nil where nothing was measured.
func readMatrix(in string) (*matrix, error) {
	var m matrix
	for _, f := range []struct {
		name string
		into any
	}{{"bench.json", &m.cells}, {"bench-targets.json", &m.targets}, {"bench-machine.json", &m.machine}} {
		raw, err := os.ReadFile(filepath.Join(in, f.name))
		if errors.Is(err, fs.ErrNotExist) {
			fmt.Println("plot-bench: no", filepath.Join(in, f.name))
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, f.into); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return &m, nil
}

// order is that of the configurations; others come after these.
var order = []string{"none", "kube-proxy-iptables", "kube-proxy-nftables", "weir-tunnel", "weir-dsr", "weir-path", "weir-nft"}

// configurations are those that were measured.
func (m *matrix) configurations() (out []string) {
	for _, c := range m.cells {
		if !slices.Contains(out, c.Configuration) {
			out = append(out, c.Configuration)
		}
	}
	place := func(name string) int { return (slices.Index(order, name) + len(order) + 1) % (len(order) + 1) }
	slices.SortStableFunc(out, func(a, b string) int { return place(a) - place(b) })
	return out
}

// rows are the paths of a group.
func (m *matrix) rows(g group) (out []string) {
	for _, c := range m.cells {
		if strings.HasSuffix(c.Row, g.suffix) && !slices.Contains(out, c.Row) {
			out = append(out, c.Row)
		}
	}
	return out
}

func (m *matrix) at(row, configuration string) *cell {
	i := slices.IndexFunc(m.cells, func(c cell) bool { return c.Row == row && c.Configuration == configuration })
	if i < 0 {
		return nil
	}
	return &m.cells[i]
}

// draw writes a group's picture: a bar for each configuration at each path.
func (m *matrix) draw(g group, dir string) error {
	rows, configurations := m.rows(g), m.configurations()
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = g.title, g.unit
	width, highest := vg.Points(9), 0.0
	for n, name := range configurations {
		values := make(plotter.Values, len(rows))
		for i, row := range rows {
			if c := m.at(row, name); c != nil {
				values[i] = c.Median
			}
			highest = max(highest, values[i])
		}
		chart, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		chart.Color, chart.LineStyle.Width = plotutil.Color(n), 0
		chart.Offset = width * vg.Length(float64(n)-float64(len(configurations)-1)/2)
		p.Add(chart)
		p.Legend.Add(name, chart)
	}
	labels := make([]string, len(rows))
	for i, row := range rows {
		labels[i] = strings.Replace(strings.TrimSuffix(row, g.suffix), ", ", ",\n", 1)
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max, p.Y.Min = -0.5, float64(len(rows))-0.5, 0 // whole bars at the edges
	p.Y.Max = highest * (1.1 + 0.06*float64(len(configurations)))
	p.Legend.Top = true
	return p.Save(vg.Length(len(rows))*(width*vg.Length(len(configurations))+vg.Points(40))+2*vg.Centimeter, 10*vg.Centimeter, filepath.Join(dir, g.file))
}

// program is this one, as the marks name it between which the document is written anew.
const program = "hack/plot-bench"

// document puts the tables into a document, between the marks.
func (m *matrix) document(path, pictures string) error {
	folder, err := filepath.Rel(filepath.Dir(path), pictures)
	if err != nil {
		return err
	}
	tables, err := m.markdown(folder)
	if err != nil {
		return err
	}
	return bench.Rewrite(path, program, tables)
}

// markdown is the tables, with pictures from a folder.
func (m *matrix) markdown(folder string) (string, error) {
	var b strings.Builder
	runs, dropped, disturbed, rounds := 0, 0, 0, 0
	for _, c := range m.cells {
		runs, dropped, disturbed, rounds = runs+c.Rounds, dropped+c.Dropped, disturbed+c.Disturbed, max(rounds, c.Rounds)
	}
	fmt.Fprintf(&b, "Measured on %v: medians of %d rounds; %d runs count, %d of them disturbed by other work, and %d others were dropped for that. Raw data: [bench.json](%s/bench.json).\n", m.machine, rounds, runs, disturbed, dropped, folder)
	for _, g := range groups {
		rows := m.rows(g)
		if len(rows) == 0 {
			continue
		}
		cpu := slices.ContainsFunc(rows, func(row string) bool {
			return slices.ContainsFunc(m.cells, func(c cell) bool { return c.Row == row && c.CPUPerGB > 0 })
		})
		fmt.Fprintf(&b, "\n%s: %s (ratio to node → node without a data plane)", g.title, g.unit)
		if cpu {
			b.WriteString(", CPU seconds of the machine for 10^9 bytes")
		}
		b.WriteString("\n\n")
		t := bench.Table{Head: append([]string{"path"}, m.configurations()...)}
		for _, row := range rows {
			entries := []any{strings.TrimSuffix(row, g.suffix)}
			for _, name := range m.configurations() {
				entries = append(entries, m.entry(row, name))
			}
			t.Add(entries...)
		}
		if err := t.Write(&b, true); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n![%s](%s/%s)\n", g.title, folder, g.file)
	}
	b.WriteString("\nAgainst the targets\n\n")
	t := bench.Table{Head: []string{"target", "wanted", "reached", ""}}
	for _, x := range m.targets {
		sign, verdict := "at most", "met"
		if x.AtLeast {
			sign = "at least"
		}
		if !x.Met {
			verdict = "missed"
		}
		reached := fmt.Sprintf("%.2f", x.Reached)
		if x.Reached == 0 {
			reached, verdict = "–", "not measured"
		}
		t.Add(x.Name, fmt.Sprintf("%s %.2f", sign, x.Limit), reached, verdict)
	}
	err := t.Write(&b, true)
	return b.String(), err
}

// entry is a table's field: a path in a configuration; what does not differ between Weir's modes
// was measured in one.
func (m *matrix) entry(row, configuration string) string {
	c := m.at(row, configuration)
	switch {
	case c != nil && c.CPUPerGB > 0:
		return fmt.Sprintf("%s (%.2f), %.2f", bench.Number(c.Median), c.RatioToHost, c.CPUPerGB)
	case c != nil:
		return fmt.Sprintf("%s (%.2f)", bench.Number(c.Median), c.RatioToHost)
	case (configuration == "weir-dsr" || configuration == "weir-path") && m.at(row, "weir-tunnel") != nil:
		return "= tunnel"
	}
	return "–"
}
