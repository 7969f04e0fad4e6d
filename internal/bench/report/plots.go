// SPDX-License-Identifier: Apache-2.0

// Package report draws what `weir bench` measured, and makes a page of it that needs no network.
package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/weir-net/weir/internal/bench/result"
)

// Figure is one picture.
type Figure struct {
	Name, Title string // of the file, without its ending; for people
	plot        *plot.Plot
	width       vg.Length
}

const height = 9 * vg.Centimeter

// Figures draws what the files have, side by side.
func Figures(files []*result.File) ([]Figure, error) {
	var out []Figure
	for _, c := range []struct {
		name, title string
		metric      result.Metric
		tests       []string
	}{
		{"bandwidth", "Bandwidth", result.Bandwidth, []string{"tcp", "tcp-many", "udp", "udp-rate"}},
		{"cpu-per-gb", "CPU seconds of both nodes for 10^9 bytes", result.CPUPerGB, []string{"tcp", "tcp-many", "udp", "udp-rate"}},
		{"latency", "Latency, mean", result.Mean, []string{"tcp-rr", "udp-rr", "crr", "http"}},
		{"latency-p99", "Latency, 99th percentile", result.P99, []string{"tcp-rr", "udp-rr", "crr", "http"}},
		{"connections", "New connections a second", result.Rate, []string{"cps", "ab"}},
		{"packets", "Datagrams of 64 bytes a second", result.Packets, []string{"pps"}},
		{"control", "From a change to its effect, median", result.P50, []string{"endpoint", "policy", "pod"}},
	} {
		f, err := bars(files, c.name, c.title, c.metric, c.tests)
		if err != nil {
			return nil, fmt.Errorf("drawing %s: %w", c.name, err)
		}
		if f != nil {
			out = append(out, *f)
		}
	}
	more, err := distributions(files)
	if err != nil {
		return nil, err
	}
	curves, err := scales(files)
	return append(append(out, more...), curves...), err
}

// keys are the rows with a metric and one of the tests that any of the files has, in the order of
// the files.
func keys(files []*result.File, m result.Metric, tests []string) []string {
	var out []string
	for _, t := range tests {
		for _, f := range files {
			for i := range f.Rows {
				r := &f.Rows[i]
				if _, ok := r.Values[m]; ok && strings.HasSuffix(r.ID, "/"+t) && !slices.Contains(out, r.Key()) {
					out = append(out, r.Key())
				}
			}
		}
	}
	return out
}

// band is a bar with its interval.
type band struct {
	plotter.XYs
	plotter.YErrors
}

func bars(files []*result.File, name, title string, m result.Metric, tests []string) (*Figure, error) {
	rows := keys(files, m, tests)
	if len(rows) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text, p.Y.Min = title, m.Unit(), 0
	width := vg.Points(18)
	for n, f := range files {
		values := make(plotter.Values, len(rows))
		var at band
		for i, key := range rows {
			r := f.Row(key)
			if r == nil {
				continue
			}
			v, ok := r.Values[m]
			if !ok {
				continue
			}
			values[i] = v.Median
			at.XYs = append(at.XYs, plotter.XY{X: float64(i), Y: v.Median})
			at.YErrors = append(at.YErrors, struct{ Low, High float64 }{v.Median - v.Low, v.High - v.Median})
		}
		chart, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, err
		}
		chart.Color, chart.LineStyle.Width = plotutil.Color(n), 0
		chart.Offset = width * vg.Length(float64(n)-float64(len(files)-1)/2)
		p.Add(chart)
		p.Legend.Add(caption(f), chart)
		if len(at.XYs) > 0 {
			p.Add(whiskers{at, chart.Offset})
		}
	}
	p.Legend.Top = true
	p.Y.Max = highest(files, rows, m) * (1.15 + 0.08*float64(len(files))) // room for the legend
	p.NominalX(rows...)
	p.X.Min, p.X.Max = -0.5, float64(len(rows))-0.5 // whole bars at the edges
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = math.Pi/5, draw.XRight, draw.YCenter
	return &Figure{name, title, p, max(14*vg.Centimeter, vg.Length(len(rows))*(width*vg.Length(len(files))+vg.Points(26)))}, nil
}

func highest(files []*result.File, rows []string, m result.Metric) float64 {
	most := 0.0
	for _, f := range files {
		for _, key := range rows {
			if r := f.Row(key); r != nil {
				most = max(most, r.Values[m].High)
			}
		}
	}
	return most
}

// whiskers are error bars that are where the bars of a group do.
type whiskers struct {
	of     band
	offset vg.Length
}

