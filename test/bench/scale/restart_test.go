// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/sleep"
)

// restartsEnv is how often the agent is ended and started again, and then how often another one
// takes its place; nothing is measured where it is not set.
const restartsEnv = "WEIR_SCALE_RESTARTS"

// otherAgentEnv is the path of another version of the agent, whose maps have another layout
// (WEIR_ABI), perhaps: it and the first one take each other's place in turns.
const otherAgentEnv = "WEIR_SCALE_OTHER_AGENT"

// TestChangesDuringRestart measures what TestChangesDuringSwitch does while the agent is ended and
// started again, and while another one takes its place, as in an upgrade.
func TestChangesDuringRestart(t *testing.T) {
	if os.Getenv(restartsEnv) == "" || os.Getenv(agentEnv) == "" {
		t.Skip("measures when " + restartsEnv + " and " + agentEnv + " are set, as root")
	}
	nettest.NeedRoot(t, "making network namespaces")
	if !apitest.IsolatedFor(t, 15*time.Minute) {
		return
	}
	w := newWorld(t)
	w.grow(10)
	p := w.plane("weir")
	defer p.cleanup()
	w.start(p)
	defer func() { p.stop() }()
	n := number(t, restartsEnv, 10)
	var quiet, restarts, handed []float64
	for range n {
		w.flips(&quiet, forSpan(2*time.Second))
		ended := make(chan struct{})
		w.say("ending the agent at %s", time.Now().Format("15:04:05.000"))
		go func() {
			defer close(ended)
			p.stop()
			p.start()
		}()
		w.flips(&restarts, func() bool {
			select {
			case <-ended:
				return p.programmed()
			default:
				return false
			}
		})
		w.flips(&restarts, forSpan(time.Second))
	}
	for i := range n {
		next := w.plane("weir")
		if i%2 == 0 {
			next.out += "-2"
		}
		if other := os.Getenv(otherAgentEnv); other != "" && i%2 == 0 {
			next.args[0] = other
		}
		w.say("another agent begins at %s", time.Now().Format("15:04:05.000"))
		next.start()
		w.flips(&handed, next.programmed)
		w.flips(&handed, forSpan(time.Second))
		p.stop()
		p = next
	}
	next := w.plane("weir")
	next.out += "-3"
	next.start()
	w.flips(&handed, next.programmed)
	w.must(next.proc.Process.Kill()) // the one before waits, and works again
	next.proc.Wait()
	before := bytes.Count(p.log(), []byte(p.ready))
	var back []float64
	w.flips(&back, func() bool { return bytes.Count(p.log(), []byte(p.ready)) > before })
	w.summarize("while nothing else changes", quiet)
	w.summarize("while the agent is ended and started again", restarts)
	w.summarize("while another agent takes its place", handed)
	w.summarize("while the one before works again, because the other one was killed", back)
	if path := os.Getenv(outEnv); path != "" {
		w.must(os.WriteFile(path, p.log(), 0o644))
	}
}

// flips changes an endpoint every 100 ms, or as soon as the change before has had its effect, and
// notes how long each took, ms.
func (w *world) flips(into *[]float64, until func() bool) {
	for !until() {
		began := time.Now()
		_, effect := w.flip()
		*into = append(*into, effect.Seconds()*1000)
		if effect > time.Second {
			w.say("a change at %s had its effect after %s", began.Format("15:04:05.000"), effect.Round(time.Millisecond))
		}
		_ = sleep.For(w.ctx, 100*time.Millisecond-time.Since(began))
	}
}

// forSpan is true once a time is over.
func forSpan(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

// summarize says how long changes took.
func (w *world) summarize(when string, all []float64) {
	s := bench.Summarize(all)
	load, err := os.ReadFile("/proc/loadavg")
	w.must(err)
	w.say("%d changes %s: p50 %.0f ms, p99 %.0f, longest %.0f (load %s)", len(all), when, s.P50, s.P99, slices.Max(all), load[:len(load)-1])
	if limit := 1000.0; s.P99 > limit {
		w.say("p99 is beyond %.0f ms", limit)
	}
}
