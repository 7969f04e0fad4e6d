// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// TestHostileChangeDuringSwitch: what policy allows or denies from one step of a change of the data
// plane on is so at the next step, for new flows and for an open one, in both directions: no change
// of policy waits for the end.
func TestHostileChangeDuringSwitch(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) { testChangeDuringSwitch(t, fam) })
	}
}

func testChangeDuringSwitch(t *testing.T, fam family) {
	const attack = "a pod goes on reaching another one that a policy shuts while the data plane changes"
	of := map[family]string{ipv4: hostile.IPv4, ipv6: hostile.IPv6}[fam]
	hostile.Record(t, attack, hostile.Pod, hostile.EBPF, of)
	hostile.Record(t, attack, hostile.Pod, hostile.NFTables, of)
	f := newFixture(t, fam)
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.service("svc", "10.96.0.1", 30001, f.b)
	f.apply()
	n := f.n1.startLive("ebpf")
	apply := func(both bool) { n.do(order{State: f.n1.state(), Both: both}) }
	apply(true)
	g := f.openGate()
	toggle, check := g.toggle, g.check
	check("before")
	for _, plane := range []string{"nft", "ebpf"} {
		stops := 0
		at := n.do(order{To: plane})
		for ; at != atEnd; stops++ {
			toggle()
			apply(at == atRemember)
			when := fmt.Sprintf("to %s, step %d, %s", plane, stops, at)
			if at == atRemember { // both have it
				check(when)
				at = n.do(order{GoOn: true})
				continue
			}
			at = n.do(order{GoOn: true}) // the Apply that is over has it
			check("after: " + when)
		}
		if want := map[string]int{"nft": 2, "ebpf": 3}[plane]; stops < want {
			t.Errorf("the change to %s stopped %d times, want %d or more: a change of policy would wait for too much of it", plane, stops, want)
		}
		toggle()
		apply(true)
		check("with " + plane)
	}
}

// gate is a policy that shuts a pod, and opens it again.
type gate struct {
	f    *fixture
	shut bool
}

// openGate opens a flow that the policy will be asked for.
func (f *fixture) openGate() *gate {
	f.t.Helper()
	if a := f.a.call(request{Op: "open", Net: "udp", Addr: f.b.at("8080"), ID: 1}); a.Err != "" {
		f.t.Fatal(a.Err)
	}
	return &gate{f: f}
}

// toggle shuts the pod, or opens it.
func (g *gate) toggle() {
	g.shut = !g.shut
	p := allow("b")
	if p.Ingress = nil; g.shut {
		g.f.cluster.Policies[p.ID()] = p
	} else {
		delete(g.f.cluster.Policies, p.ID())
	}
}

// check holds that packets of the open flow, and of new ones, pass when the pod is open and do not
// when it is shut.
func (g *gate) check(when string) {
	f := g.f
	f.t.Helper()
	patience := 0
	if g.shut {
		patience = 200
	}
	for _, r := range []struct {
		w *worker
		request
	}{
		{f.a.worker, request{Op: "talk", ID: 1}}, {f.a.worker, request{Op: "get", Net: "udp", Addr: f.b.at("8080")}},
		{f.a.worker, request{Op: "get", Net: "tcp", Addr: "10.96.0.1:80"}}, {f.c.worker, request{Op: "get", Net: "tcp", Addr: f.b.at("8080")}},
		{f.client.worker, request{Op: "get", Net: "udp", Addr: "172.30.0.8:30001"}},
	} {
		r.Timeout = patience
		if a := r.w.call(r.request); (a.Err != "") != g.shut {
			f.t.Fatalf("%s, shut: %v: %s %s %s %s: answer %q, error %q", when, g.shut, r.w.name, r.Op, r.Net, r.Addr, a.Reply, a.Err)
		}
	}
}

// TestHostileChangeDuringStart: what policy allows or denies while an agent that was started again
// loads its programs is so at once, for new flows and for an open one: programs of the run before
// evaluate packets, by tables that are written first.
func TestHostileChangeDuringStart(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) {
			const attack = "a pod goes on reaching another one that a policy shuts while the agent starts"
			hostile.Record(t, attack, hostile.Pod, hostile.EBPF, map[family]string{ipv4: hostile.IPv4, ipv6: hostile.IPv6}[fam])
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
			f.service("svc", "10.96.0.1", 30001, f.b)
			f.apply()
			g := f.openGate()
			g.check("before")
			for range 2 { // the second start finds what the first one left
				n := f.n1.startHeld()
				for range 2 {
					g.toggle()
					if at := n.do(order{State: f.n1.state()}); at != atLoading {
						t.Fatalf("the driver is at %q, want %q", at, atLoading)
					}
					g.check("while programs are held back")
				}
				n.do(order{GoOn: true})
				g.check("with the programs loaded")
				g.toggle()
				n.do(order{State: f.n1.state(), Both: true})
				g.check("after the start")
				g.toggle()
				n.do(order{State: f.n1.state(), Both: true})
			}
		})
	}
}
