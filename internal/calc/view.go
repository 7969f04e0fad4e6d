// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// cluster is a cluster as its node sees it.
type cluster struct {
	*model.Cluster
	ipv6   bool // this node carries IPv6; IPv4 it always does
	owners *ownership
	// covered is what no pool may cover.
	covered *covered
}

// viewOf returns a cluster with those claims of nodes that count.
func viewOf(c *model.Cluster) *cluster {
	all := model.AllDirty()
	return newView(c, new(ownershipIndex).update(c, &all))
}

func newView(c *model.Cluster, held *ownership) *cluster {
	of := *c
	of.Blocks, of.Nodes = held.blocks, held.nodes
	return &cluster{Cluster: &of, ipv6: of.CarriesIPv6(), owners: held}
}

// carried reports whether addresses of this family go into tables: the one place that says so.
// Addresses that mean something else on every link are nobody's.
func (c *cluster) carried(a netip.Addr) bool {
	return a.Is4() || c.ipv6 && a.Is6() && !a.IsLinkLocalUnicast()
}

// carriedPrefix is carried for prefixes.
func (c *cluster) carriedPrefix(p netip.Prefix) bool { return p.IsValid() && c.carried(p.Addr()) }

// carriedOf returns the addresses of one family that go into tables.
func (c *cluster) carriedOf(all []netip.Addr, fam int) []netip.Addr {
	var out []netip.Addr
	for _, a := range all {
		if a.IsValid() && c.carried(a) && family(a) == fam {
			out = append(out, a)
		}
	}
	return out
}

// family numbers the families.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
