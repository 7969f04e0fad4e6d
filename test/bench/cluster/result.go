// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/version"
)

// resultFile is where the process in namespaces leaves what it measured.
const resultFile = "result.json"

// Result is what one size brought.
type Result struct {
	Nodes    int    `json:"nodes"`
	Pods     int    `json:"pods"`
	Policies int    `json:"policies"`
	Services int    `json:"services"`
	Seed     uint64 `json:"seed"`

	// The figures that are looked at first; what they are of is in the rest.
	AgentRSS         float64 `json:"agent_rss_mib"`
	AgentIdle        float64 `json:"agent_mcore_idle"`
	AgentAt20        float64 `json:"agent_mcore_at_20"`
	AgentAt100       float64 `json:"agent_mcore_at_100"`
	FanOutRSS        float64 `json:"fanout_rss_mib"`
	FanOutCores      float64 `json:"fanout_cores"`
	FanOutStart      float64 `json:"fanout_start_s"`
	EffectP50        float64 `json:"effect_p50_ms"`
	EffectP99        float64 `json:"effect_p99_ms"`
	ReceivedP50      float64 `json:"received_p50_ms"`
	ReceivedP99      float64 `json:"received_p99_ms"`
	LatencyRow       string  `json:"latency_row"`        // the load at which these were measured: the largest with which the machine was not too busy
	LatencyRate      float64 `json:"latency_pods_per_s"` // how many pods changed each second then
	LatencyBusy      float64 `json:"latency_busy"`       // and how busy the machine was
	StartAllSeconds  float64 `json:"start_all_s"`
	AgentStart       float64 `json:"agent_start_s"`
	BytesSnapshot    float64 `json:"bytes_snapshot"`
	BytesPerChange   float64 `json:"bytes_per_change"`                 // of a pod
	RSSToReference   float64 `json:"agent_rss_to_100_nodes,omitempty"` // after the start, by that of an agent with 100 nodes
	OnePodStreams    int64   `json:"one_pod_policy_streams"`           // that a policy of one pod is sent on
	AllRSS           float64 `json:"all_rss_mib"`                      // of all processes of the cluster together, at most
	APIWatches       int     `json:"api_watches"`                      // of pods, policies, Services' slices and others, by the agent while it was fed
	APIWatchesDirect int     `json:"api_watches_direct"`

	Fed    *AgentResult `json:"fed"`
	Direct *AgentResult `json:"direct,omitempty"`
	Grown  *Grown       `json:"grown,omitempty"`
	// GrownDirect is that of the agent without a fan-out.
	GrownDirect *Grown `json:"grown_direct,omitempty"`
	Rows        []Row  `json:"rows"`

	FillSeconds        float64   `json:"fill_s"`
	FanOutStartSeconds []float64 `json:"fanout_starts_s"`
	FanOutStartCPU     []float64 `json:"fanout_starts_cpu_s"`
	FanOutIdleRSS      []float64 `json:"fanout_idle_rss_mib"`
	AddPodsSeconds     float64   `json:"add_pods_s"`
	Compared           int       `json:"compared_nodes"` // whose state by their part is that by the whole
	Lost               *Lost     `json:"replica_killed,omitempty"`
	Away               *Away     `json:"api_server_away,omitempty"`

	Machine bench.Machine `json:"machine"`
	Version string        `json:"version"`
}

// Lost is what the end of one replica brought.
type Lost struct {
	Streams       int     `json:"streams"`         // that it served
	LongestMs     int64   `json:"longest_ms"`      // from the end of a stream until the next one had brought what was lacking
	AllServedS    float64 `json:"all_served_s"`    // from the end until all stand-ins were served
	EffectAfterMs float64 `json:"effect_after_ms"` // of the first change after that
	FanOutRSSMiB  float64 `json:"fanout_rss_mib"`  // of the one that is left, at most
	BytesEach     float64 `json:"bytes_each"`      // of changes that one of these streams brought

	// What was used meanwhile, seconds.
	FanOutCPUS   float64            `json:"fanout_cpu_s"`
	StandInsCPUS float64            `json:"stand_ins_cpu_s"`
	OthersCPUS   map[string]float64 `json:"others_cpu_s"`
}

// Grown is what more policies brought to an agent that is fed, and to the fan-outs that are left.
type Grown struct {
	Policies    int       `json:"policies"`
	WriteS      float64   `json:"write_s"`         // how long it took to write them
	InForceS    float64   `json:"in_force_s"`      // from then until the agent had put all in force
	Error       string    `json:"error,omitempty"` // it has not
	AgentCPU    float64   `json:"agent_cpu_s"`
	AgentRSS    float64   `json:"agent_rss_mib"` // after all rows
	FanOutRSS   []float64 `json:"fanout_rss_mib,omitempty"`
	FanOutCPU   []float64 `json:"fanout_cpu_s,omitempty"`
	Rows        []Row     `json:"rows"`
	StreamsLost int64     `json:"streams_lost"` // of stand-ins that came anew
}

