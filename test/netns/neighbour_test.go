// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// A client on the link resolves a load balancer's address, by exactly one node's answer, and
// connects. Another node answers when that one is not ready. No agent is needed for the answers.
func TestNeighboursOfALoadBalancer(t *testing.T) { inBoth(t, testNeighboursOfALoadBalancer) }

func testNeighboursOfALoadBalancer(t *testing.T, fam family) {
	f := newFixture(t, fam)
	const vip = "172.30.0.241"
	f.cluster.Pools["lb"] = &model.Pool{Name: "lb", CIDR: fam.prefix("172.30.0.240/28"), BlockBits: fam.prefix("172.30.0.240/28").Bits(), LoadBalancer: true}
	f.service("lb", "10.96.0.40", 0, f.a, f.c).LBIPs = []netip.Addr{netip.MustParseAddr(fam.addr(vip))}
	f.apply()

	owner := func() *node {
		t.Helper()
		run(t, "ip -n %s neigh flush all", f.client.netns)
		want(t, "the client's address", f.client.reaches("", "tcp", vip+":80"), f.client.addr.String())
		seen := run(t, "ip -n %s neigh show %s", f.client.netns, fam.addr(vip))
		for _, n := range f.nodes {
			if m := n.mac; strings.Contains(seen, fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])) {
				return n
			}
		}
		t.Fatalf("the client sees %q", seen)
		return nil
	}
	first := owner()
	// Everybody on the link and in the cluster gets there, the nodes themselves as well.
	f.client2.reaches("", "tcp", vip+":80")
	for _, w := range []*worker{f.a.worker, f.d.worker, f.n1.worker, f.n2.worker} {
		w.reaches("", "tcp", vip+":80")
	}
	settings := f.cluster.Settings
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.apply()
	for _, w := range []*worker{f.a.worker, f.n1.worker, f.n2.worker} {
		w.reaches("", "tcp", vip+":80")
	}
	f.cluster.Settings = settings
	f.client.refused("tcp", vip+":81")
	// Without any process of ours the answers go on.
	first.driver.kill()
	if owner() != first {
		t.Error("the address moved when the driver was killed")
	}
	first.driver.start()
	down := *f.cluster.Nodes[first.name]
	down.NotReady = true
	f.cluster.Nodes[first.name] = &down
	f.apply()
	if owner() == first {
		t.Error("a node that is not ready answers")
	}
}
