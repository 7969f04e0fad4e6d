// SPDX-License-Identifier: Apache-2.0

// Command plot-bench draws the curves of the benchmarks that grow a cluster: latency of Services
// (bench-services-targets.json) and the control plane (bench-scale.json) by the number of Services,
// ApacheBench by the number of pods (bench-pods-targets.json). It writes SVG files, and copies the
// raw data of all benchmarks next to them.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// curve is one line of a plot: y at numbers of Services or of pods.
type curve struct {
	name string
	at   plotter.XYs
}

// picture is one file.
type picture struct {
	file, title, unit string
	logarithmic       bool   // the y axis
	along             string // what the x axis counts
	curves            []curve
}

func main() {
	in := flag.String("in", "out", "folder of the benchmarks' results; what is not there is skipped")
	out := flag.String("out", "docs/results/bench", "folder to write to")
	doc := flag.String("doc", "docs/results/benchmarks.md", "document whose tables of the matrix are written anew")
	flag.Parse()
	if err := run(*in, *out, *doc); err != nil {
		fmt.Fprintln(os.Stderr, "plot-bench:", err)
		os.Exit(1)
	}
}

func run(in, out, doc string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var pictures []picture
	for _, from := range []struct {
		file string
		draw func(raw []byte) ([]picture, error) // nil: it is copied only
	}{
		{"bench-services-targets.json", latencies}, {"bench-services.json", nil}, {"bench-pods-targets.json", latencies}, {"bench-pods.json", nil},
		{"bench-scale.json", controlPlane}, {"bench-backends-targets.json", nil}, {"bench-backends.json", nil},
		{"bench.json", nil}, {"bench-targets.json", nil}, {"bench-machine.json", nil},
	} {
		raw, err := os.ReadFile(filepath.Join(in, from.file))
		if os.IsNotExist(err) {
			fmt.Println("plot-bench: no", filepath.Join(in, from.file))
			continue
		}
		if err != nil {
			return err
		}
		if from.draw != nil {
			more, err := from.draw(raw)
			if err != nil {
				return fmt.Errorf("%s: %w", from.file, err)
			}
			pictures = append(pictures, more...)
		}
		if err := os.WriteFile(filepath.Join(out, from.file), raw, 0o644); err != nil {
			return err
		}
	}
	for _, p := range pictures {
		if err := p.write(out); err != nil {
			return fmt.Errorf("drawing %s: %w", p.file, err)
		}
		fmt.Println("plot-bench: wrote", filepath.Join(out, p.file))
	}
	m, err := readMatrix(in)
	if err != nil || m == nil {
		return err
	}
	for _, g := range groups {
		if len(m.rows(g)) == 0 {
			continue
		}
		if err := m.draw(g, out); err != nil {
			return fmt.Errorf("drawing %s: %w", g.file, err)
		}
		fmt.Println("plot-bench: wrote", filepath.Join(out, g.file))
	}
	fmt.Println("plot-bench: wrote the tables of", doc)
	return m.document(doc, out)
}

// latencies draws a picture a path.
func latencies(raw []byte) ([]picture, error) {
	var growths []struct {
		Path          string    `json:"path"`
		Configuration string    `json:"configuration"`
		Services      []int     `json:"services"`
		Pods          []int     `json:"pods"`
		Means         []float64 `json:"means_us"`
	}
	if err := json.Unmarshal(raw, &growths); err != nil {
		return nil, err
	}
	files := map[string]string{
		"pod → ClusterIP, other node, connections":          "latency-pod-clusterip.svg",
		"host process → ClusterIP, other node, connections": "latency-host-clusterip.svg",
		"client → NodePort, local backend, connections":     "latency-nodeport-local.svg",
		"client → NodePort, remote backend, connections":    "latency-nodeport-remote.svg",
		"node → node, connections":                          "latency-node-node.svg",
		"pod → pod, other node, connections":                "latency-pod-pod.svg",
		"pod → ClusterIP, other node, ApacheBench":          "apachebench.svg",
	}
	var out []picture
	for _, g := range growths {
		along, at, unit := "Services", g.Services, "µs, connect to close"
		if len(g.Pods) > 0 {
			along, at, unit = "pods behind Services", g.Pods, "µs a request, 10 at a time"
		}
		file := files[g.Path]
		if file == "" {
			return nil, fmt.Errorf("no picture is known for the path %q", g.Path)
		}
		if len(g.Pods) > 0 && file != "apachebench.svg" {
			continue // the control
		}
		i := slices.IndexFunc(out, func(p picture) bool { return p.file == file })
		if i < 0 {
			i = len(out)
			out = append(out, picture{file: file, title: g.Path, unit: unit, along: along})
		}
		c := curve{name: g.Configuration}
		for n, size := range at {
			c.at = append(c.at, plotter.XY{X: float64(size), Y: g.Means[n]})
		}
		out[i].curves = append(out[i].curves, c)
	}
	return out, nil
}

