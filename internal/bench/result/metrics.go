// SPDX-License-Identifier: Apache-2.0

package result

import (
	"math"
	"slices"
	"strings"
)

// Metric is a figure of a round.
type Metric string

// The metrics. Which of them a row has depends on its test.
const (
	Bandwidth  Metric = "bandwidth"   // Gbit/s of payload that arrived
	Sent       Metric = "sent"        // Gbit/s of payload that was sent, of datagrams
	Loss       Metric = "loss"        // % of the datagrams, or of the round trips
	CPUPerGB   Metric = "cpu_per_gb"  // CPU seconds of both nodes for 10^9 bytes that arrived, less what they do when idle
	CPUPerOp   Metric = "cpu_per_op"  // µs of CPU of both nodes for an operation, less what they do when idle
	VCPUClient Metric = "vcpu_client" // CPUs that were busy on the client's node, on average
	VCPUServer Metric = "vcpu_server"
	MemClient  Metric = "mem_client" // MiB in use on the client's node
	MemServer  Metric = "mem_server"
	Rate       Metric = "rate" // operations a second
	Packets    Metric = "pps"  // datagrams that arrived a second
	Mean       Metric = "mean" // µs
	P50        Metric = "p50"
	P90        Metric = "p90"
	P99        Metric = "p99"
	P999       Metric = "p99.9"
	Total      Metric = "total"       // seconds that all requests took
	InnerP50   Metric = "inner_p50"   // µs; of the time that a test takes by itself
	DaemonCPU  Metric = "daemon_cpu"  // ms of CPU of the network's daemons of both nodes, for a change
	DaemonMem  Metric = "daemon_mem"  // MiB of them
	StealShare Metric = "steal_share" // % of the CPU time that a hypervisor took away
	// Percent of all CPUs of a node: what knb says instead of how many CPUs were busy.
	CPUPctClient Metric = "cpu_client"
	CPUPctServer Metric = "cpu_server"
)

// kind is what is known of a metric.
type kind struct {
	Unit     string
	Higher   bool // more is better
	Compared bool // a comparison is about it
}

var kinds = map[Metric]kind{
	Bandwidth: {"Gbit/s", true, true}, Sent: {"Gbit/s", true, false}, Loss: {"%", false, false},
	CPUPerGB: {"s/GB", false, true}, CPUPerOp: {"µs", false, true},
	VCPUClient: {"vCPU", false, false}, VCPUServer: {"vCPU", false, false}, MemClient: {"MiB", false, false}, MemServer: {"MiB", false, false},
	Rate: {"/s", true, true}, Packets: {"/s", true, true},
	Mean: {"µs", false, true}, P50: {"µs", false, true}, P90: {"µs", false, true}, P99: {"µs", false, true}, P999: {"µs", false, false},
	Total: {"s", false, true}, InnerP50: {"µs", false, false},
	DaemonCPU: {"ms", false, true}, DaemonMem: {"MiB", false, true}, StealShare: {"%", false, false},
	CPUPctClient: {"%", false, false}, CPUPctServer: {"%", false, false},
}

// Unit is in words for people.
func (m Metric) Unit() string { return kinds[m].Unit }

// HigherIsBetter says what is good.
func (m Metric) HigherIsBetter() bool { return kinds[m].Higher }

// Compared reports whether a comparison is about it; others are shown only.
func (m Metric) Compared() bool { return kinds[m].Compared }

// Metrics are all, in the order in which they are shown.
var Metrics = []Metric{Bandwidth, Packets, Rate, Total, Mean, P50, P90, P99, P999, InnerP50, CPUPerGB, CPUPerOp, VCPUClient, VCPUServer, Sent, Loss,
	DaemonCPU, DaemonMem, MemClient, MemServer, StealShare, CPUPctClient, CPUPctServer}

