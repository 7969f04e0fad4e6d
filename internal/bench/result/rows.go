// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench/probe"
)

// HostPath is the path that others are compared with.
const HostPath = "host2host"

// OneNode ends the names of paths on one node.
const OneNode = "-local"

// Outside begins the names of paths from the machine where the program runs.
const Outside = "outside"

// hostRow is the row without pods and Services that a row is compared with.
func hostRow(id string) (string, bool) {
	path, test, ok := strings.Cut(id, "/")
	if !ok {
		return "", false
	}
	if strings.HasSuffix(path, OneNode) {
		return HostPath + OneNode + "/" + test, true
	}
	return HostPath + "/" + test, true
}

// mergeBins adds the histograms of the rounds up and takes them out of them.
func mergeBins(rounds []Round) []probe.Bin {
	sum := map[float64]int64{}
	for i := range rounds {
		if l := rounds[i].Latency; l != nil {
			for _, b := range l.Bins {
				sum[b.UpTo] += b.Count
			}
		}
	}
	var out []probe.Bin
	for upTo, n := range sum {
		out = append(out, probe.Bin{UpTo: upTo, Count: n})
	}
	slices.SortFunc(out, func(a, b probe.Bin) int {
		if a.UpTo < b.UpTo {
			return -1
		}
		return 1
	})
	return out
}

// What is doubtful about a row.
const (
	noisyWord   = "noisy:"
	noisySpread = 0.10 // of an interval, in parts of the median
	muchSteal   = 1.0  // %
	rateHeld    = 0.99 // of the rate that was asked for
	fewRounds   = 6    // from which on the interval has 95 %
)

// doubts are what makes a row's figures mean less than they seem to. idle: what the nodes do by
// themselves was measured.
func (r *Row) doubts(idle bool) []string {
	var out []string
	failed := 0
	first := ""
	for _, x := range r.Rounds {
		if x.Error != "" {
			failed++
			if first == "" {
				first = x.Error
			}
		}
	}
	if failed > 0 {
		out = append(out, fmt.Sprintf("%d of %d rounds failed: %s", failed, len(r.Rounds), first))
	}
	main := r.Main()
	v, ok := r.Values[main]
	if !ok {
		return out
	}
	if len(v.All) > 1 && v.Spread() > noisySpread {
		out = append(out, fmt.Sprintf(noisyWord+" the interval of %s is %.0f %% of the median wide; smaller differences mean nothing", main, 100*v.Spread()))
	}
	if len(v.All) < fewRounds && r.ID != "idle" {
		out = append(out, fmt.Sprintf("%d rounds: the interval has %.0f %% confidence; %d rounds give 95 %%", len(v.All), 100*v.Confidence, fewRounds))
	}
	_, perGB := r.Values[CPUPerGB]
	_, perOp := r.Values[CPUPerOp]
	if perGB || perOp {
		switch {
		case strings.HasPrefix(r.ID, Outside):
			out = append(out, "its CPU time holds what this machine and the node do by themselves")
		case !idle:
			out = append(out, "idle was not measured: CPU time for a GB or an operation holds what the nodes do by themselves")
		}
	}
	if s := r.Values[StealShare]; s.Median > muchSteal {
		out = append(out, fmt.Sprintf("a hypervisor took %.1f %% of the CPU time away", s.Median))
	}
	if want := r.Spec.Rate / 1e9; r.Spec.Test == probe.Datagrams && want > 0 {
		if sent := r.Values[Sent].Median; sent < rateHeld*want {
			out = append(out, fmt.Sprintf("the rate was not held: %.3g of %.3g Gbit/s were sent", sent, want))
		}
	}
	if l, ok := r.Values[Loss]; ok && l.Median > 0 && r.Spec.Test == probe.Datagrams && r.Spec.Rate > 0 {
		out = append(out, fmt.Sprintf("%.2g %% of the datagrams were lost at a fixed rate", l.Median))
	}
	if l, ok := r.Values[Loss]; ok && r.Spec.Test == probe.UDPTrip && len(l.All) > 0 && slices.Max(l.All) > 0 {
		out = append(out, fmt.Sprintf("%.2g %% of the requests had no answer (the median of the rounds is %.2g %%); times are of the others", slices.Max(l.All), l.Median))
	}
	return out
}

// congestion are the TCP congestion controls that a row's streams used, sorted.
func (r *Row) congestion() []string {
	var out []string
	for _, x := range r.Rounds {
		if x.Congestion != "" {
			out = append(out, x.Congestion)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// otherCongestion is the doubt that a row and the one of the nodes themselves do not differ by the
// path alone.
func (f *File) otherCongestion(r *Row) []string {
	id, ok := hostRow(r.ID)
	if !ok {
		return nil
	}
	host := f.Row((&Row{ID: id, Services: r.Services}).Key())
	if host == nil {
		return nil
	}
	of, hosts := r.congestion(), host.congestion()
	if len(of) == 0 || len(hosts) == 0 || slices.Equal(of, hosts) {
		return nil
	}
	return []string{fmt.Sprintf("TCP's congestion control is %s, that of %s %s: they do not differ by the path alone (--congestion sets one for all)",
		strings.Join(of, " and "), host.Key(), strings.Join(hosts, " and "))}
}

// Main is the metric that a row is about.
func (r *Row) Main() Metric {
	switch r.Spec.Test {
	case probe.Stream:
		return Bandwidth
	case probe.Datagrams:
		if strings.HasSuffix(r.ID, "/pps") {
			return Packets
		}
		return Bandwidth
	case probe.Rate:
		return Rate
	case probe.Apache:
		return Total
	case probe.Idle:
		return VCPUClient
	case probe.Endpoint, probe.Policy, probe.PodStart:
		return P50
	}
	return Mean
}

// Row returns a row by its key.
func (f *File) Row(key string) *Row {
	for i := range f.Rows {
		if f.Rows[i].Key() == key {
			return &f.Rows[i]
		}
	}
	return nil
}