// controlPlane draws what a change and a start cost.
func controlPlane(raw []byte) ([]picture, error) {
	type result struct {
		Plane    string  `json:"plane"`
		Services int     `json:"services"`
		Start    float64 `json:"start_s"`
		RSS      float64 `json:"rss_mib"`
		CPU      float64 `json:"cpu_ms_per_change"`
		Effect   struct {
			P50 float64 `json:"p50"`
			P99 float64 `json:"p99"`
		} `json:"effect_ms"`
	}
	var report struct {
		Results []result `json:"results"`
	}
	if err := json.Unmarshal(raw, &report); err != nil {
		return nil, err
	}
	var out []picture
	for _, what := range []struct {
		file, title, unit string
		value             func(result) float64
	}{
		{"effect.svg", "one endpoint's change, from the API to its effect (p50)", "ms", func(r result) float64 { return r.Effect.P50 }},
		{"effect-p99.svg", "one endpoint's change, from the API to its effect (p99)", "ms", func(r result) float64 { return r.Effect.P99 }},
		{"change-cpu.svg", "CPU time of one endpoint's change", "ms", func(r result) float64 { return r.CPU }},
		{"start.svg", "start to everything in force", "s", func(r result) float64 { return r.Start }},
		{"memory.svg", "resident memory", "MiB", func(r result) float64 { return r.RSS }},
	} {
		p := picture{file: what.file, title: what.title, unit: what.unit, logarithmic: true, along: "Services"}
		for _, r := range report.Results {
			v := what.value(r)
			if v <= 0 {
				continue
			}
			i := slices.IndexFunc(p.curves, func(c curve) bool { return c.name == r.Plane })
			if i < 0 {
				i = len(p.curves)
				p.curves = append(p.curves, curve{name: r.Plane})
			}
			p.curves[i].at = append(p.curves[i].at, plotter.XY{X: float64(r.Services), Y: v})
		}
		if len(p.curves) > 0 {
			out = append(out, p)
		}
	}
	return out, nil
}

func (p picture) write(dir string) error {
	pl := plot.New()
	pl.Title.Text = p.title
	pl.X.Label.Text = p.along
	pl.Y.Label.Text = p.unit
	pl.X.Scale, pl.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	if p.logarithmic {
		pl.Y.Scale, pl.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	} else {
		pl.Y.Min = 0
	}
	pl.Legend.Top, pl.Legend.Left = true, true
	pl.Add(plotter.NewGrid())
	var lines []any
	highest, right := 0.0, 0.0
	for _, c := range p.curves {
		lines = append(lines, c.name, c.at)
		for _, at := range c.at {
			highest, right = max(highest, at.Y), max(right, at.X)
		}
	}
	if err := plotutil.AddLinePoints(pl, lines...); err != nil {
		return err
	}
	pl.X.Max = right * 1.5 // room for the last label
	if !p.logarithmic {
		pl.Y.Min, pl.Y.Max = 0, highest*1.4 // room for the legend
	}
	return pl.Save(16*vg.Centimeter, 9*vg.Centimeter, filepath.Join(dir, p.file))
}
