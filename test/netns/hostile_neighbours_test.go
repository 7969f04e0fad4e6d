// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
)

const (
	attackNeighbours     = "a pod fills the node's table of neighbours by sending to many addresses of the link"
	attackNeighboursLink = "a pod fills the node's table of neighbours by asking in the names of many"
)

// names are the addresses with which an attacker tries: few, for all namespaces of a machine share
// one table.
const names = 190

// mostNeighbours is how many entries of the table an attacker may make in a moment: two turns of
// what it has in one.
const mostNeighbours = 48

// neighbours counts the entries of a node's table at an interface.
func neighbours(t *testing.T, n *node, fam family, ifname string) int {
	t.Helper()
	return strings.Count(run(t, "ip -%d -n %s neigh show dev %s nud all", fam, n.netns, ifname), "\n")
}

// TestHostileNeighbours: a pod that sends to many addresses of the nodes' link makes the kernel
// look for a few of them.
func TestHostileNeighbours(t *testing.T) { inBoth(t, testHostileNeighbours) }

func testHostileNeighbours(t *testing.T, fam family) {
	record(t, attackNeighbours, hostile.Pod, fam)
	r := newRawPod(t, fam)
	before := neighbours(t, r.n1, fam, "eth0")
	for i := range names {
		r.at["a"].send(r.frame("udp %s > %s ttl=64 data=%q", r.port("10.244.1.2", 6000), r.port(fmt.Sprintf("172.30.0.%d", 60+i), 7000), "who are you"))
	}
	r.arrives()
	if n := neighbours(t, r.n1, fam, "eth0") - before; n > mostNeighbours {
		t.Errorf("the node looks for %d neighbours of %d", n, names)
	} else if n <= 0 {
		t.Errorf("the node looks for no neighbour")
	}
	want(t, "another pod", r.b.reaches("client", "udp", "172.30.0.55:7000"), "172.30.0.8")
}

// TestHostileNeighboursByLink: a pod that asks the node by ARP, or solicits its advertisement as a
// router, in the names of many enters a few of them.
func TestHostileNeighboursByLink(t *testing.T) { inBoth(t, testHostileNeighboursByLink) }

func testHostileNeighboursByLink(t *testing.T, fam family) {
	record(t, attackNeighboursLink, hostile.RawPod, fam)
	r := newRawPod(t, fam)
	a := r.at["a"]
	before := neighbours(t, r.n1, fam, r.a.local.Interface)
	for i := range names {
		if fam == ipv6 {
			src := fmt.Sprintf("fe80::1:%x", 1+i)
			solicitation := fmt.Sprintf("000000000101%x", a.mac[:])
			a.send(r.frame("ip %s > ff02::2 proto=58 ttl=255 data=0x8500%04x%s", src, sumOf(t, src, "ff02::2", "85000000"+solicitation), solicitation))
			continue
		}
		own, target := netip.AddrFrom4([4]byte{172, 30, 0, byte(60 + i)}).As4(), netip.MustParseAddr("172.30.0.8").As4()
		frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, a.mac[:]...)
		frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1)
		frame = append(append(frame, a.mac[:]...), own[:]...)
		frame = append(append(frame, 0, 0, 0, 0, 0, 0), target[:]...)
		a.send(frame)
	}
	r.arrives()
	n := neighbours(t, r.n1, fam, r.a.local.Interface) - before
	t.Logf("the node has %d neighbours more", n)
	if n > mostNeighbours {
		t.Errorf("the node has %d neighbours more of %d", n, names)
	}
}