// AgentResult is what one agent brought.
type AgentResult struct {
	StartSeconds float64 `json:"start_s"`
	StartCPU     float64 `json:"start_cpu_s"`
	StartRSS     float64 `json:"start_rss_mib"`
	StartPeak    float64 `json:"start_peak_mib"`
	RSS          float64 `json:"agent_rss_mib"` // 10 s after the start
	Peak         float64 `json:"peak_mib"`
	Anon         float64 `json:"anon_mib"` // of RSS, what is not of files
	RSSAfter     float64 `json:"rss_after_mib"`
	PeakAfter    float64 `json:"peak_after_mib"`
	AnonAfter    float64 `json:"anon_after_mib"`
	Idle         float64 `json:"agent_mcore_idle"`
	At20         float64 `json:"agent_mcore_at_20"`
	At100        float64 `json:"agent_mcore_at_100"`
	EveryoneMs   float64 `json:"policy_of_all_pods_ms"` // a policy whose peers are all pods, to its effect
	EveryoneCPU  float64 `json:"policy_of_all_pods_cpu_ms"`
	Rows         []Row   `json:"rows"`
}

// row is that of a load; nil = it was not measured.
func (m *AgentResult) row(name string) *Row {
	for i := range m.Rows {
		if m.Rows[i].Name == name {
			return &m.Rows[i]
		}
	}
	return nil
}

// Row is what one load brought.
type Row struct {
	Name           string             `json:"name"`
	Seconds        float64            `json:"seconds"`
	PodsPerSecond  float64            `json:"pods_per_s"` // that the API server took
	Busy           float64            `json:"machine_busy"`
	BusyDuring     float64            `json:"machine_busy_during_latency"`
	Foreign        float64            `json:"foreign_cores"`                // that others of the machine kept busy
	ForeignDuring  float64            `json:"foreign_cores_during_latency"` // likewise
	AgentMcore     float64            `json:"agent_mcore"`
	AgentRSS       float64            `json:"agent_rss_mib"`
	FanOutCores    []float64          `json:"fanout_cores"`
	FanOutRSS      []float64          `json:"fanout_rss_mib"`
	StandInCores   float64            `json:"stand_in_cores"`
	Others         map[string]float64 `json:"others_cores"` // API server, etcd, this program
	BytesPerChange float64            `json:"bytes_per_change"`
	Effect         map[string]*sample `json:"effect_ms,omitempty"`
	Received       map[string]*sample `json:"received_ms,omitempty"`
	Marks          int                `json:"marks"`
	Missed         int                `json:"missed"`
	StreamsLost    int64              `json:"streams_lost"` // of stand-ins
	Snapshots      int64              `json:"snapshots"`    // sent anew because of it
	LoadError      string             `json:"load_error,omitempty"`
}

// sample is written as its summary.
type sample struct {
	raw []float64
	bench.Summary
}

// MarshalJSON implements json.Marshaler.
func (m *sample) MarshalJSON() ([]byte, error) {
	if len(m.raw) > 0 {
		m.Summary = bench.Summarize(m.raw)
	}
	return json.Marshal(m.Summary)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *sample) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &m.Summary) }

func (m *sample) summary() bench.Summary {
	switch {
	case m == nil:
		return bench.Summary{}
	case len(m.raw) == 0: // it was read from a file
		return m.Summary
	}
	return bench.Summarize(m.raw)
}

// String is for who waits.
func (r Row) String() string {
	text := fmt.Sprintf("%s: %.0f pods/s, agent %.1f mcore, %.0f MiB; fan-outs %.2f cores, %.0f MiB; stand-ins %.2f cores; machine %.0f %% busy (others %.2f cores)",
		r.Name, r.PodsPerSecond, r.AgentMcore, r.AgentRSS, r.FanOutCores, r.FanOutRSS, r.StandInCores, 100*r.Busy, r.Foreign)
	for _, kind := range []string{"pod", "policy", "slice"} {
		if e := r.Effect[kind]; e != nil {
			text += fmt.Sprintf("; %s %.0f/%.0f", kind, e.summary().P50, e.summary().P99)
		}
	}
	if e := r.Received["all"]; e != nil {
		text += fmt.Sprintf("; received by all %.0f/%.0f ms, %d of %d missed by some, %d streams lost", e.summary().P50, e.summary().P99, r.Missed, r.Marks, r.StreamsLost)
	}
	return text
}

func (r *Result) about() {
	r.Machine, r.Version = bench.ThisMachine(), version.Version
}

// maxBusy is how busy the machine may be where latencies count.
const maxBusy = 0.7

