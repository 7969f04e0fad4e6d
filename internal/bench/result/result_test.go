// SPDX-License-Identifier: Apache-2.0

package result

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bench/probe"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		values                      []float64
		median, low, high, sureness float64
	}{
		{nil, 0, 0, 0, 0},
		{[]float64{7}, 7, 7, 7, 0},
		{[]float64{3, 1, 2}, 2, 1, 3, 0.75},
		{[]float64{5, 1, 2, 4, 3, 6}, 3.5, 1, 6, 1 - 2.0/64},
		// n = 9: leaving one out at each end has 1-2·10/512, two 1-2·46/512 (< 95 %).
		{[]float64{9, 8, 7, 6, 5, 4, 3, 2, 1}, 5, 2, 8, 1 - 20.0/512},
	} {
		v := Estimate(c.values, "x")
		if !near(v.Median, c.median) || !near(v.Low, c.low) || !near(v.High, c.high) || !near(v.Confidence, c.sureness) {
			t.Errorf("%v: %+v", c.values, v)
		}
	}
}

// The intervals hold the truth as often as they say, for a skewed distribution.
func TestCoverage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	skewed := func(n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = math.Exp(rng.NormFloat64()) // median 1
		}
		return out
	}
	const times = 4000
	inside, ratioInside := 0, 0
	for range times {
		if v := Estimate(skewed(9), ""); v.Low <= 1 && 1 <= v.High {
			inside++
		}
		r, err := Compare(skewed(6), skewed(7))
		if err != nil {
			t.Fatal(err)
		}
		if r.Low <= 1 && 1 <= r.High {
			ratioInside++
		}
	}
	if got := float64(inside) / times; math.Abs(got-(1-20.0/512)) > 0.012 {
		t.Errorf("intervals of a median hold it in %.3f", got)
	}
	if got := float64(ratioInside) / times; got < 0.94 || got > 0.98 {
		t.Errorf("intervals of a ratio hold it in %.3f", got)
	}
}

