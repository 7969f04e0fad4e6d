// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// Difference is what two files say of one metric of one row.
type Difference struct {
	Row    string  `json:"row"`
	Metric Metric  `json:"metric"`
	A      float64 `json:"a"` // medians
	B      float64 `json:"b"`
	Ratio          // B/A
	// Good is the ratio turned so that above 1 is better: B/A where more is better, A/B where less
	// is.
	Good float64 `json:"good"`
	Note string  `json:"note"`
	// Main: the row is about this metric.
	Main bool `json:"main,omitempty"`
	// Failed: A has the row's main metric and B has not, or nothing of it.
	Failed bool `json:"failed,omitempty"`
}

// Comparison is of two files.
type Comparison struct {
	A, B        string       `json:"-"`
	Differences []Difference `json:"differences"`
	// Unlike says what else differs between the runs; Alone are rows that only one file has.
	Unlike []string `json:"unlike,omitempty"`
	Alone  []string `json:"alone,omitempty"`
}

// CompareFiles compares what both have. It is an error when that is nothing.
func CompareFiles(a, b *File) (*Comparison, error) {
	c := &Comparison{A: label(a), B: label(b)}
	inA, inB := a.byKey(), b.byKey()
	common := false
	for i := range a.Rows {
		ra := &a.Rows[i]
		rb := inB[ra.Key()]
		if rb == nil {
			c.Alone = append(c.Alone, ra.Key()+" (only in the first)")
			if d, ok := gone(ra, &Row{}, "not in B"); ok {
				c.Differences = append(c.Differences, d)
			}
			continue
		}
		found := c.row(ra, rb)
		common = common || len(found) > 0
		c.Differences = append(c.Differences, found...)
	}
	for i := range b.Rows {
		if inA[b.Rows[i].Key()] == nil {
			c.Alone = append(c.Alone, b.Rows[i].Key()+" (only in the second)")
		}
	}
	if !common {
		return nil, errors.New("the two files have no row in common that can be compared")
	}
	c.unlike(a, b)
	return c, nil
}

// row compares a row that both have.
func (c *Comparison) row(ra, rb *Row) []Difference {
	var out []Difference
	if d, ok := gone(ra, rb, "failed in B"); ok {
		out = append(out, d)
	}
	for _, m := range Metrics {
		va, vb := ra.Values[m], rb.Values[m]
		if !m.Compared() || len(va.All) == 0 || len(vb.All) == 0 {
			continue
		}
		d := Difference{Row: ra.Key(), Metric: m, A: va.Median, B: vb.Median, Main: m == ra.Main()}
		r, err := Compare(va.All, vb.All)
		switch {
		case err != nil && d.Main && m.HigherIsBetter() && va.Median > 0 && vb.Median <= 0:
			d.Failed, d.Note = true, "nothing arrived in B"
		case err != nil:
			// Such as no CPU time above idle: the medians are all there is.
			d.Note = err.Error() + ": no ratio"
		default:
			d.Ratio, d.Good = r, r.Ratio
			if !m.HigherIsBetter() {
				d.Good = 1 / r.Ratio
			}
			d.Note = verdict(d)
		}
		out = append(out, d)
	}
	return out
}

// gone is the difference of a row whose main metric was measured in A and not in B.
func gone(ra, rb *Row, note string) (Difference, bool) {
	m := ra.Main()
	v := ra.Values[m]
	if len(v.All) == 0 || len(rb.Values[m].All) > 0 {
		return Difference{}, false
	}
	return Difference{Row: ra.Key(), Metric: m, A: v.Median, Main: true, Failed: true, Note: note}, true
}

// byKey are the rows by their keys; of several with the same key the first, as Row has it.
func (f *File) byKey() map[string]*Row {
	out := make(map[string]*Row, len(f.Rows))
	for i := range f.Rows {
		if key := f.Rows[i].Key(); out[key] == nil {
			out[key] = &f.Rows[i]
		}
	}
	return out
}

func label(f *File) string { return fmt.Sprintf("%s (%s)", f.Metadata.Name, f.Cluster.DataPlane) }

// verdict is a difference in a word.
func verdict(d Difference) string {
	switch {
	case d.Confidence < wanted:
		return fmt.Sprintf("too few rounds to tell (%.0f %%)", 100*d.Confidence)
	case !d.Certain():
		return "no difference shown"
	case d.Good > 1:
		return "better"
	}
	return "worse"
}

