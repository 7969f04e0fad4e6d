// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// sinks has pods take streams.
func (f *fixture) sinks() {
	f.t.Helper()
	for _, p := range []*pod{f.a, f.b, f.c} {
		if a := p.call(request{Op: "sink", Addr: ":8091"}); a.Err != "" {
			f.t.Fatal(a.Err)
		}
	}
}

// held sends a stream and looks whether it is held to a rate, and reaches it.
func (f *fixture) held(what string, from *pod, addr string, rate float64, ms int) {
	t := f.t
	t.Helper()
	a := from.call(request{Op: "pour", Net: "tcp", Addr: addr, Every: ms, Timeout: 60_000})
	if a.Err != "" {
		t.Fatalf("%s: %s", what, a.Err)
	}
	seconds := float64(a.Counters["µs"]) / 1e6
	mean, most := float64(a.Counters["bytes"])*8/seconds/rate, float64(a.Counters["most"])*8/rate
	// What goes at once at the beginning is a part of a second's.
	if mean > 1+0.05/seconds || mean < 0.5 || nettest.Measuring() && mean < 0.9 {
		t.Errorf("%s: %.3f of the rate in %.1f s", what, mean, seconds)
	}
	if most > 1.05 || most < 0.5 {
		t.Errorf("%s: %.3f of the rate came by the interface in one second", what, most)
	}
	of := what + ", " + f.dataplane() + ", " + strings.TrimPrefix(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:], "nft-")
	nettest.Figure(t, of+": TCP, of the rate", mean)
	nettest.Figure(t, of+": by the interface in one second, of the rate", most)
}

// TestBandwidth holds that what a pod sends, and gets, is held to the bandwidth that it may have,
// whether the other end is a pod of its node or of another one, that a change counts for a pod that
// runs, and that other pods are not held to anything. In no second comes more than a twentieth
// above the rate by the interface, headers included. How near TCP comes to a rate is a figure.
func TestBandwidth(t *testing.T) { inBoth(t, testBandwidth) }

func testBandwidth(t *testing.T, fam family) {
	const rate = 16e6 // bits a second
	ms := 1500
	if nettest.Measuring() {
		ms = 10_000
	}
	f := newFixture(t, fam)
	f.sinks()
	f.apply()
	limit, limited := model.Limits{Bandwidth: rate}, f.limited
	free := func(from, to *pod) {
		t.Helper()
		if got := from.gbits(to.at("8091"), 300) * 1e9; got < 4*rate {
			t.Errorf("%.3g bit/s from %s to %s, whom nothing limits", got, from.name, to.name)
		}
	}
	held := func(what string, from, to *pod) {
		t.Helper()
		f.held(what, from, to.at("8091"), rate, ms)
	}
	free(f.a, f.c)
	free(f.c, f.a)
	limited(&model.QoS{Egress: limit})
	held("egress to another node", f.a, f.c)
	held("egress on one node", f.a, f.b)
	free(f.c, f.a)
	free(f.b, f.c)
	limited(&model.QoS{Ingress: limit})
	held("ingress from another node", f.c, f.a)
	held("ingress on one node", f.b, f.a)
	free(f.a, f.c)
	free(f.c, f.b)
	limited(nil)
	free(f.a, f.b)
	free(f.b, f.a)
	for _, name := range []string{"weirq", "weirr", "weiri", "tbf"} {
		if text := run(t, "ip -n %s link; tc -n %s qdisc", f.n1.netns, f.n1.netns); strings.Contains(text, name) {
			t.Errorf("%s is left:\n%s", name, text)
		}
	}
}
