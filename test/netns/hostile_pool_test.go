// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// TestHostilePoolOnTheLink: pools over the network that nodes are on, in use or disabled, keep no
// node from the others, from what is on the link, or from its own pods and those of other nodes.
func TestHostilePoolOnTheLink(t *testing.T) { inBoth(t, testHostilePoolOnTheLink) }

func testHostilePoolOnTheLink(t *testing.T, fam family) {
	recorded(t, "a pool, disabled or not, covers nodes, a gateway or the API server", hostile.Operator, fam)
	f := newFixture(t, fam)
	for name, p := range map[string]model.Pool{
		"whole":    {CIDR: netip.MustParsePrefix("172.30.0.0/16"), VXLAN: model.EncapAlways, Workload: true},
		"half":     {CIDR: netip.MustParsePrefix("172.30.0.0/26"), Workload: true, Disabled: true, NATOutgoing: true},
		"all":      {CIDR: netip.MustParsePrefix("0.0.0.0/1"), Workload: true, NATOutgoing: true},
		"balancer": {CIDR: netip.MustParsePrefix("172.30.0.8/30"), LoadBalancer: true},
	} {
		if fam == ipv6 {
			if name == "all" {
				p.CIDR = netip.MustParsePrefix("8000::/1")
			} else {
				p.CIDR = sixPrefix(p.CIDR)
			}
		}
		p.Name, p.BlockBits = name, min(p.CIDR.Bits()+10, p.CIDR.Addr().BitLen())
		f.cluster.Pools[name] = &p
	}
	f.apply()
	for _, nw := range networks {
		f.n1.reaches("client", nw, "172.30.0.55:7000")
		f.n2.reaches("n1", nw, "172.30.0.8:9000")
		f.client.reaches("n1", nw, "172.30.0.8:9000")
		f.n1.reaches("c", nw, f.c.at("8080"))
		want(t, "a pod to the outside by "+nw, f.a.reaches("client", nw, "172.30.0.55:7000"), "172.30.0.8")
	}
	f.podsReachEachOther(t)
}
