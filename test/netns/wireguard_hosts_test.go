// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/wireguard"
)

const (
	hostPort  = "9000"
	clearPort = 6443 // failsafe
)

// fromNodes returns what came in by a node's uplink from other nodes' addresses and is not
// WireGuard's: neighbour discovery apart. It counts packets of connections to clearPort.
func (w *wire) fromNodes(n *node, outer uint16) (inClear []string, exempt int) {
	var others []netip.Addr
	for _, o := range n.lan.nodes {
		if o != n {
			others = append(others, n.lan.pairOf(o.addr)...)
		}
	}
	w.arrived(func(p ipPacket) {
		sport, dport := binary.BigEndian.Uint16(p.l4), binary.BigEndian.Uint16(p.l4[2:])
		switch {
		case !slices.Contains(others, p.src), p.proto == unix.IPPROTO_ICMPV6 && p.l4[0] >= 133 && p.l4[0] <= 137, p.proto == unix.IPPROTO_UDP && dport == outer:
		case p.proto == unix.IPPROTO_TCP && (sport == clearPort || dport == clearPort):
			exempt++
		default:
			inClear = append(inClear, fmt.Sprintf("from %s, protocol %d, %d to %d", p.src, p.proto, sport, dport))
		}
	})
	return inClear, exempt
}

// TestWireGuardHosts: what nodes themselves exchange is encrypted where it is asked for, and so is
// what pods send to other nodes; addresses are as without.
func TestWireGuardHosts(t *testing.T) { inBoth(t, testWireGuardHosts) }

func testWireGuardHosts(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.n2.listen("tcp", ":"+hostPort)
	f.n2.listen("udp", ":"+hostPort)
	f.n2.listen("tcp", fmt.Sprint(":", clearPort))
	at := map[*node]*wire{}
	restart := map[*node]func(){}
	for _, n := range f.nodes {
		restart[n] = n.crypt()
		at[n] = newWire(t, n.netns, "eth0")
	}
	f.apply()
	set := &f.cluster.Settings.WireGuard
	seen := func() (clear []string, exempt int) {
		for n, w := range at {
			of, k := w.fromNodes(n, set.Of(fam == ipv6).Port)
			clear, exempt = append(clear, of...), exempt+k
		}
		return clear, exempt
	}
	silent := func(when string) {
		t.Helper()
		if clear, _ := seen(); len(clear) > 0 {
			t.Errorf("%s: %d packets went in clear: %s", when, len(clear), clear[0])
		}
	}
	first, second := "172.30.0.8:"+hostPort, "172.30.0.9:"+hostPort
	nodes := func(when string) {
		t.Helper()
		for _, nw := range networks {
			want(t, when+" node to node", f.n1.reaches("n2", nw, second), "172.30.0.8")
			want(t, when+" and back", f.n2.reaches("n1", nw, first), "172.30.0.9")
		}
	}
	open := func(when string) {
		t.Helper()
		if a := f.n1.call(request{Op: "talk", ID: 1}); a.Err != "" {
			t.Errorf("%s: a connection of nodes did not survive: %s", when, a.Err)
		}
	}
	exempted := fmt.Sprint("172.30.0.9:", clearPort)
	nodes("in clear")
	f.n1.call(request{Op: "open", Net: "tcp", Addr: second, ID: 1})
	if clear, _ := seen(); len(clear) == 0 {
		t.Fatal("the test does not see what goes in clear")
	}

	// A node whose key nobody knows is reached by what it needs to publish one, and no more where
	// only encrypted packets may go.
	set.IPv4.Enabled, set.IPv6.Enabled, set.Hosts, set.Strict = fam == ipv4, fam == ipv6, true, true
	f.apply()
	seen()
	for _, nw := range networks {
		f.n1.refused(nw, second)
		f.c.refused(nw, first)
	}
	silent("strictly, without keys")
	want(t, "strictly, without keys", f.n1.reaches("n2", "tcp", exempted), "172.30.0.8")
	set.Strict = false
	f.apply()
	nodes("without keys")
	for _, n := range f.nodes {
		n.publishes()
	}
	f.apply()
	seen()

	nodes("encrypted")
	f.podsReachEachOther(t)
	for _, nw := range networks {
		want(t, "a pod to a node", f.a.reaches("n2", nw, second), "172.30.0.8")
		want(t, "a client to a node", f.client.reaches("n2", nw, second), "172.30.0.55")
		want(t, "handed on", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
		want(t, "a node to a Service", f.n1.reaches("c", nw, "10.96.0.2:80"), "172.30.0.8")
	}
	f.n1.bulk("of a node", second)
	open("encrypted")
	silent("encrypted")

	// Connections to some ports go as they are, from nodes alone.
	want(t, "a pod to a failsafe port", f.a.reaches("n2", "tcp", exempted), "172.30.0.8")
	if clear, exempt := seen(); len(clear) > 0 || exempt > 0 {
		t.Errorf("a pod's connection to port %d: %d packets in clear, and of others %v", clearPort, exempt, clear)
	}
	want(t, "to a failsafe port", f.n1.reaches("n2", "tcp", exempted), "172.30.0.8")
	if clear, exempt := seen(); len(clear) > 0 || exempt == 0 {
		t.Errorf("connections to port %d: %d packets in clear, and of others %v", clearPort, exempt, clear)
	}

	// The driver's process, and that of wireguard-go, may be killed.
	f.n1.driver.kill()
	nodes("without a driver")
	f.n1.driver.start()
	f.apply()
	restart[f.n1]()
	nodes("after processes were killed")
	open("after processes were killed")
	silent("after processes were killed")

	// What a node sends in clear all the same is not taken.
	f.n2.driver.kill()
	run(t, "ip netns exec %s nft delete table inet %s", f.n2.netns, wireguard.Table)
	run(t, "ip -%d -n %s route flush table %d", map[family]int{ipv4: 4, ipv6: 6}[fam], f.n2.netns, kernel.NodeRouteTable)
	for _, nw := range networks {
		f.n2.refused(nw, first)
	}
	if clear, _ := seen(); len(clear) == 0 {
		t.Error("the node sent nothing in clear, which was to be dropped")
	}
	f.n2.driver.start()
	f.apply()
	seen() // until then it repeated in clear what open connections had for the other node
	nodes("with another driver")
	silent("with another driver")

	set.Hosts = false
	f.apply()
	nodes("for pods alone")
	open("for pods alone")
	if clear, _ := seen(); len(clear) == 0 {
		t.Error("what nodes exchange is still encrypted")
	}
	set.Hosts = true
	f.apply()
	set.IPv4.Enabled, set.IPv6.Enabled = false, false
	f.apply()
	nodes("without encryption")
	open("without encryption")
}
