// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-net/weir/internal/bench"
)

// Result is one entry of out/bench.json.
type Result struct {
	Row           string  `json:"row"`
	Configuration string  `json:"configuration"`
	Services      int     `json:"services,omitempty"` // other Services in the cluster, two endpoints each
	Rounds        int     `json:"rounds"`
	Dropped       int     `json:"dropped"`   // rounds that other work disturbed, and that do not count
	Disturbed     int     `json:"disturbed"` // the same, counted for lack of a better one
	Median        float64 `json:"median"`    // of the rounds' means
	Low           float64 `json:"low"`       // quartiles of the rounds
	High          float64 `json:"high"`
	P50           float64 `json:"p50,omitempty"` // median of the rounds' own p50 and p99; not of streams
	P99           float64 `json:"p99,omitempty"`
	Unit          string  `json:"unit"`
	RatioToHost   float64 `json:"ratio_to_host"`          // to node → node without a data plane
	RatioToNone   float64 `json:"ratio_to_none"`          // to the same path without a data plane; 0 = there is none
	CPUPerGB      float64 `json:"cpu_s_per_gb,omitempty"` // streams: CPU seconds of the machine for 10^9 bytes
	Held          float64 `json:"held,omitempty"`         // at a fixed rate: which share of it was sent
	Lost          float64 `json:"lost,omitempty"`         // and which share of that did not arrive
}

// Target is one entry of out/bench-targets.json.
type Target struct {
	Name    string  `json:"target"`
	Reached float64 `json:"reached"` // 0 = was not measured
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Met     bool    `json:"met"`
}

func (r *runner) results(outcomes []bench.Outcome) []Result {
	kinds, others := map[string]kind{}, map[string]int{}
	for _, w := range r.plan() {
		kinds[w.name], others[w.name] = w.kind, w.others
	}
	var out []Result
	for _, o := range outcomes {
		if len(o.Kept) == 0 {
			continue
		}
		k := kinds[o.Row]
		of := func(value func(bench.Run) float64) []float64 {
			var sample []float64
			for _, run := range o.Kept {
				sample = append(sample, value(run))
			}
			return sample
		}
		values := of(k.value)
		x := Result{
			Row: o.Row, Configuration: o.Configuration, Services: others[o.Row], Rounds: len(o.Kept), Dropped: o.Dropped, Disturbed: o.Disturbed, Unit: k.unit(),
			Median: bench.Median(values), Low: bench.Quantile(values, 0.25), High: bench.Quantile(values, 0.75),
			P50:  bench.Median(of(func(r bench.Run) float64 { return r.Times.P50 })),
			P99:  bench.Median(of(func(r bench.Run) float64 { return r.Times.P99 })),
			Held: bench.Median(of(func(r bench.Run) float64 { return r.Held })),
			Lost: bench.Median(of(func(r bench.Run) float64 { return r.Lost })),
		}
		if k == stream {
			x.CPUPerGB = bench.Median(of(func(r bench.Run) float64 { return r.CPUPer }))
		}
		out = append(out, x)
	}
	host := map[kind]float64{
		requests: median(out, rowHostLatency, none), stream: median(out, rowHostStream, none), roundtrips: median(out, rowHostTrip, none),
		datagrams: median(out, rowHostRate, none)}
	for i := range out {
		out[i].RatioToHost = bench.Ratio(out[i].Median, host[kinds[out[i].Row]])
		out[i].RatioToNone = bench.Ratio(out[i].Median, median(out, out[i].Row, none))
	}
	return out
}

// at is the result of a row in a configuration, the zero value where it was not measured.
func at(results []Result, row, configuration string) Result {
	for _, r := range results {
		if r.Row == row && r.Configuration == configuration {
			return r
		}
	}
	return Result{}
}

func median(results []Result, row, configuration string) float64 {
	return at(results, row, configuration).Median
}