// unlike finds what besides the data plane may explain differences.
func (c *Comparison) unlike(a, b *File) {
	for _, x := range []struct{ what, a, b string }{
		{"CPU", a.Data.CPU, b.Data.CPU}, {"kernel", a.Data.Kernel, b.Data.Kernel}, {"Kubernetes", a.Data.K8sVersion, b.Data.K8sVersion},
		{"MTU of pods", a.Data.MTU, b.Data.MTU}, {"duration", a.Settings.Duration, b.Settings.Duration},
		{"program", a.Settings.Tool, b.Settings.Tool}, {"IP family", a.Settings.IPFamily, b.Settings.IPFamily},
		{"TCP congestion control", a.Cluster.Client.Congestion, b.Cluster.Client.Congestion},
		{"CPUs", fmt.Sprint(a.Cluster.Client.CPUs), fmt.Sprint(b.Cluster.Client.CPUs)},
		{"nodes on one machine", fmt.Sprint(a.Cluster.OneMachine), fmt.Sprint(b.Cluster.OneMachine)},
		{"streams", fmt.Sprint(a.Settings.Streams), fmt.Sprint(b.Settings.Streams)},
		{"concurrency", fmt.Sprint(a.Settings.Concurrency), fmt.Sprint(b.Settings.Concurrency)},
		{"rate of udp-rate", fmt.Sprint(a.Settings.UDPRate), fmt.Sprint(b.Settings.UDPRate)},
	} {
		if x.a != x.b {
			c.Unlike = append(c.Unlike, fmt.Sprintf("%s: %s, %s", x.what, x.a, x.b))
		}
	}
	for _, f := range []*File{a, b} {
		if f.Interrupted != "" {
			c.Unlike = append(c.Unlike, f.Metadata.Name+" ended early: "+f.Interrupted)
		}
	}
}

// Below returns what got worse than limit (such as 0.95: by more than five percent) with certainty:
// the whole interval, of at least 95 %, is beyond the limit. With strict, the estimate alone
// decides. It compares the main metric of each row, or those metrics that are given; what A has and
// B has not counts always.
func (c *Comparison) Below(limit float64, strict bool, metrics ...Metric) []Difference {
	var out []Difference
	for _, d := range c.Differences {
		if d.Failed {
			out = append(out, d)
			continue
		}
		if len(metrics) == 0 && !d.Main || len(metrics) > 0 && !slices.Contains(metrics, d.Metric) || d.Good <= 0 {
			continue
		}
		if strict && d.Good < limit || d.Confidence >= wanted && d.best() < limit {
			out = append(out, d)
		}
	}
	return out
}

// best is the end of the interval at which B looks best, turned as Good is.
func (d *Difference) best() float64 {
	if d.Metric.HigherIsBetter() {
		return d.High
	}
	return 1 / d.Low
}

// Geomean is the mean of the good ratios of a metric over the rows, as one figure; 0 where there
// are none.
func (c *Comparison) Geomean(m Metric) float64 {
	sum, n := 0.0, 0
	for _, d := range c.Differences {
		if d.Metric == m && d.Good > 0 {
			sum, n = sum+math.Log(d.Ratio.Ratio), n+1
		}
	}
	if n == 0 {
		return 0
	}
	return math.Exp(sum / float64(n))
}

// Show prints the comparison.
func (c *Comparison) Show(w io.Writer, all bool) error {
	fmt.Fprintf(w, "A: %s\nB: %s\n\n", c.A, c.B)
	t := bench.Table{Head: []string{"row", "metric", "A", "B", "B/A", "interval", ""}}
	for _, d := range c.Differences {
		main := d.Metric == Bandwidth || d.Metric == Mean || d.Metric == P50 || d.Metric == P99 || d.Metric == CPUPerGB || d.Metric == Rate || d.Metric == Packets ||
			d.Metric == Total || d.Metric == DaemonCPU || d.Failed
		if !all && !main {
			continue
		}
		ratio, interval, inB := "", "", bench.Number(d.B)
		if d.Failed {
			inB = "–"
		}
		if d.Good > 0 {
			ratio = fmt.Sprintf("%.3f", d.Ratio.Ratio)
			interval = fmt.Sprintf("%.3f–%.3f (%.0f %%)", d.Low, d.High, 100*d.Confidence)
		}
		t.Add(d.Row, strings.TrimSpace(string(d.Metric)+" "+d.Metric.Unit()), bench.Number(d.A), inB, ratio, interval, d.Note)
	}
	if err := t.Write(w, false); err != nil {
		return err
	}
	for _, list := range []struct {
		title string
		of    []string
	}{{"Besides, these differ", c.Unlike}, {"Not compared", c.Alone}} {
		if len(list.of) > 0 {
			fmt.Fprintf(w, "\n%s:\n", list.title)
			for _, x := range list.of {
				fmt.Fprintln(w, "  "+x)
			}
		}
	}
	return nil
}