func TestCompare(t *testing.T) {
	// All pairs: 2/1 3/1 4/1 2/2 3/2 4/2: sorted 1 1.5 2 2 3 4.
	r, err := Compare([]float64{1, 2}, []float64{2, 3, 4})
	// C(5,2) = 10 orders: the extreme ones are 1 in 10 each.
	if err != nil || !near(r.Ratio, 2) || r.Low != 1 || r.High != 4 || !near(r.Confidence, 0.8) || r.Certain() {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = Compare([]float64{10, 11, 12, 10, 11, 12}, []float64{20, 22, 24, 20, 22, 24})
	if err != nil || !near(r.Ratio, 2) || !r.Certain() || r.Confidence < 0.95 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range [][2][]float64{{nil, {1}}, {{1}, nil}, {{0}, {1}}, {{1}, {-1}}, {{1}, {math.NaN()}}} {
		if _, err := Compare(bad[0], bad[1]); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	// Tables of Mann and Whitney's U: P(U ≤ 2) of 4 and 4 is 4/70, of 3 and 5 is 4/56.
	if p := rankSums(4, 4); !near(p[2], 4.0/70) || !near(p[16], 1) {
		t.Errorf("%v", p)
	}
	if p := rankSums(3, 5); !near(p[2], 4.0/56) {
		t.Errorf("%v", p)
	}
}

// sample is a run of two rows on the paths, whose pods have a factor of the nodes' bandwidth.
func sample(name string, factor float64) *File {
	f := &File{Schema: Schema, Metadata: Metadata{Name: name, Generator: Generator, ClientNode: "a", ServerNode: "b"},
		Cluster: Cluster{DataPlane: "x"}, Settings: Settings{Rounds: 6, Duration: "1s"}}
	row := func(id string, spec probe.Spec, make func(i int) probe.Result) {
		r := Row{ID: id, Spec: spec}
		for i := range 6 {
			x := make(i)
			x.Elapsed = 1
			x.Client.Elapsed, x.Client.CPUs, x.Server.Elapsed, x.Server.CPUs = 1, 4, 1, 4
			r.Rounds = append(r.Rounds, Round{Round: i + 1, Result: x})
		}
		f.Rows = append(f.Rows, r)
	}
	row("idle", probe.Spec{Test: probe.Idle}, func(int) probe.Result {
		return probe.Result{Client: probe.Use{User: 0.1}, Server: probe.Use{User: 0.3}}
	})
	for path, times := range map[string]float64{"host2host": 1, "pod2pod": factor} {
		row(path+"/tcp", probe.Spec{Test: probe.Stream}, func(i int) probe.Result {
			return probe.Result{Bytes: int64(1e9 * times * (1 + float64(i)/100)), Client: probe.Use{System: 1.1, MemUsed: 100}, Server: probe.Use{System: 1.3}}
		})
		row(path+"/crr", probe.Spec{Test: probe.Connection}, func(i int) probe.Result {
			mean := 100 / times * (1 + float64(i)/100)
			return probe.Result{Operations: 1000, Latency: &probe.Latency{Count: 1000, Mean: mean, P50: mean, P90: mean, P99: 2 * mean, P999: 3 * mean,
				Bins: []probe.Bin{{UpTo: 100, Count: 900}, {UpTo: 200, Count: 100}}}}
		})
	}
	row("pod2pod/udp-rate", probe.Spec{Test: probe.Datagrams, Rate: 1e9}, func(int) probe.Result {
		return probe.Result{Sent: 80_000, Operations: 79_000, Lost: 1000, Size: 1250, Bytes: 79_000 * 1250}
	})
	f.Finish()
	return f
}

func TestFinish(t *testing.T) {
	f := sample("a", 0.5)
	tcp := f.Row("pod2pod/tcp")
	if v := tcp.Values[Bandwidth]; !near(v.Median, 4*1.025) || v.Unit != "Gbit/s" {
		t.Errorf("bandwidth %+v", v)
	}
	// 2.4 busy, 0.4 of it idle, for half a GB.
	if v := tcp.Values[CPUPerGB]; math.Abs(v.Median-2/0.5125) > 0.001 {
		t.Errorf("CPU for a GB %+v", v)
	}
	if v := tcp.ToHost[Bandwidth]; !near(v.Median, 0.5) || !near(v.High, 0.5) {
		t.Errorf("to host %+v", v)
	}
	if v := f.Row("pod2pod/crr").ToHost[Mean]; !near(v.Median, 2) {
		t.Errorf("to host %+v", v)
	}
	if bins := f.Row("pod2pod/crr").Histogram; len(bins) != 2 || bins[0] != (probe.Bin{UpTo: 100, Count: 5400}) {
		t.Errorf("histogram %+v", bins)
	}
	d := f.Data.Pod2Pod
	if d == nil || !near(d.TCP.Bandwidth, 4100) || !near(d.TCP.Client.CPU.System, 27.5) || !near(d.TCP.Client.CPU.Total, 27.5) || d.TCP.Client.RAM != 100 {
		t.Errorf("knb: %+v", d)
	}
	if w := strings.Join(f.Row("pod2pod/udp-rate").Warnings, "; "); !strings.Contains(w, "the rate was not held: 0.8 of 1 Gbit/s") || !strings.Contains(w, "1.2 % of the datagrams") {
		t.Errorf("warnings %q", w)
	}
	if notes := strings.Join(f.Notes(), "\n"); !strings.Contains(notes, "pod2pod/udp-rate: the rate was not held") || strings.Contains(notes, "noisy") {
		t.Errorf("notes %q", notes)
	}
	few := sample("few", 1)
	for i := range few.Rows {
		few.Rows[i].Rounds = few.Rows[i].Rounds[:3]
	}
	few.Rows[1].Rounds[0].Bytes *= 2
	few.Rows[1].Rounds[0].Operations *= 2
	if few.Rows[1].Rounds[0].Latency != nil {
		few.Rows[1].Rounds[0].Latency.Mean *= 2
	}
	few.Finish()
	if notes := strings.Join(few.Notes(), "\n"); strings.Count(notes, "3 rounds: the interval has 75 %") != 1 || !strings.Contains(notes, "all rows: 3 rounds") ||
		!strings.Contains(notes, "noisy, so that") || !strings.Contains(notes, few.Rows[1].ID) {
		t.Errorf("notes %q", notes)
	}
	// Failed rounds count for nothing.
	f.Rows[1].Rounds[0] = Round{Round: 1, Error: "x"}
	f.Finish()
	if n := len(f.Rows[1].Values[f.Rows[1].Main()].All); n != 5 || len(f.Rows[1].Warnings) < 2 {
		t.Errorf("%d rounds count, %v", n, f.Rows[1].Warnings)
	}
}

func TestWriteAndRead(t *testing.T) {
	f := sample("a", 0.5)
	name := filepath.Join(t.TempDir(), "a.json")
	if err := f.Write(name); err != nil {
		t.Fatal(err)
	}
	got, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := CompareFiles(f, got)
	if err != nil || len(c.Unlike) > 0 || len(c.Alone) > 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	for _, d := range c.Differences {
		if d.Good > 0 && (!near(d.Ratio.Ratio, 1) || d.Certain()) {
			t.Errorf("a file differs from itself: %+v", d)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(name)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if err := f.Write(filepath.Join(name, "x")); err == nil {
		t.Error("wrote into a file")
	}
}

func TestFilesOfOtherShape(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "not a file of `weir bench`",
		"{":                                "neither JSON nor YAML",
		`{"schema":"weir.dev/bench/v9"}`:   `reads "weir.dev/bench/v1"`,
		`{"results":[]}`:                   "not a file of `weir bench`",
		`[1,2]`:                            "neither JSON nor YAML",
		"\x1f\x8bnonsense":                 "not a data file of knb",
		`{"metadata":{"generator":"knb",}`: "comma",
		`{"schema":"weir.dev/bench/v1","rows":[{}]}`:                       "a row has no name",
		`{"schema":"weir.dev/bench/v1","rows":7}`:                          "reading results",
		`{"metadata":{"generator":"knb"},"data":{"pod2pod":{"tcp":"no"}}}`: "reading knb's results",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Read("/nonexistent"); err == nil {
		t.Error("read what is not there")
	}
}

const knbYAML = `metadata:
  name: "knb-1"
  generator: "knb"
  version: "1.4.1"
  date: "2021-05-01 10:00:00"
  server-node: "s"
  client-node: "c"
  socket-buffer-size: "auto"
data:
  cpu: "a CPU"
  kernel: "5.4.0"
  k8s-version: "v1.21.0"
  mtu: "1500"
  pod2pod:
    tcp:
      bandwidth: 9400
      client:
        cpu:
          total: 12.50
          user: 1.00
          nice: 0.00
          system: 11.00
          iowait: 0.25
          steal: 0.25
        ram: 700
      server:
        cpu:
          total: 20.00
          user: 1.00
          nice: 0.00
          system: 19.00
          iowait: 0.00
          steal: 0.00
        ram: 800
`

// knbArchive is a data file as knb writes it.
func knbArchive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: "./" + name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestKnb(t *testing.T) {
	const avg = "cpu-user cpu-nice cpu-system cpu-iowait cpu-steal memory-used records-number\n%s\n"
	archive := map[string]string{
		"env": "BENCHMARK_RUN_NAME=\"knb-1\"\nGENERATOR=\"knb\"\nVERSION=\"1.4.1\"\nBENCHMARK_DATE=\"2021-05-01 10:00:00\"\nSERVER_NODE=\"s\"\nCLIENT_NODE=\"c\"\n\n" +
			"IDLE_POD_NAME=\"\"\nCLIENT_TCP_P2P_POD_NAME=\"knb-client-tcp-p2p-1\"\nCLIENT_UDP_P2P_POD_NAME=\"\"\n",
		"cpu": "a CPU\n", "kernel": "5.4.0\n", "k8s-version": "v1.21.0\n", "mtu": "1500\n", "knb-client-tcp-p2p-1.bw": "9400\n",
		"knb-client-tcp-p2p-1-client.avg": fmt.Sprintf(avg, "1.00 0.00 11.00 0.25 0.25 700 10"),
		"knb-client-tcp-p2p-1-server.avg": fmt.Sprintf(avg, "1.00 0.00 19.00 0.00 0.00 800 10"),
	}
	for what, raw := range map[string][]byte{"YAML": []byte(knbYAML), "data": knbArchive(t, archive)} {
		f, err := Parse(raw)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		r := f.Row("pod2pod/tcp")
		if len(f.Rows) != 1 || r == nil || r.Values[Bandwidth].Median != 9.4 || r.Values[CPUPctServer].Median != 20 || r.Values[CPUPctClient].Median != 12.5 ||
			r.Values[MemClient].Median != 700 || f.Data.Kernel != "5.4.0" || f.Metadata.ClientNode != "c" || f.Metadata.Name != "knb-1" {
			t.Errorf("%s: %+v", what, f)
		}
		c, err := CompareFiles(f, sample("ours", 1))
		if err != nil || len(c.Differences) != 1 || c.Differences[0].Certain() || !strings.Contains(c.Differences[0].Note, "too few rounds") {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
	}
	for name, change := range map[string]string{"env": "GENERATOR=x\n", "knb-client-tcp-p2p-1.bw": "", "knb-client-tcp-p2p-1-server.avg": "x"} {
		broken := map[string]string{}
		for n, text := range archive {
			broken[n] = text
		}
		broken[name] = change
		if _, err := Parse(knbArchive(t, broken)); err == nil {
			t.Errorf("a data file with %s = %q was taken", name, change)
		}
	}
}

func TestBelow(t *testing.T) {
	a, slower := sample("a", 1), sample("b", 0.8)
	c, err := CompareFiles(a, slower)
	if err != nil {
		t.Fatal(err)
	}
	worse := c.Below(0.95, false)
	if len(worse) == 0 || len(c.Below(0.7, true)) != 0 {
		t.Errorf("%+v; %+v", worse, c.Below(0.7, true))
	}
	for _, d := range worse {
		if !strings.HasPrefix(d.Row, "pod2pod/") {
			t.Errorf("%s is the same in both", d.Row)
		}
		if d.Metric == Mean && !near(d.Ratio.Ratio, 1.25) || d.Metric == Bandwidth && !near(math.Round(d.Good*100)/100, 0.8) {
			t.Errorf("%+v", d)
		}
	}
	if c, err := CompareFiles(slower, a); err != nil || len(c.Below(0.95, true)) != 0 {
		t.Errorf("what got better is compared: %+v, %v", c, err)
	}
	var out strings.Builder
	if err := c.Show(&out, false); err != nil || !strings.Contains(out.String(), "worse") || !strings.Contains(out.String(), "1.250") {
		t.Errorf("%v\n%s", err, out.String())
	}
	b := sample("b", 1)
	b.Rows = b.Rows[:0]
	if _, err := CompareFiles(a, b); err == nil {
		t.Error("nothing was compared")
	}
}

// without empties a row's rounds, as of a path that did not work.
func without(f *File, id string) *File {
	r := f.Row(id)
	for i := range r.Rounds {
		r.Rounds[i] = Round{Round: i + 1, Error: "no answer"}
	}
	f.Finish()
	return f
}

// What worked in the first run and does not in the second is worse, whatever the limit.
func TestBelowWhatFailed(t *testing.T) {
	nothing := sample("nothing", 1)
	for i := range nothing.Row("pod2pod/tcp").Rounds {
		nothing.Row("pod2pod/tcp").Rounds[i].Bytes = 0
	}
	nothing.Finish()
	shorter := sample("shorter", 1)
	shorter.Rows = slices.DeleteFunc(shorter.Rows, func(r Row) bool { return r.ID == "pod2pod/tcp" })
	for note, b := range map[string]*File{"failed in B": without(sample("b", 1), "pod2pod/tcp"), "not in B": shorter, "nothing arrived in B": nothing} {
		c, err := CompareFiles(sample("a", 1), b)
		if err != nil {
			t.Fatal(err)
		}
		if worse := c.Below(0.1, false, Mean); len(worse) != 1 || worse[0].Row != "pod2pod/tcp" || worse[0].Note != note || worse[0].A <= 0 {
			t.Errorf("%s: %+v", note, worse)
		}
		var out strings.Builder
		if err := c.Show(&out, false); err != nil || !strings.Contains(out.String(), note) {
			t.Errorf("%v\n%s", err, out.String())
		}
		// What only the second has is no fault of it.
		if c, err = CompareFiles(b, sample("a", 1)); err != nil || len(c.Below(0.95, false)) != 0 {
			t.Errorf("%s, the other way round: %+v, %v", note, c, err)
		}
	}
}

// Certainly worse by more than the limit: the whole interval is beyond it, with 95 %.
func TestBelowNeedsTheWholeInterval(t *testing.T) {
	of := func(ratio float64, spread float64, rounds int) *File {
		f := &File{Schema: Schema}
		r := Row{ID: "pod2pod/tcp", Spec: probe.Spec{Test: probe.Stream}}
		for i := range rounds {
			bytes := int64(1e9 * ratio * (1 + spread*float64(i)/float64(rounds)))
			r.Rounds = append(r.Rounds, Round{Round: i + 1, Result: probe.Result{Elapsed: 1, Bytes: bytes, Client: probe.Use{Elapsed: 1, System: 1}}})
		}
		f.Rows = append(f.Rows, r)
		f.Finish()
		return f
	}
	for _, c := range []struct {
		a, b    *File
		strict  bool
		metrics []Metric
		want    int
	}{
		{of(1, 0.01, 6), of(0.9, 0.01, 6), false, nil, 1},
		{of(1, 0.01, 6), of(0.94, 0.04, 6), false, nil, 0}, // certainly worse, but not by so much
		{of(1, 0.01, 6), of(0.92, 0.04, 6), true, nil, 1},
		{of(1, 0.01, 3), of(0.8, 0.01, 3), false, nil, 0}, // 90 %
		{of(1, 0.01, 3), of(0.8, 0.01, 3), true, nil, 1},
		{of(1, 0.01, 6), of(0.9, 0.01, 6), false, []Metric{P99}, 0},
		{of(1, 0.01, 6), of(0.9, 0.01, 6), false, []Metric{CPUPerGB}, 1},
	} {
		cmp, err := CompareFiles(c.a, c.b)
		if err != nil {
			t.Fatal(err)
		}
		if got := cmp.Below(0.95, c.strict, c.metrics...); len(got) != c.want {
			t.Errorf("strict %v, %v: %+v, of %+v", c.strict, c.metrics, got, cmp.Differences)
		}
	}
}

// Large samples are compared by the normal distribution, which gives almost what the exact one
// does.
func TestNormalRank(t *testing.T) {
	for _, n := range [][2]int{{50, 51}, {12, 80}, {60, 45}} {
		below := rankSums(n[0], n[1])
		exact := 0
		for k := 1; k < len(below)/2 && 1-2*below[k] >= wanted; k++ {
			exact = k
		}
		k, confidence := normalRank(n[0], n[1])
		if math.Abs(float64(k-exact)) > 0.01*float64(exact)+1 || math.Abs(confidence-(1-2*below[k])) > 0.002 || confidence < wanted {
			t.Errorf("%v: %d with %.4f, exactly %d, with %.4f", n, k, confidence, exact, 1-2*below[k])
		}
	}
	many := make([]float64, maxRounds)
	for i := range many {
		many[i] = 1 + float64(i)/1e6
	}
	r, err := Compare(many, many)
	if err != nil || !near(math.Round(r.Ratio*1e6)/1e6, 1) || r.Certain() || r.Confidence < wanted || r.Low < 0.9998 || r.High > 1.0002 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestReadingIsBounded(t *testing.T) {
	list := func(what string, n int) string { return strings.TrimSuffix(strings.Repeat(what+",", n), ",") }
	for want, rows := range map[string]string{
		`row "x" has 1001 values of "mean"`: `{"id":"x","values":{"mean":{"all":[` + list("1", maxRounds+1) + `]}}}`,
		`row "x" has 1001 values of "p50"`:  `{"id":"x","ratio_to_host":{"p50":{"all":[` + list("1", maxRounds+1) + `]}}}`,
		`row "x" has 1001 rounds`:           `{"id":"x","rounds":[` + list("{}", maxRounds+1) + `]}`,
		`10001 rows`:                        list(`{"id":"x"}`, maxRows+1),
	} {
		if _, err := Parse([]byte(`{"schema":"` + Schema + `","rows":[` + rows + `]}`)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Parse([]byte(`{"schema":"` + Schema + `","rows":[{"id":"x","values":{"mean":{"all":[` + list("1", maxRounds) + `]}}}]}`)); err != nil {
		t.Error(err)
	}
}

// Idle time is that of the same number of Services, or the next; none is taken off where the client
// is no node.
func TestIdleBySize(t *testing.T) {
	f := &File{Schema: Schema}
	add := func(id string, services int, spec probe.Spec, system float64) {
		f.Rows = append(f.Rows, Row{ID: id, Services: services, Spec: spec, Rounds: []Round{{Round: 1, Result: probe.Result{Elapsed: 1, Bytes: 1e9,
			Client: probe.Use{Elapsed: 1, CPUs: 4, System: system}, OneMachine: true}}}})
	}
	stream := probe.Spec{Test: probe.Stream}
	add("pod2pod/tcp", 100, stream, 2)
	f.Finish()
	if r := &f.Rows[0]; !near(r.Values[CPUPerGB].Median, 2) || !strings.Contains(strings.Join(r.Warnings, "; "), "idle was not measured") {
		t.Errorf("%+v", r)
	}
	add("idle", 100, probe.Spec{Test: probe.Idle}, 0.25)
	add("idle", 1000, probe.Spec{Test: probe.Idle}, 0.5)
	add("pod2pod/tcp", 1000, stream, 2)
	add("pod2pod/tcp", 600, stream, 2)
	add("outside2nodeport/tcp", 1000, stream, 2)
	f.Finish()
	for key, want := range map[string]float64{"pod2pod/tcp@100": 1.75, "pod2pod/tcp@1000": 1.5, "pod2pod/tcp@600": 1.5, "outside2nodeport/tcp@1000": 2} {
		r := f.Row(key)
		if got := r.Values[CPUPerGB].Median; !near(got, want) || strings.Contains(strings.Join(r.Warnings, "; "), "idle was not measured") {
			t.Errorf("%s: %v, want %v; %v", key, got, want, r.Warnings)
		}
	}
}

// The table of latencies has no column for it.
func TestLostAnswersAreSaid(t *testing.T) {
	f := &File{Schema: Schema}
	r := Row{ID: "pod2pod/udp-rr", Spec: probe.Spec{Test: probe.UDPTrip}}
	for i := range 6 {
		r.Rounds = append(r.Rounds, Round{Round: i + 1, Result: probe.Result{Elapsed: 1, Operations: 99, Latency: &probe.Latency{Mean: 1}}})
	}
	f.Rows = append(f.Rows, r)
	f.Finish()
	if strings.Contains(strings.Join(f.Notes(), "\n"), "no answer") {
		t.Errorf("%v", f.Notes())
	}
	f.Rows[0].Rounds[3].Lost = 1
	f.Finish()
	var out strings.Builder
	if err := f.Show(&out); err != nil || !strings.Contains(out.String(), "1 % of the requests had no answer") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestOtherCongestionControlIsSaid(t *testing.T) {
	t.Parallel()
	f := sample("a", 1)
	use := func(key, control string) {
		for i := range f.Row(key).Rounds {
			f.Row(key).Rounds[i].Congestion = control
		}
	}
	use("host2host/tcp", "reno")
	for control, warned := range map[string]bool{"reno": false, "bbr": true} {
		use("pod2pod/tcp", control)
		f.Finish()
		if got := slices.ContainsFunc(f.Row("pod2pod/tcp").Warnings, func(w string) bool { return strings.Contains(w, "congestion control is bbr") }); got != warned {
			t.Errorf("%s beside reno: %q", control, f.Row("pod2pod/tcp").Warnings)
		}
	}
}
