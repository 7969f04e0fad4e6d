// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// has reports whether an address in a pod's status is the pod's, by the plainest reading of the
// rules.
func (r reference) has(p *model.Pod, a netip.Addr) bool {
	block := r.blockOf(a)
	if p.Node == r.c.Local.Node && p.Node != "" && (block == nil || block.Node == p.Node) {
		return true
	}
	first := r.firstOf(a)
	return first != nil && first.Name == p.Name || block != nil && block.Node == p.Node && !r.contested(a)
}

// blocks returns the blocks that count.
func (r reference) blocks() []*model.Block {
	var all, out []*model.Block
	for _, b := range r.c.Blocks {
		for _, p := range r.c.Pools {
			if p.CIDR.Bits() <= b.CIDR.Bits() && p.CIDR.Contains(b.CIDR.Addr()) && cluster.BlockBits(p) <= b.CIDR.Bits() && (p.Deleted == 0 || b.Created <= p.Deleted) {
				all = append(all, b)
				break
			}
		}
	}
	slices.SortFunc(all, func(a, b *model.Block) int {
		if a.Created != b.Created {
			return int(a.Created - b.Created)
		}
		return a.CIDR.Compare(b.CIDR)
	})
	for _, b := range all {
		if !slices.ContainsFunc(out, func(o *model.Block) bool { return o.CIDR.Overlaps(b.CIDR) }) {
			out = append(out, b)
		}
	}
	return out
}

func (r reference) blockOf(a netip.Addr) *model.Block {
	for _, b := range r.blocks() {
		if b.CIDR.Contains(a) {
			return b
		}
	}
	return nil
}

// contested reports whether more than the block decides on an address.
func (r reference) contested(a netip.Addr) bool {
	for _, n := range r.c.Nodes {
		if slices.Contains(n.Addrs, a) {
			return true
		}
	}
	return model.Within(r.c.Reservations, a)
}

// firstOf returns the oldest pod with a title to an address, where more than the block decides or
// there is none.
func (r reference) firstOf(a netip.Addr) *model.Pod {
	var first *model.Pod
	block := r.blockOf(a)
	for p := range r.c.Pods.All() {
		if p.HostNetwork || p.Finished || p.Node == "" || !slices.Contains(p.Addrs, a) {
			continue
		}
		title := block != nil && block.Node == p.Node
		inPool := false
		for _, pool := range r.c.Pools {
			inPool = inPool || pool.CIDR.Contains(a)
		}
		if inPool && !slices.Contains(r.c.Local.HostAddrs, a) && !model.Within(r.c.ServiceCIDRs, a) {
			title = title || model.Within(r.c.Reservations, a) && slices.Contains(p.Asked, a) || block == nil && r.c.Settings.WorkloadRoutes && !r.ofNode(a)
		}
		if title && (first == nil || p.Created < first.Created || p.Created == first.Created && p.UID < first.UID) {
			first = p
		}
	}
	return first
}

// ofNode reports whether a Node claims an address; here they do so from the start.
func (r reference) ofNode(a netip.Addr) bool {
	for _, n := range r.c.Nodes {
		if slices.Contains(n.Addrs, a) {
			return true
		}
	}
	return false
}

// nodeHas reports whether one of a node's addresses is its own.
func (r reference) nodeHas(n *model.Node, a netip.Addr) bool {
	if n.Name == r.c.Local.Node {
		return true
	}
	for _, o := range r.c.Nodes {
		if o != n && slices.Contains(o.Addrs, a) && (o.Created < n.Created || o.Created == n.Created && o.Name < n.Name) {
			return false
		}
	}
	p, block := r.firstOf(a), r.blockOf(a)
	if p != nil && block != nil && block.Node == p.Node && p.Node != n.Name {
		return false
	}
	if block != nil && block.Node != n.Name && block.Created <= n.Created {
		return false
	}
	return !slices.Contains(r.c.Local.HostAddrs, a) && !model.Within(r.c.ServiceCIDRs, a)
}