// targets compares with what is wanted.
func targets(results []Result) []Target {
	m := func(row, configuration string) float64 { return median(results, row, configuration) }
	cpu := func(row, configuration string) float64 { return at(results, row, configuration).CPUPerGB }
	atMost := func(name string, limit, of, by float64) Target {
		return Target{Name: name, Reached: bench.Ratio(of, by), Limit: limit}
	}
	atLeast := func(name string, limit, of, by float64) Target {
		return Target{Name: name, Reached: bench.Ratio(of, by), Limit: limit, AtLeast: true}
	}
	out := []Target{
		atLeast("TCP stream pod → pod, of node → node without a data plane", 0.95, m(rowPodStream, weirTunnel), m(rowHostStream, none)),
		atLeast("TCP stream pod → ClusterIP, of node → node without a data plane", 0.95, m(rowServiceStream, weirTunnel), m(rowHostStream, none)),
		atMost("CPU for a GB pod → pod, of node → node without a data plane", 1.06, cpu(rowPodStream, weirTunnel), cpu(rowHostStream, none)),
		atMost("CPU for a GB pod → ClusterIP, of node → node without a data plane", 1.06, cpu(rowServiceStream, weirTunnel), cpu(rowHostStream, none)),
		atMost("connections pod → pod on another node, of the same without a data plane", 1.00, m(rowPodRemote, weirTunnel), m(rowPodRemote, none)),
		atMost("connections pod → ClusterIP on another node, of pod → pod", 1.01, m(rowServiceRemote, weirTunnel), m(rowPodRemote, weirTunnel)),
		atMost("the same without balancing at connect time", 1.01, m(rowServiceRemote, weirPath), m(rowPodRemote, weirTunnel)),
		atMost("connections client → NodePort with a remote backend, tunnel, of kube-proxy nftables", 0.85, m(rowPortRemote, weirTunnel), m(rowPortRemote, kpNFTables)),
		atMost("connections client → NodePort with a remote backend, DSR, of kube-proxy nftables", 0.80, m(rowPortRemote, weirDSR), m(rowPortRemote, kpNFTables)),
		atMost("connections client → NodePort with a local backend, of node → node without a data plane", 1.15, m(rowPortLocal, weirTunnel), m(rowHostLatency, none)),
		atLeast("TCP stream client → NodePort with a remote backend, tunnel, of kube-proxy nftables", 1.15, m(rowPortStream, weirTunnel), m(rowPortStream, kpNFTables)),
		atMost("connections client → host process, of the same without a data plane", 1.04, m(rowClientHost, weirTunnel), m(rowClientHost, none)),
		atMost("UDP round trip pod → ClusterIP, of pod → pod without a data plane", 1.00, m(rowServiceTrip, weirTunnel), m(rowPodTrip, none)),
		atMost("CPU for a GB of UDP at a fixed rate pod → pod, of the same without a data plane", 1.00, m(rowPodRate, weirTunnel), m(rowPodRate, none)),
		atMost("CPU for a GB of UDP at a fixed rate pod → ClusterIP, of pod → pod without a data plane", 1.00, m(rowServiceRate, weirTunnel), m(rowPodRate, none)),
	}
	for _, w := range rows {
		switch ours, theirs := m(w.name, weirNFT), m(w.name, kpNFTables); {
		case !w.service || ours == 0 && theirs == 0:
		case w.kind == stream:
			out = append(out, atLeast("nftables data plane: "+w.name+", of kube-proxy nftables", 1.00, ours, theirs))
		default:
			out = append(out, atMost("nftables data plane: "+w.name+", of kube-proxy nftables", 1.00, ours, theirs))
		}
	}
	for i, t := range out {
		out[i].Met = t.Reached > 0 && (t.AtLeast && t.Reached >= t.Limit || !t.AtLeast && t.Reached <= t.Limit)
	}
	return out
}

// report writes the files and the tables.
func (r *runner) report(outcomes []bench.Outcome) error {
	results := r.results(outcomes)
	if len(results) == 0 {
		return nil
	}
	fmt.Printf("\n%v; medians of the rounds\n", bench.ThisMachine())
	t := bench.Table{Head: []string{"path", "configuration", "rounds", "dropped", "median", "unit", "to host", "to none", "p99", "CPU s/GB"}}
	for _, x := range results {
		t.Add(x.Row, x.Configuration, fmt.Sprint(x.Rounds), fmt.Sprint(x.Dropped+x.Disturbed), x.Median, x.Unit, ratio(x.RatioToHost), ratio(x.RatioToNone), orDash(x.P99), orDash(x.CPUPerGB))
	}
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	fmt.Println()
	switch {
	case r.backends > 0:
		return r.reportCrowd(results)
	case len(r.growth) > 0:
		return r.reportGrowth(results)
	}
	wanted := targets(results)
	t = bench.Table{Head: []string{"target", "wanted", "reached", ""}}
	for _, x := range wanted {
		sign, verdict := "at most", "met"
		if x.AtLeast {
			sign = "at least"
		}
		switch {
		case x.Reached == 0:
			verdict = "not measured"
		case !x.Met:
			verdict = "MISSED"
		}
		t.Add(x.Name, fmt.Sprintf("%s %.2f", sign, x.Limit), ratio(x.Reached), verdict)
	}
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	if err := bench.WriteJSON(filepath.Join(r.out, "bench-machine.json"), bench.ThisMachine()); err != nil {
		return err
	}
	return r.write(results, wanted)
}

func ratio(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", v)
}

func orDash(v float64) string {
	if v == 0 {
		return "–"
	}
	return bench.Number(v)
}
