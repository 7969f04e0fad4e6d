// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/sleep"
)

// What is measured, by the environment: a test binary has no flags of its own here, because the
// test runs itself again in namespaces.
const (
	sizesEnv   = "WEIR_SCALE_SIZES"   // numbers of Services, ascending
	planesEnv  = "WEIR_SCALE_PLANES"  // weir, kube-proxy-iptables, kube-proxy-nftables
	changesEnv = "WEIR_SCALE_CHANGES" // endpoints' changes at each size
	outEnv     = "WEIR_SCALE_OUT"     // file of the results
	agentEnv   = "WEIR_SCALE_AGENT"   // the agent's binary; built when not set

	// kube-proxy takes seconds for a change and minutes for a start where there are many Services.
	peerLimitEnv   = "WEIR_SCALE_PEER_LIMIT"   // sizes above this are measured with Weir alone
	peerChangesEnv = "WEIR_SCALE_PEER_CHANGES" // as WEIR_SCALE_CHANGES
)

// Result is what one data plane did with one number of Services.
type Result struct {
	Plane    string `json:"plane"`
	Services int    `json:"services"`
	// Start is from the start of the process to the first connection to the last Service, and to
	// everything being in the kernel as far as the data plane reports.
	StartSeconds float64 `json:"start_s"`
	StartCPU     float64 `json:"start_cpu_s"`
	// StartAgain is of a process that finds its own tables in place; 0 where nothing shows that it
	// is done.
	StartAgainSeconds float64       `json:"start_again_s"`
	RSSMiB            float64       `json:"rss_mib"`      // 5 s after the start
	PeakMiB           float64       `json:"rss_peak_mib"` // highest so far
	Effect            bench.Summary `json:"effect_ms"`    // call that writes to first connection
	Write             bench.Summary `json:"write_ms"`     // of it the call itself
	CPU               float64       `json:"cpu_ms_per_change"`
	Idle              float64       `json:"idle_cpu_ms_per_s"`
	Raw               []float64     `json:"raw_effect_ms"`
}

// Report is the file of results.
type Report struct {
	Machine bench.Machine `json:"machine"`
	Results []Result      `json:"results"`
}

func sizes(t *testing.T) []int {
	var out []int
	for _, word := range strings.Split(envOr(sizesEnv, "10,300"), ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			t.Fatalf("%s: %q is not a number of Services", sizesEnv, word)
		}
		out = append(out, n)
	}
	return out
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func TestScale(t *testing.T) {
	nettest.NeedRoot(t, "making network namespaces")
	if os.Getenv(agentEnv) == "" {
		agent := filepath.Join(t.TempDir(), "weir-agent")
		build := exec.Command("go", "build", "-o", agent, "github.com/weir-net/weir/cmd/weir-agent")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building the agent: %v\n%s", err, out)
		}
		t.Setenv(agentEnv, agent)
	}
	want := sizes(t)
	if !apitest.IsolatedFor(t, 15*time.Minute+time.Duration(want[len(want)-1])*50*time.Millisecond) {
		return
	}
	w := newWorld(t)
	report := Report{Machine: bench.ThisMachine()}
	changes, peerLimit, peerChanges := number(t, changesEnv, 20), number(t, peerLimitEnv, 10000), number(t, peerChangesEnv, 20)
	for _, n := range want {
		w.grow(n)
		for _, name := range strings.Split(envOr(planesEnv, "weir"), ",") {
			count := changes
			if name != "weir" {
				if count = peerChanges; n > peerLimit {
					continue
				}
			}
			r, ok := w.measure(name, n, count)
			if !ok {
				continue
			}
			report.Results = append(report.Results, r)
			w.say("%s with %d Services: started in %.2f s (%.2f s of CPU, again in %.2f s), %.0f MiB (peak %.0f); a change takes effect in %.1f ms (p99 %.1f), of that the write %.1f ms, and costs %.2f ms of CPU",
				r.Plane, r.Services, r.StartSeconds, r.StartCPU, r.StartAgainSeconds, r.RSSMiB, r.PeakMiB, r.Effect.P50, r.Effect.P99, r.Write.P50, r.CPU)
			// Ten times what is wanted of a machine with nothing else to do; others may take more.
			if os.Getenv(outEnv) != "" && name == "weir" && (r.CPU > 20 || r.Effect.P50 > 500) {
				t.Errorf("a change of one endpoint among %d Services costs %.1f ms of CPU and takes %.0f ms", n, r.CPU, r.Effect.P50)
			}
			if out := os.Getenv(outEnv); out != "" { // after each: a run that is cut short has a result
				if err := bench.WriteJSON(out, report); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func number(t *testing.T, name string, otherwise int) int {
	n, err := strconv.Atoi(envOr(name, strconv.Itoa(otherwise)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// measure starts a data plane twice, changes endpoints under it, and takes it away again. It is not
// ok when a data plane that is not ours takes too long to start.
func (w *world) measure(name string, n, changes int) (r Result, ok bool) {
	p := w.plane(name)
	r = Result{Plane: name, Services: n}
	defer p.cleanup()
	if r.StartSeconds, r.StartCPU, ok = w.start(p); !ok {
		p.stop()
		return r, false
	}
	p.stop()
	again, _, _ := w.start(p)
	if p.ready != "" { // connections alone do not show it: the tables of the start before answer them
		r.StartAgainSeconds = again
	}
	defer p.stop()
	_ = sleep.For(w.ctx, 5*time.Second)
	r.RSSMiB, r.PeakMiB = p.memory()
	before := p.cpu()
	_ = sleep.For(w.ctx, 2*time.Second)
	r.Idle = (p.cpu() - before).Seconds() * 1000 / 2
	began, before := time.Now(), p.cpu()
	var writes []float64
	for range changes {
		write, effect := w.flip()
		writes = append(writes, write.Seconds()*1000)
		r.Raw = append(r.Raw, effect.Seconds()*1000)
		_ = sleep.For(w.ctx, p.pause)
	}
	_ = sleep.For(w.ctx, time.Second) // what is done after a change is part of what it costs
	idle := r.Idle * time.Since(began).Seconds()
	r.CPU = max(0, (p.cpu()-before).Seconds()*1000-idle) / float64(changes)
	r.Effect, r.Write = bench.Summarize(r.Raw), bench.Summarize(writes)
	return r, true
}

// start starts the data plane and waits until it has done all.
func (w *world) start(p *plane) (elapsed, cpu float64, ok bool) {
	began := time.Now()
	p.start()
	limit := began.Add(await.Patience + time.Duration(w.services)*15*time.Millisecond)
	for !p.programmed() || !w.answers(w.last) {
		if time.Now().After(limit) {
			if p.ready == "" {
				w.say("%s has not programmed %d Services within %s, and is left out", p.name, w.services, time.Since(began).Round(time.Second))
				return 0, 0, false
			}
			w.t.Fatalf("%s has not programmed %d Services within %s\n%s", p.name, w.services, time.Since(began), p.log())
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began).Seconds(), p.cpu().Seconds(), true
}

func (r Result) String() string { return fmt.Sprintf("%s/%d", r.Plane, r.Services) }