// headline fills in what is looked at first.
func (r *Result) headline() {
	for _, s := range r.FanOutStartSeconds {
		r.FanOutStart = max(r.FanOutStart, s)
	}
	for _, a := range []*AgentResult{r.Fed, r.Direct} {
		if a == nil {
			continue
		}
		for _, row := range a.Rows {
			switch row.Name {
			case "idle":
				a.Idle = row.AgentMcore
			case "20 pods":
				a.At20 = row.AgentMcore
			case "100 pods":
				a.At100 = row.AgentMcore
			}
		}
	}
	for _, row := range r.Rows {
		r.noteFanOut(row)
	}
	if r.Fed == nil {
		return
	}
	r.AgentRSS, r.AgentStart = max(r.Fed.RSS, r.Fed.RSSAfter), r.Fed.StartSeconds
	r.AgentIdle, r.AgentAt20, r.AgentAt100 = r.Fed.Idle, r.Fed.At20, r.Fed.At100
	r.LatencyRow, r.LatencyRate = "", 0
	for _, row := range r.Fed.Rows {
		r.noteFanOut(row)
		ofPods := strings.HasSuffix(row.Name, " pods")
		if ofPods && row.BytesPerChange > 0 {
			r.BytesPerChange = row.BytesPerChange
		}
		// The largest load with which the machine was not too busy.
		if r.LatencyRow == "" || ofPods && row.BusyDuring <= maxBusy && row.PodsPerSecond > r.LatencyRate {
			r.LatencyRow, r.LatencyRate, r.LatencyBusy = row.Name, row.PodsPerSecond, row.BusyDuring
			e, all := row.Effect["all"].summary(), row.Received["all"].summary()
			r.EffectP50, r.EffectP99, r.ReceivedP50, r.ReceivedP99 = e.P50, e.P99, all.P50, all.P99
		}
	}
}

// noteFanOut notes the most that one of the fan-outs took in a row.
func (r *Result) noteFanOut(row Row) {
	for _, mib := range row.FanOutRSS {
		r.FanOutRSS = max(r.FanOutRSS, mib)
	}
	if strings.HasPrefix(row.Name, "start") {
		return
	}
	for _, c := range row.FanOutCores {
		r.FanOutCores = max(r.FanOutCores, c)
	}
}

// save writes what was measured so far.
func (s *site) save() {
	s.result.headline()
	s.must(bench.WriteJSON(filepath.Join(s.dir, resultFile), &s.result))
}

// window measures processes and the machine.
type window struct {
	began time.Time
	cpu   bench.CPUTime
	used  map[*process]time.Duration
	other map[string]float64
}

func (s *site) openWindow() *window {
	w := &window{began: time.Now(), used: map[*process]time.Duration{}}
	w.other, _ = others()
	var err error
	w.cpu, err = bench.ReadCPU()
	s.must(err)
	for _, p := range s.running() {
		w.used[p], err = p.cpu()
		s.must(err)
	}
	return w
}

func (s *site) running() (out []*process) {
	for _, p := range append([]*process{s.agent, s.standIns}, s.fanOuts...) {
		if p != nil && p.cmd.ProcessState == nil {
			out = append(out, p)
		}
	}
	return out
}

func (s *site) closeWindow(w *window, name string) Row {
	elapsed := time.Since(w.began).Seconds()
	row := Row{Name: name, Seconds: elapsed, Others: map[string]float64{}}
	cpu, err := bench.ReadCPU()
	s.must(err)
	row.Busy = (cpu.Busy - w.cpu.Busy).Seconds() / elapsed / float64(runtime.NumCPU())
	for _, p := range s.running() {
		used, err := p.cpu()
		s.must(err)
		cores := (used - w.used[p]).Seconds() / elapsed
		rss, _, _ := p.memory()
		switch p {
		case s.agent:
			row.AgentMcore, row.AgentRSS = cores*1000, rss
		case s.standIns:
			row.StandInCores = cores
		default:
			row.FanOutCores, row.FanOutRSS = append(row.FanOutCores, cores), append(row.FanOutRSS, rss)
		}
	}
	used, rss := others()
	s.result.AllRSS = max(s.result.AllRSS, rss)
	for name, now := range used {
		row.Others[name] = (now - w.other[name]) / elapsed
	}
	row.Foreign = max(0, row.Busy*float64(runtime.NumCPU())-row.Others[together])
	return row
}

// others is what the other programs of the cluster have used, seconds, and all of them together;
// this one is "bench"; and what memory all have, MiB.
func others() (out map[string]float64, rss float64) {
	out = map[string]float64{}
	dirs, err := os.ReadDir("/proc") // of our namespace
	if err != nil {
		return out, rss
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", d.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		stat := string(text)
		open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
		used := 0.0
		for _, f := range strings.Fields(stat[end+2:])[11:13] { // utime, stime in ticks of 10 ms
			if n, err := strconv.ParseFloat(f, 64); err == nil {
				used += n / 100
			}
		}
		out[together] += used
		if pages, err := strconv.ParseFloat(strings.Fields(stat[end+2:])[21], 64); err == nil {
			rss += pages * float64(os.Getpagesize()) / (1 << 20)
		}
		switch name := stat[open+1 : end]; {
		case pid == os.Getpid():
			out["bench"] += used
		case name == "etcd" || name == "kube-apiserver":
			out[name] += used
		}
	}
	return out, rss
}

// together is the name of the sum.
const together = "together"

// foreign is how many CPUs something else than this cluster keeps busy.
func (s *site) foreign(d time.Duration) float64 {
	w := s.openWindow()
	time.Sleep(d)
	return s.closeWindow(w, "").Foreign
}
