// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// LoadBalancers is the node of blocks whose addresses Services have (weirv1.LoadBalancers).
const LoadBalancers = "virtual:load-balancer"

// PoolIndex finds the pool of an address. Of two pools with one CIDR the smaller name counts.
func PoolIndex(c *View) *Prefixes[*model.Pool] {
	sorted := make([]*model.Pool, 0, len(c.Pools))
	for _, p := range c.Pools {
		if p.CIDR.IsValid() {
			sorted = append(sorted, p)
		}
	}
	slices.SortFunc(sorted, func(a, b *model.Pool) int { return cmp.Compare(b.Name, a.Name) })
	index := NewPrefixes[*model.Pool]()
	for _, p := range sorted {
		index.Set(p.CIDR, p)
	}
	return index
}

// SameLink reports whether a node's address is reached without a router between.
func SameLink(c *View, a netip.Addr) bool {
	return slices.ContainsFunc(c.Local.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}
