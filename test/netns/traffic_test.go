// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// fixture: two nodes with two pods each, all serving tcp and udp 8080, and a client outside.
type fixture struct {
	*lan
	n1, n2          *node
	a, b, c, d      *pod // a, b on n1; c, d on n2
	client, client2 *host
}

func newFixture(t *testing.T, fam family) *fixture {
	t.Parallel()
	return newFixtureAlone(t, fam)
}

// newFixtureAlone is for a test that fills the CPUs' queues of packets, which all namespaces share.
func newFixtureAlone(t *testing.T, fam family) *fixture {
	return newFixtureWith(t, fam, "172.30.0.9")
}

// newFixtureWith is one whose second node has another address, maybe on another link.
func newFixtureWith(t *testing.T, fam family, second string) *fixture {
	l := newLAN(t, fam)
	f := &fixture{lan: l}
	f.n1, f.n2 = l.newNode("n1", "172.30.0.8"), l.newNode("n2", second)
	f.client, f.client2 = l.newClient("client", "172.30.0.55"), l.newClient("client2", "172.30.0.62")
	// Mostly nobody lives at 172.30.0.1: the default route is there so that look-ups find a route.
	for _, n := range l.nodes {
		run(t, "ip -n %s route add default via %s", n.netns, gateway(n.addr))
		if fam == ipv6 {
			run(t, "ip -n %s route add default via %s", n.netns, sixOf(gateway(n.addr)))
		}
	}
	f.a, f.b = f.n1.newPod("a", map[string]string{"app": "a"}), f.n1.newPod("b", map[string]string{"app": "b"})
	f.c, f.d = f.n2.newPod("c", map[string]string{"app": "c"}), f.n2.newPod("d", map[string]string{"app": "d"})
	for _, p := range []*pod{f.a, f.b, f.c, f.d} {
		p.listen("tcp", ":8080")
		p.listen("udp", ":8080")
	}
	f.n1.listen("tcp", ":9000")
	f.n1.listen("udp", ":9000")
	f.client.listen("tcp", ":7000")
	f.client.listen("udp", ":7000")
	return f
}

func (p *pod) at(port string) string { return p.local.Addrs[0].String() + ":" + port }

var networks = []string{"tcp", "udp"}

func want(t *testing.T, what, got, wanted string) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s: %s, want %s", what, got, wanted)
	}
}

// policyHolds: of what comes from another node, a pod gets what its policy allows.
func (f *fixture) policyHolds(t *testing.T) {
	t.Helper()
	p := allow("c", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}})
	f.put(p)
	f.apply()
	for _, nw := range networks {
		want(t, "with a policy", f.a.reaches("c", nw, f.c.at("8080")), "10.244.1.2")
		f.b.refused(nw, f.c.at("8080"))
	}
	delete(f.cluster.Policies, p.ID())
	f.apply()
	for _, nw := range networks {
		want(t, "without the policy", f.b.reaches("c", nw, f.c.at("8080")), "10.244.1.3")
	}
}

func TestPods(t *testing.T) { inBoth(t, testPods) }

func testPods(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.apply()
	f.podsReachEachOther(t)
}

func (f *fixture) podsReachEachOther(t *testing.T) {
	t.Helper()
	for _, nw := range networks {
		want(t, nw+" same node", f.a.reaches("b", nw, f.b.at("8080")), "10.244.1.2")
		want(t, nw+" other node", f.a.reaches("c", nw, f.c.at("8080")), "10.244.1.2")
		want(t, nw+" back", f.d.reaches("a", nw, f.a.at("8080")), "10.244.2.3")
		want(t, nw+" own node", f.a.reaches("n1", nw, "172.30.0.8:9000"), "10.244.1.2")
		want(t, nw+" node to its pod", f.n1.reaches("a", nw, f.a.at("8080")), "172.30.0.8")
		want(t, nw+" node to a pod elsewhere", f.n1.reaches("c", nw, f.c.at("8080")), "172.30.0.8")
		want(t, nw+" other node, translated", f.c.reaches("n1", nw, "172.30.0.8:9000"), f.n2.addr.String())
		want(t, nw+" outside, translated", f.a.reaches("client", nw, "172.30.0.55:7000"), "172.30.0.8")
	}
}

func TestVXLAN(t *testing.T) { inBoth(t, testVXLAN) }

func testVXLAN(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.encapsulate(model.EncapAlways)
	f.apply()
	f.podsReachEachOther(t)
	// and back to plain routing, live, with a connection open across it
	f.a.call(request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 1})
	f.encapsulate(model.EncapNever)
	f.apply()
	if a := f.a.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("a connection did not survive the change of the encapsulation: %s", a.Err)
	}
	f.podsReachEachOther(t)
}

