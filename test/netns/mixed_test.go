// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// inMixed plays a test with each family, where n1 has eBPF and all other nodes nftables: on one
// link and not, with answers through the node that was asked and direct ones.
func inMixed(t *testing.T, play func(t *testing.T, f *fixture)) {
	t.Parallel()
	for name, fam := range map[string]family{"mixed-IPv4": ipv4, "mixed-IPv6": ipv6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inModes(t, fam, func(t *testing.T, mode mode) {
				f := newFixture(t, fam)
				f.routed, f.cluster.Settings.DSR = mode.routed, mode.dsr
				play(t, f)
			})
		})
	}
}

// TestMixedTaken: what a node with eBPF hands on reaches backends of a node with nftables with the
// client's address.
func TestMixedTaken(t *testing.T) {
	inMixed(t, func(t *testing.T, f *fixture) {
		const vip = "203.0.113.9"
		f.service("near", "10.96.0.1", 30001, f.b)
		f.service("far", "10.96.0.2", 30002, f.c)
		f.cluster.Services[model.Name{Namespace: "default", Name: "far"}].ExternalIPs = f.pairOf(netip.MustParseAddr(vip))
		f.echoService("bulk", "10.96.0.4", 30004, f.c)
		f.c.listen("tcp", ":8090")
		f.apply()
		f.podsReachEachOther(t)
		f.asks(vip, f.n1)
		for _, nw := range networks {
			want(t, nw+" node port", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
			want(t, nw+" node port, another client", f.client2.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.62")
			want(t, nw+" external IP", f.client.reaches("c", nw, vip+":80"), "172.30.0.55")
			want(t, nw+" the backend's own node", f.client.reaches("c", nw, "172.30.0.9:30002"), "172.30.0.55")
			want(t, nw+" pod to far", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
			want(t, nw+" pod to near", f.d.reaches("b", nw, "10.96.0.1:80"), "10.244.2.3")
			want(t, nw+" host to far", f.n1.reaches("c", nw, "10.96.0.2:80"), "172.30.0.8")
			want(t, nw+" host to near", f.n2.reaches("b", nw, "10.96.0.1:80"), "172.30.0.9")
		}
		f.client.bulk("more than a packet, both ways", "172.30.0.8:30004")
	})
}

// TestMixedHandedOn: what a node with nftables hands on is taken by nodes with eBPF and with
// nftables, which see the client's address.
func TestMixedHandedOn(t *testing.T) {
	inMixed(t, func(t *testing.T, f *fixture) {
		const vip = "203.0.113.9"
		n3 := f.newNode("n3", "172.30.0.10")
		run(t, "ip -n %s route add default via %s", n3.netns, f.family.addr("172.30.0.1"))
		e := n3.newPod("e", nil)
		for _, nw := range networks {
			e.listen(nw, ":8080")
		}
		f.service("near", "10.96.0.1", 30001, f.b).ExternalIPs = f.pairOf(netip.MustParseAddr(vip))
		f.service("far", "10.96.0.2", 30002, f.c)
		f.service("all", "10.96.0.3", 30003, f.b, f.c, e)
		f.echoService("bulk", "10.96.0.4", 30004, f.b)
		f.b.listen("tcp", ":8090")
		f.apply()
		f.asks(vip, f.n2)
		for _, nw := range networks {
			want(t, nw+" to eBPF", f.client.reaches("b", nw, "172.30.0.9:30001"), "172.30.0.55")
			want(t, nw+" to eBPF, another client", f.client2.reaches("b", nw, "172.30.0.9:30001"), "172.30.0.62")
			want(t, nw+" to eBPF, external IP", f.client.reaches("b", nw, vip+":80"), "172.30.0.55")
			want(t, nw+" to nftables", f.client.reaches("c", nw, "172.30.0.10:30002"), "172.30.0.55")
			want(t, nw+" by eBPF", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
			seen := map[string]bool{}
			for range 30 {
				a := f.client.get(nw, "172.30.0.9:30003")
				name, from, _ := strings.Cut(a.Reply, " ")
				seen[name] = true
				if a.Err != "" || !strings.HasPrefix(from, "172.30.0.55:") {
					t.Errorf("%s to any: %q (%s)", nw, a.Reply, a.Err)
				}
			}
			if len(seen) < 2 {
				t.Errorf("%s: of three backends only %v was chosen", nw, seen)
			}
		}
		f.client.bulk("more than a packet, both ways", "172.30.0.9:30004")
		// The rule for what is handed on is before the one for the table local, of which there
		// is one.
		for _, ip := range []string{"ip -4", "ip -6"} {
			rules := strings.Split(run(t, "%s -n %s rule | grep -E '^[01]:'", ip, f.n2.netns), "\n")
			if ip == "ip -6" && f.family != ipv6 {
				continue
			}
			if len(rules) != 2 || !strings.Contains(rules[0], "goto 40000") || !strings.HasSuffix(strings.TrimSpace(rules[1]), "lookup local") {
				t.Errorf("%s rule: %q", ip, rules)
			}
		}
	})
}

// TestMixedBackendsChange: connections that a node with nftables handed on stay where they are when
// other backends come and go.
func TestMixedBackendsChange(t *testing.T) {
	inMixed(t, func(t *testing.T, f *fixture) {
		f.service("web", "10.96.0.1", 30001, f.a, f.b)
		f.apply()
		opened := map[int]string{}
		for id := range 6 {
			a := f.client.call(request{Op: "open", Net: "tcp", Addr: "172.30.0.9:30001", ID: id})
			if a.Err != "" {
				t.Fatalf("connection %d: %s", id, a.Err)
			}
			opened[id] = a.Reply
		}
		for _, backends := range [][]*pod{{f.a, f.b, f.c, f.d}, {f.a, f.b, f.d}} {
			f.endpoints("web", backends...)
			f.apply()
			for id, before := range opened {
				if a := f.client.call(request{Op: "talk", ID: id}); a.Err != "" || a.Reply != before {
					t.Errorf("connection %d: %q (%s), was %q", id, a.Reply, a.Err, before)
				}
			}
		}
	})
}

// TestMixedIngressLost: the node that was asked goes. Open connections to an external IP go on by
// another one, with nothing that waits for the first.
func TestMixedIngressLost(t *testing.T) {
	inMixed(t, func(t *testing.T, f *fixture) {
		const vip = "203.0.113.9"
		n3 := f.newNode("n3", "172.30.0.10")
		run(t, "ip -n %s route add default via %s", n3.netns, f.family.addr("172.30.0.1"))
		f.service("far", "10.96.0.2", 30002, f.c).ExternalIPs = f.pairOf(netip.MustParseAddr(vip))
		f.apply()
		f.asks(vip, f.n1)
		for _, id := range []int{1, 2} {
			if a := f.client.call(request{Op: "open", Net: map[int]string{1: "tcp", 2: "udp"}[id], Addr: vip + ":80", ID: id}); a.Err != "" {
				t.Fatal(a.Err)
			}
		}
		run(t, "ip -n %s link set eth0 down", f.n1.netns)
		f.asks(vip, f.n2)
		for _, id := range []int{1, 2} {
			if a := f.client.call(request{Op: "talk", ID: id}); a.Err != "" || !strings.HasPrefix(a.Reply, "c 172.30.0.55:") {
				t.Errorf("connection %d by the backend's own node: %q (%s)", id, a.Reply, a.Err)
			}
		}
		for _, nw := range networks {
			want(t, nw+" by the node that is left", f.client.reaches("c", nw, "172.30.0.10:30002"), "172.30.0.55")
		}
	})
}

// asks leads the client's packets for an address to a node.
func (f *fixture) asks(vip string, n *node) {
	run(f.t, "ip -n %s route replace %s via %s", f.client.netns, f.family.addr(vip), f.family.addr(n.addr.String()))
}

// TestMixedPolicy: the policy of a backend's pod on a node with nftables sees the client behind a
// node with eBPF, also of what is open.
func TestMixedPolicy(t *testing.T) {
	inMixed(t, func(t *testing.T, f *fixture) {
		f.service("far", "10.96.0.2", 30002, f.c)
		f.apply()
		const np = "172.30.0.8:30002"
		for _, c := range []*host{f.client, f.client2} {
			if a := c.call(request{Op: "open", Net: "tcp", Addr: np, ID: 1}); a.Err != "" {
				t.Fatalf("%s: %s", c.name, a.Err)
			}
		}
		p := allow("c", model.Peer{CIDR: f.family.prefix("172.30.0.55/32")})
		f.cluster.Policies[p.ID()] = p
		f.apply()
		for _, nw := range networks {
			want(t, nw+" allowed client", f.client.reaches("c", nw, np), "172.30.0.55")
			f.client2.refused(nw, np)
		}
		if a := f.client.call(request{Op: "talk", ID: 1}); a.Err != "" {
			t.Errorf("an open connection that stays allowed: %s", a.Err)
		}
		if a := f.client2.call(request{Op: "talk", ID: 1}); !strings.Contains(a.Err, "connection reset") {
			t.Errorf("an open connection that is denied now got %q (%s), want a reset", a.Reply, a.Err)
		}
	})
}
