// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// curve is a figure by the number of nodes. What was not measured at a size (0) is left out.
type curve struct {
	name string
	of   func(*Result) float64
}

// panels are the plots of the picture, each of one unit.
var panels = []struct {
	title, unit string
	curves      []curve
}{
	{"Memory", "MiB", []curve{
		{"agent, fed", func(r *Result) float64 { return r.AgentRSS }},
		{"agent, by itself", func(r *Result) float64 { return direct(r).RSSAfter }},
		{"fan-out", func(r *Result) float64 { return r.FanOutRSS }},
	}},
	{"CPU", "cores", []curve{
		{"agent, fed, 20 pods/s", func(r *Result) float64 { return r.AgentAt20 / 1000 }},
		{"agent, by itself, 20 pods/s", func(r *Result) float64 { return direct(r).At20 / 1000 }},
		{"fan-out, most", func(r *Result) float64 { return r.FanOutCores }},
	}},
	{"A pod's change, while nothing else changes", "ms", []curve{
		{"to its effect, p50", func(r *Result) float64 { return alone(r).Effect["pod"].summary().P50 }},
		{"to its effect, p99", func(r *Result) float64 { return alone(r).Effect["pod"].summary().P99 }},
		{"to the last node, p99", func(r *Result) float64 { return alone(r).Received["all"].summary().P99 }},
	}},
}

// alone is the row without load: the one that can be compared between sizes on one machine.
func alone(r *Result) Row {
	for _, row := range fed(r).Rows {
		if row.Name == "idle" {
			return row
		}
	}
	return Row{}
}

// draw writes the picture of results of several sizes.
func draw(results []*Result, file string) error {
	if len(results) < 2 {
		return errors.New("a curve by the number of nodes needs two sizes at least")
	}
	results = slices.SortedFunc(slices.Values(results), func(a, b *Result) int { return cmp.Compare(a.Nodes, b.Nodes) })
	canvas := vgsvg.New(28*vg.Centimeter, 9*vg.Centimeter)
	var plots []*plot.Plot
	for _, p := range panels {
		pl := plot.New()
		pl.Title.Text, pl.X.Label.Text, pl.Y.Label.Text = p.title, "nodes", p.unit
		pl.X.Scale, pl.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		pl.Legend.Top, pl.Legend.Left = true, true
		pl.Add(plotter.NewGrid())
		var lines []any
		highest := 0.0
		for _, c := range p.curves {
			var at plotter.XYs
			for _, r := range results {
				if v := c.of(r); v > 0 {
					at, highest = append(at, plotter.XY{X: float64(r.Nodes), Y: v}), max(highest, v)
				}
			}
			if len(at) > 0 {
				lines = append(lines, c.name, at)
			}
		}
		if len(lines) == 0 {
			continue // a unit of which nothing was measured
		}
		if err := plotutil.AddLinePoints(pl, lines...); err != nil {
			return fmt.Errorf("drawing %s: %w", p.title, err)
		}
		pl.Y.Min, pl.Y.Max = 0, highest*1.5 // room for the legend
		pl.X.Max = float64(results[len(results)-1].Nodes) * 1.5
		plots = append(plots, pl)
	}
	if len(plots) == 0 {
		return errors.New("the results have nothing to draw")
	}
	tiles := vgdraw.Tiles{Rows: 1, Cols: len(plots), PadX: 4 * vg.Millimeter, PadRight: 2 * vg.Millimeter}
	for i, c := range plot.Align([][]*plot.Plot{plots}, tiles, vgdraw.New(canvas))[0] {
		plots[i].Draw(c)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err = canvas.WriteTo(f); err != nil {
		f.Close()
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return f.Close()
}
