// SPDX-License-Identifier: Apache-2.0

package service

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// The node knows first that a pod of its own is gone: its interface is. The EndpointSlice says so
// seconds later, more on a busy machine. An endpoint on this node whose address lies in a block of
// this node, and that no interface here has, has ended: what is sent there is refused.

// staleEndpoints keeps what identifies the endpoints that have ended.
type staleEndpoints struct {
	blocks []netip.Prefix // of this node, sorted
	byAddr addrIndex      // the endpoints that EndpointSlices place on this node
	local  localAddrs
}

func newStaleEndpoints() staleEndpoints { return staleEndpoints{byAddr: newAddrIndex()} }

// isStale reports whether an address that an EndpointSlice places on this node is nobody's any
// more.
func (o *staleEndpoints) isStale(a netip.Addr) bool {
	if o.local.has(a) {
		return false
	}
	return slices.ContainsFunc(o.blocks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// update takes over what blocks the node has now, and what interfaces: moved are the addresses that
// came or went with them. It returns the slices whose endpoints may have ended by it, or be there
// again.
func (o *staleEndpoints) update(c *cluster.View, dirty *model.Dirty, moved []netip.Addr) []model.Name {
	out := o.byAddr.of(moved)
	if dirty.Has(model.KindBlocks | model.KindLocal) {
		if blocks := blocksOf(c); !slices.Equal(blocks, o.blocks) {
			o.blocks = blocks
			out = slices.Collect(maps.Keys(o.byAddr.slices))
		}
	}
	return out
}

// blocksOf returns the blocks of this node.
func blocksOf(c *cluster.View) []netip.Prefix {
	var out []netip.Prefix
	for _, b := range c.Blocks {
		if b.Node == c.Local.Node && b.Node != "" && b.CIDR.IsValid() {
			out = append(out, b.CIDR.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