// Plot implements plot.Plotter.
func (w whiskers) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := draw.LineStyle{Color: color.Gray{64}, Width: vg.Points(1)}
	const half = 3
	for i, at := range w.of.XYs {
		e := w.of.YErrors[i]
		cx, low, high := x(at.X)+w.offset, y(at.Y-e.Low), y(at.Y+e.High)
		c.StrokeLine2(style, cx, low, cx, high)
		c.StrokeLine2(style, cx-half, low, cx+half, low)
		c.StrokeLine2(style, cx-half, high, cx+half, high)
	}
}

// caption distinguishes files.
func caption(f *result.File) string {
	if f.Cluster.DataPlane == "" {
		return f.Metadata.Name
	}
	return f.Metadata.Name + ": " + f.Cluster.DataPlane
}

// distributions are the shares of operations that took at most so long.
func distributions(files []*result.File) ([]Figure, error) {
	var out []Figure
	for _, key := range keys(files, result.Mean, []string{"tcp-rr", "udp-rr", "crr", "http", "ab"}) {
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = key+": how long operations took", "µs", "% of operations"
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min, p.Y.Max = 0, 100
		p.Add(plotter.NewGrid())
		p.Legend.Left, p.Legend.Top = true, true
		drawn := false
		for n, f := range files {
			r := f.Row(key)
			if r == nil || len(r.Histogram) == 0 {
				continue
			}
			total, sum := int64(0), int64(0)
			for _, b := range r.Histogram {
				total += b.Count
			}
			var line plotter.XYs
			for _, b := range r.Histogram {
				sum += b.Count
				if b.UpTo > 0 {
					line = append(line, plotter.XY{X: b.UpTo, Y: 100 * float64(sum) / float64(total)})
				}
				if float64(sum) >= 0.9995*float64(total) {
					break // the last few would squeeze all others
				}
			}
			l, err := plotter.NewLine(line)
			if err != nil {
				return nil, fmt.Errorf("drawing %s: %w", key, err)
			}
			l.Color, l.Width = plotutil.Color(n), vg.Points(1.5)
			p.Add(l)
			p.Legend.Add(caption(f), l)
			drawn = true
		}
		if drawn && p.X.Min < p.X.Max {
			out = append(out, Figure{"distribution-" + fileName(key), p.Title.Text, p, 16 * vg.Centimeter})
		}
	}
	return out, nil
}

func fileName(key string) string { return strings.NewReplacer("/", "-", "@", "-").Replace(key) }

// scales are rows by the number of other Services, where there is more than one.
func scales(files []*result.File) ([]Figure, error) {
	type curve struct {
		unit string
		of   map[int]plotter.XYs // by file
	}
	curves, order := map[string]*curve{}, []string{}
	for n, f := range files {
		for i := range f.Rows {
			r := &f.Rows[i]
			v, ok := r.Values[r.Main()]
			if !ok || r.ID == "idle" {
				continue
			}
			c := curves[r.ID]
			if c == nil {
				c = &curve{r.Main().Unit(), map[int]plotter.XYs{}}
				curves[r.ID] = c
				order = append(order, r.ID)
			}
			c.of[n] = append(c.of[n], plotter.XY{X: float64(r.Services), Y: v.Median})
		}
	}
	var out []Figure
	for _, id := range order {
		c := curves[id]
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text, p.Y.Min = id+" by the number of other Services", "Services", c.unit, 0
		p.Add(plotter.NewGrid())
		sizes, most := 0, 0.0
		for n := range files {
			if len(c.of[n]) < 2 {
				continue
			}
			sizes = max(sizes, len(c.of[n]))
			l, dots, err := plotter.NewLinePoints(c.of[n])
			if err != nil {
				return nil, fmt.Errorf("drawing %s: %w", id, err)
			}
			l.Color, dots.Color = plotutil.Color(n), plotutil.Color(n)
			p.Add(l, dots)
			p.Legend.Add(caption(files[n]), l, dots)
			for _, at := range c.of[n] {
				most = max(most, at.Y)
			}
		}
		if sizes > 1 {
			p.Y.Max, p.Legend.Top = most*1.3, true
			out = append(out, Figure{"scale-" + fileName(id), p.Title.Text, p, 16 * vg.Centimeter})
		}
	}
	return out, nil
}

// Render returns a figure as "svg" or "png".
func (f *Figure) Render(format string) ([]byte, error) {
	w, err := f.plot.WriterTo(f.width, height+3*vg.Centimeter, format)
	if err != nil {
		return nil, fmt.Errorf("drawing %s: %w", f.Name, err)
	}
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("drawing %s: %w", f.Name, err)
	}
	return out.Bytes(), nil
}

// Save writes all figures into a folder, as SVG and as PNG.
func Save(figures []Figure, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the plots: %w", err)
	}
	for i := range figures {
		for _, format := range []string{"svg", "png"} {
			b, err := figures[i].Render(format)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, figures[i].Name+"."+format), b, 0o644); err != nil {
				return fmt.Errorf("writing a plot: %w", err)
			}
		}
	}
	return nil
}

// number is exact enough for tables of other programs.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