// figures are the metrics of a round. idle is how many CPUs the two nodes keep busy by themselves.
func (r *Round) figures(test string, idle float64) map[Metric]float64 {
	out := map[Metric]float64{}
	if r.Error != "" || r.Elapsed <= 0 {
		return out
	}
	if r.Client.Elapsed > 0 {
		out[VCPUClient], out[MemClient] = r.Client.VCPUs(), r.Client.MemUsed
		out[VCPUServer], out[MemServer] = r.Server.VCPUs(), r.Server.MemUsed
		if all := r.Client.Elapsed * float64(r.Client.CPUs); all > 0 {
			out[StealShare] = 100 * max(r.Client.Steal/all, r.Server.Steal/max(all, r.Server.Elapsed*float64(r.Server.CPUs)))
		}
	}
	busy := r.Client.Busy()
	if !r.OneMachine {
		busy += r.Server.Busy()
	}
	busy = max(0, busy-idle*r.Client.Elapsed)
	switch test {
	case "stream", "udp":
		out[Bandwidth] = float64(r.Bytes) * 8 / r.Elapsed / 1e9
		if r.Bytes > 0 {
			out[CPUPerGB] = busy / (float64(r.Bytes) / 1e9)
		}
	}
	if test == "udp" {
		out[Packets] = float64(r.Operations) / r.Elapsed
		out[Sent] = float64(r.Sent) * float64(r.Size) * 8 / r.Elapsed / 1e9
		if r.Sent > 0 {
			out[Loss] = 100 * float64(r.Lost) / float64(r.Sent)
		}
	}
	if r.Latency != nil {
		out[Mean], out[P50], out[P90], out[P99], out[P999] = r.Latency.Mean, r.Latency.P50, r.Latency.P90, r.Latency.P99, r.Latency.P999
		switch test {
		case "cps":
			out[Rate] = float64(r.Operations) / r.Elapsed
		case "ab":
			out[Rate], out[Total] = float64(r.Operations)/r.Elapsed, r.Elapsed
		case "http":
			out[Total] = r.Elapsed
		}
		if test == "rr" || test == "udp-rr" || test == "crr" || test == "cps" || test == "ab" || test == "http" {
			out[CPUPerOp] = busy * 1e6 / float64(max(1, r.Operations))
		}
		if test == "udp-rr" {
			out[Loss] = 100 * float64(r.Lost) / float64(max(1, r.Lost+r.Operations))
		}
	}
	if r.Inner != nil {
		out[InnerP50] = r.Inner.P50
	}
	if len(r.Daemons) > 0 && r.Operations > 0 {
		for _, daemons := range r.Daemons {
			for _, d := range daemons {
				out[DaemonCPU] += d.CPU * 1000 / float64(r.Operations)
				out[DaemonMem] += d.RSS
			}
		}
	}
	return out
}

// Finish works out what the rounds say: values, ratios to the nodes themselves, knb's names,
// warnings.
func (f *File) Finish() {
	idle := f.idle()
	byRound := make([]map[int]map[Metric]float64, len(f.Rows))
	for i := range f.Rows {
		row := &f.Rows[i]
		byRound[i] = map[int]map[Metric]float64{}
		sums := map[Metric][]float64{}
		for n := range row.Rounds {
			figures := row.Rounds[n].figures(string(row.Spec.Test), row.idle(idle))
			byRound[i][row.Rounds[n].Round] = figures
			for m, v := range figures {
				if !math.IsNaN(v) && !math.IsInf(v, 0) {
					sums[m] = append(sums[m], v)
				}
			}
		}
		row.Values = map[Metric]Value{}
		for m, all := range sums {
			row.Values[m] = Estimate(all, m.Unit())
		}
		row.Histogram = mergeBins(row.Rounds)
	}
	for i := range f.Rows {
		f.toHost(i, byRound)
		f.Rows[i].Warnings = append(f.Rows[i].doubts(len(idle) > 0), f.otherCongestion(&f.Rows[i])...)
	}
	f.knb()
}

// idle is how many CPUs the two nodes keep busy by themselves, by the number of other Services.
func (f *File) idle() map[int]float64 {
	out := map[int]float64{}
	for i := range f.Rows {
		if f.Rows[i].ID != "idle" {
			continue
		}
		var all []float64
		for _, r := range f.Rows[i].Rounds {
			if r.Error == "" && r.Client.Elapsed > 0 {
				v := r.Client.VCPUs()
				if !r.OneMachine {
					v += r.Server.VCPUs()
				}
				all = append(all, v)
			}
		}
		slices.Sort(all)
		if len(all) > 0 {
			out[f.Rows[i].Services] = medianOf(all)
		}
	}
	return out
}

// idle is what to take off the row's CPU time: what was measured with as many Services, or else
// with the next number. Nothing is taken off where the client is no node.
func (r *Row) idle(bySize map[int]float64) float64 {
	if strings.HasPrefix(r.ID, Outside) {
		return 0
	}
	nearest, best := -1, 0.0
	for size, v := range bySize {
		away, least := distance(size, r.Services), distance(nearest, r.Services)
		if nearest < 0 || away < least || away == least && size < nearest {
			nearest, best = size, v
		}
	}
	return best
}

func distance(a, b int) int { return max(a-b, b-a) }

func (f *File) index(id string, services int) int {
	return slices.IndexFunc(f.Rows, func(r Row) bool { return r.ID == id && r.Services == services })
}

// toHost divides a row's rounds by those of the same test between the nodes themselves.
func (f *File) toHost(i int, byRound []map[int]map[Metric]float64) {
	row := &f.Rows[i]
	row.ToHost = nil
	id, ok := hostRow(row.ID)
	at := -1
	if ok {
		if at = f.index(id, row.Services); at < 0 {
			at = f.index(id, 0)
		}
	}
	if at < 0 || at == i {
		return
	}
	for _, m := range Metrics {
		var ratios []float64
		for round, figures := range byRound[i] {
			mine, have := figures[m]
			host, also := byRound[at][round][m]
			if have && also && host > 0 && m.Compared() {
				ratios = append(ratios, mine/host)
			}
		}
		if len(ratios) == 0 {
			continue
		}
		if row.ToHost == nil {
			row.ToHost = map[Metric]Value{}
		}
		slices.Sort(ratios)
		row.ToHost[m] = Estimate(ratios, "")
	}
}
