// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// loadBalancers is the node of blocks whose addresses Services have (weirv1.LoadBalancers).
const loadBalancers = "virtual:load-balancer"

// poolIndex finds the pool of an address. Of two pools with one CIDR the smaller name counts.
func poolIndex(c *cluster) *prefixes[*model.Pool] {
	sorted := make([]*model.Pool, 0, len(c.Pools))
	for _, p := range c.Pools {
		if p.CIDR.IsValid() {
			sorted = append(sorted, p)
		}
	}
	slices.SortFunc(sorted, func(a, b *model.Pool) int { return cmp.Compare(b.Name, a.Name) })
	index := newPrefixes[*model.Pool]()
	for _, p := range sorted {
		index.set(p.CIDR, p)
	}
	return index
}

// sameLink reports whether a node's address is reached without a router between.
func sameLink(c *cluster, a netip.Addr) bool {
	return slices.ContainsFunc(c.Local.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}