func TestServices(t *testing.T) { inBoth(t, testServices) }

func testServices(t *testing.T, fam family) {
	for _, mode := range connectModes {
		if !plays(t, fam, one(connectModes, mode)) {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.ConnectTime = mode
			f.service("near", "10.96.0.1", 30001, f.b)
			f.service("far", "10.96.0.2", 30002, f.c)
			f.service("none", "10.96.0.3", 0)
			f.apply()
			for _, nw := range networks {
				want(t, nw+" near", f.a.reaches("b", nw, "10.96.0.1:80"), "10.244.1.2")
				want(t, nw+" far", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
				want(t, nw+" host to near", f.n1.reaches("b", nw, "10.96.0.1:80"), "172.30.0.8")
				want(t, nw+" host to far", f.n1.reaches("c", nw, "10.96.0.2:80"), "172.30.0.8")
				f.a.reaches("c", nw, "172.30.0.8:30002") // node port of its own node
				f.a.reaches("b", nw, "172.30.0.9:30001") // of another node
				f.a.refused(nw, "10.96.0.3:80")
				if a := f.a.get(nw, "10.96.0.2:80"); a.Peer != "10.96.0.2:80" {
					t.Errorf("getpeername says %s, want the Service's address", a.Peer)
				}
			}
		})
	}
}

func TestNodePortKeepsTheClient(t *testing.T) { inBoth(t, testNodePortKeepsTheClient) }

func testNodePortKeepsTheClient(t *testing.T, fam family) {
	for name, dsr := range map[string]bool{"tunnel": false, "dsr": true} {
		if !plays(t, fam, either(dsr)) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fam)
			f.cluster.Settings.DSR = dsr
			f.service("near", "10.96.0.1", 30001, f.b)
			f.service("far", "10.96.0.2", 30002, f.c)
			f.service("both", "10.96.0.3", 30003, f.b, f.c)
			f.apply()
			for _, nw := range networks {
				want(t, nw+" local backend", f.client.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.55")
				want(t, nw+" remote backend", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
				want(t, nw+" remote backend, other client", f.client2.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.62")
				want(t, nw+" asked at the other node", f.client.reaches("b", nw, "172.30.0.9:30001"), "172.30.0.55")
				for range 10 {
					want(t, nw+" either", f.client.reaches("", nw, "172.30.0.8:30003"), "172.30.0.55")
				}
			}
		})
	}
}

// TestHandOnThroughTheTunnel: nodes that do not share a link hand an outside client's packets on by
// VXLAN, and both ends of a connection learn what fits in there.
func TestHandOnThroughTheTunnel(t *testing.T) { inBoth(t, testHandOnThroughTheTunnel) }

func testHandOnThroughTheTunnel(t *testing.T, fam family) {
	for name, dsr := range map[string]bool{"tunnel": false, "dsr": true} {
		if !plays(t, fam, either(dsr)) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fam)
			f.routed = true
			f.cluster.Settings.DSR = dsr
			f.service("far", "10.96.0.2", 30002, f.c)
			f.apply()
			for _, nw := range networks {
				want(t, nw, f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
			}
			// 1450 less 40 of IPv4 and TCP, less 12 of the time stamp option; with IPv6 both
			// headers are longer
			if a, want := f.client.get("tcp", "172.30.0.8:30002"), 1398-2*fam.headerMore(); a.MSS != want {
				t.Errorf("the client's segments are of %d bytes, want %d", a.MSS, want)
			}
		})
	}
}

func TestModeChangeKeepsConnections(t *testing.T) { inBoth(t, testModeChangeKeepsConnections) }

func testModeChangeKeepsConnections(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.apply()
	for id, dsr := range []bool{false, true, false} {
		f.cluster.Settings.DSR = dsr
		f.apply()
		if a := f.client.call(request{Op: "open", Net: "tcp", Addr: "172.30.0.8:30002", ID: id}); a.Err != "" {
			t.Fatalf("DSR %v: %s", dsr, a.Err)
		}
		for old := 0; old <= id; old++ {
			if a := f.client.call(request{Op: "talk", ID: old}); a.Err != "" {
				t.Errorf("DSR %v: connection %d, opened before: %s", dsr, old, a.Err)
			}
		}
	}
}

func allow(app string, peers ...model.Peer) *model.Policy {
	name := model.Name{Namespace: "default", Name: "allow-" + app}
	return &model.Policy{Kind: "NetworkPolicy", Name: name, Tier: "default", AppliesIngress: true,
		Subject: model.Selector{Namespace: "default", Pods: hasApp(app)},
		Ingress: []model.Rule{{Action: model.Allow, Peers: peers}}}
}

func hasApp(app string) *model.LabelSelector {
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{app}}}}
}

func TestPolicy(t *testing.T) { inBoth(t, testPolicy) }

func testPolicy(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("far", "10.96.0.2", 30002, f.c)
	np := "172.30.0.8:30002"
	f.apply()
	open := func(w *worker, id int, addr string) {
		t.Helper()
		if a := w.call(request{Op: "open", Net: "tcp", Addr: addr, ID: id}); a.Err != "" {
			t.Fatalf("%s -> %s: %s", w.name, addr, a.Err)
		}
	}
	open(f.client.worker, 1, np)
	open(f.client2.worker, 1, np)
	open(f.a.worker, 1, f.c.at("8080"))

	p := allow("c", model.Peer{CIDR: fam.prefix("172.30.0.55/32")})
	f.cluster.Policies[p.ID()] = p
	f.apply()
	for _, nw := range networks {
		want(t, nw+" allowed client", f.client.reaches("c", nw, np), "172.30.0.55")
		f.client2.refused(nw, np)
		f.a.refused(nw, f.c.at("8080"))
		f.d.refused(nw, f.c.at("8080"))       // same node
		f.n2.reaches("c", nw, f.c.at("8080")) // the pod's own node: probes
		f.n1.refused(nw, f.c.at("8080"))
	}
	if a := f.client.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("an open connection that stays allowed: %s", a.Err)
	}
	for _, w := range []*worker{f.client2.worker, f.a.worker} {
		if a := w.call(request{Op: "talk", ID: 1}); !strings.Contains(a.Err, "connection reset") {
			t.Errorf("%s: an open connection that is denied now got %q (%s), want a reset", w.name, a.Reply, a.Err)
		}
	}

	p = allow("c", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}})
	f.cluster.Policies[p.ID()] = p
	f.apply()
	for _, nw := range networks {
		want(t, nw+" allowed pod", f.a.reaches("c", nw, f.c.at("8080")), "10.244.1.2")
		f.b.refused(nw, f.c.at("8080"))
		f.client.refused(nw, np)
	}
	delete(f.cluster.Policies, p.ID())
	f.apply()
	f.b.reaches("c", "tcp", f.c.at("8080"))
}

func TestEndpointReplaced(t *testing.T) { inBoth(t, testEndpointReplaced) }

func testEndpointReplaced(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("svc", "10.96.0.2", 30002, f.b)
	f.apply()
	f.a.call(request{Op: "open", Net: "udp", Addr: "10.96.0.2:80", ID: 1})
	f.client.call(request{Op: "open", Net: "udp", Addr: "172.30.0.9:30002", ID: 1})
	f.endpoints("svc", f.c)
	f.apply()
	for _, w := range []*worker{f.a.worker, f.client.worker} {
		if a := w.call(request{Op: "talk", ID: 1}); a.Err != "" || a.Reply[:1] != "c" {
			t.Errorf("%s: a UDP flow to a backend that was replaced got %q (%s), want c", w.name, a.Reply, a.Err)
		}
	}
	f.client.reaches("c", "tcp", "172.30.0.8:30002")
}

func TestSpoofedSource(t *testing.T) { inBoth(t, testSpoofedSource) }

func testSpoofedSource(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.apply()
	run(t, "ip -n %s-a addr add %s dev lo", f.prefix, fam.addr("10.244.1.3")) // b's address
	if a := f.a.call(request{Op: "get", Net: "udp", Addr: f.c.at("8080"), From: "10.244.1.3:5555", Timeout: 300}); a.Err == "" {
		t.Errorf("a pod sent with a foreign source address and got %q", a.Reply)
	}
}

// TestDriverRestart: the process that programs the node is killed; nothing notices, and its
// successor writes nothing.
func TestDriverRestart(t *testing.T) { inBoth(t, testDriverRestart) }

func testDriverRestart(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.apply()
	f.client.call(request{Op: "open", Net: "tcp", Addr: "172.30.0.8:30002", ID: 1})
	for _, n := range f.nodes {
		n.driver.kill()
	}
	check := func(when string) {
		t.Helper()
		if a := f.client.call(request{Op: "talk", ID: 1}); a.Err != "" {
			t.Errorf("%s: the open connection: %s", when, a.Err)
		}
		want(t, when, f.client.reaches("c", "tcp", "172.30.0.8:30002"), "172.30.0.55")
		f.a.reaches("c", "udp", "10.96.0.2:80")
	}
	check("while no process is there")
	for _, n := range f.nodes {
		n.startAgain(t)
	}
	check("after the restart")
}
