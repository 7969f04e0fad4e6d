// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// A node, or whoever has its token, writes IPAMBlocks, the status of its pods, the addresses of its
// Node and its NodeStatus. What it writes there is a claim, and a claim counts only where it takes
// nothing from anybody else:
//
//   - a block, when it lies in a pool at a boundary of the pool's blocks and overlaps no older
//     block (acceptBlocks): in one that was deleted, when it is older than that. One that is the
//     address of a virtual machine, which nodes do not make, lies in others;
//   - a pod's address, when a block of the pod's node holds it, or an object of an administrator
//     grants it (podClaims);
//   - an address of a Node, when no older Node has it and it is neither a Service's nor a pod's
//     (acceptNodes); one that it came to claim, when it is no gateway's or API server's either;
//   - a subnet of a NodeStatus, when the node has an address in it or this node is in it too; a
//     link address, when the kernel's neighbour table does not contradict it.
//
// The rest of calc sees only what counts.

// Refusal is a claim that does not count.
type Refusal struct {
	Object string // kind and name
	Field  string
	Value  string
	Why    string
	Node   string // that makes the claim
}

// Ownership are the claims that count.
type Ownership struct {
	blocks map[netip.Prefix]*model.Block
	ByAddr *Prefixes[string] // the node of the block that holds an address
	// vms are the addresses of virtual machines, which are blocks of their own.
	vms   map[netip.Addr]*model.Block
	nodes map[string]*model.Node
	Pods  map[netip.Addr]model.Name // Pods with an address that no block of their node holds
	// special are the addresses of pods that more than their block decides on: those that
	// reservations cover, or that other Nodes claim. Of them pods has all that count.
	special func(netip.Addr) bool

	// ranged are addresses of nodes in a range of cluster IPs, with the creation of the oldest
	// Service that has it.
	ranged map[netip.Addr]int64

	refused [3][]Refusal // of blocks, nodes, pods
}

// The indices of holdings.Refused.
const (
	refusedBlocks = iota
	refusedNodes
	refusedPods
)

// OwnershipIndex keeps holdings from one cluster to the next.
type OwnershipIndex struct {
	current *Ownership
	pods    podClaims
	local   localFacts
}

// localFacts are what of model.Local claims are held against.
type localFacts struct {
	node       string
	addrs      []netip.Addr
	subnets    []netip.Prefix
	neighbours map[netip.Addr][6]byte
	links      [][6]byte
	gateways   []netip.Addr
	servers    []netip.AddrPort
}

func factsOf(l *model.Local) localFacts {
	f := localFacts{node: l.Node, addrs: l.HostAddrs, subnets: l.Subnets, neighbours: l.Neighbours, gateways: l.Gateways, servers: l.APIServers}
	for _, i := range l.Interfaces {
		if i.MAC != [6]byte{} {
			f.links = append(f.links, i.MAC)
		}
	}
	return f
}

func (f *localFacts) equal(o *localFacts) bool {
	return f.node == o.node && slices.Equal(f.addrs, o.addrs) && slices.Equal(f.subnets, o.subnets) && slices.Equal(f.links, o.links) &&
		slices.Equal(f.gateways, o.gateways) && slices.Equal(f.servers, o.servers) && maps.Equal(f.neighbours, o.neighbours)
}

// Update returns the holdings of a cluster after a change. It adds to dirty what changes by claims
// that come to count, or do so no longer; the addresses of pods apart, which peer.PodIndex.Update
// looks at.
func (h *OwnershipIndex) Update(c *model.Cluster, dirty *model.Dirty) *Ownership {
	facts := factsOf(&c.Local)
	local := h.current == nil || !facts.equal(&h.local)
	h.local = facts
	next := Ownership{}
	if h.current != nil {
		next = *h.current
	}
	changed := h.current == nil
	if h.current == nil || dirty.Has(model.KindBlocks|model.KindPools) {
		changed = true
		h.updateBlocks(c, &next, dirty)
	}
	_, servers := dirty.Slices[APIServerSlice]
	around := changed || local || servers || dirty.Has(model.KindNodes|model.KindSettings|model.KindServiceCIDRs|model.KindReservations|model.KindSlices)
	if around || len(next.ranged) > 0 && (dirty.Has(model.KindServices) || len(dirty.Services) > 0) {
		ranged := rangedOf(c)
		changed = changed || !maps.Equal(ranged, next.ranged)
		next.ranged = ranged
	}
	switch {
	case around || dirty.Has(model.KindPods):
		next.special = specialOf(c)
		h.pods.rebuild(c, &next)
	case len(dirty.Pods) > 0:
		if !h.pods.update(c, &next, dirty.Pods) && !changed {
			return h.current
		}
	case !changed:
		return h.current
	}
	next.Pods, next.refused[refusedPods] = h.pods.resolve(c, &next)
	before := next.nodes
	next.nodes, next.refused[refusedNodes] = acceptNodes(c, &next, &h.pods, before)
	if h.current != nil && !sameValues(before, next.nodes) {
		dirty.Add(model.KindNodes)
	}
	h.current = &next
	return h.current
}

// updateBlocks renews the blocks that count.
func (h *OwnershipIndex) updateBlocks(c *model.Cluster, next *Ownership, dirty *model.Dirty) {
	blocks, refused := acceptBlocks(c)
	if next.blocks == nil || !maps.EqualFunc(blocks, next.blocks, func(a, b *model.Block) bool { return a.Node == b.Node }) {
		next.ByAddr = nodesOfBlocks(blocks)
		dirty.Add(model.KindBlocks)
	}
	vms := MachinesOf(blocks)
	if !maps.EqualFunc(vms, next.vms, func(a, b *model.Block) bool { return a.Node == b.Node }) {
		dirty.Add(model.KindLocal) // which endpoints stand by
	}
	next.blocks, next.vms, next.refused[refusedBlocks] = blocks, vms, refused
}

// sameValues compares the values that pointers lead to.
func sameValues(a, b map[string]*model.Node) bool {
	return maps.EqualFunc(a, b, func(x, y *model.Node) bool { return x == y })
}

// Refusals returns what is refused, in an order of its own.
func (h *Ownership) Refusals() []Refusal {
	out := slices.Concat(h.refused[:]...)
	slices.SortFunc(out, func(a, b Refusal) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Object, b.Object), strings.Compare(a.Field, b.Field), strings.Compare(a.Value, b.Value))
	})
	return out
}

// OwnsAddr reports whether an address of a pod is the pod's, as far as the API says: what the node
// knows of its own endpoints comes before that.
func (h *Ownership) OwnsAddr(c *View, p model.PodRef, a netip.Addr) bool {
	node := p.Node()
	if h.ByBlock(node, a) {
		return true
	}
	if node == c.Local.Node && node != "" {
		if at, held := h.ByAddr.Lookup(a); !held || at == node {
			return true // written by the kubelet of this node
		}
	}
	name, is := h.Pods[a]
	return is && p.Is(name)
}

// ByBlocks returns the claims that count by blocks alone: those of nodes, and of pods without a
// block, are left out.
func ByBlocks(c *model.Cluster) *Ownership {
	blocks, _ := acceptBlocks(c)
	return &Ownership{blocks: blocks, ByAddr: nodesOfBlocks(blocks), vms: MachinesOf(blocks), special: specialOf(c)}
}

// nodesOfBlocks finds the node of the block that holds an address.
func nodesOfBlocks(blocks map[netip.Prefix]*model.Block) *Prefixes[string] {
	out := NewPrefixes[string]()
	for cidr, b := range blocks {
		out.Set(cidr, b.Node)
	}
	return out
}

// ByBlock reports whether the block of its node alone decides that an address is that of a pod on
// that node, so that it is so on every node.
func (h *Ownership) ByBlock(node string, a netip.Addr) bool {
	if h.special != nil && h.special(a) {
		return false
	}
	of, held := h.ByAddr.Lookup(a)
	return held && of == node
}

// BlockOf returns the block that holds an address, nil when none does.
func (h *Ownership) BlockOf(a netip.Addr) (of *model.Block) {
	h.ByAddr.Containing(netip.PrefixFrom(a, a.BitLen()), func(cidr netip.Prefix, _ string) bool {
		of = h.blocks[cidr]
		return false
	})
	return of
}

// EachChange calls f for the prefixes whose pods may count in one and not in the other.
func (h *Ownership) EachChange(o *Ownership, f func(netip.Prefix)) {
	if h.ByAddr != o.ByAddr {
		for _, of := range [][2]*Prefixes[string]{{h.ByAddr, o.ByAddr}, {o.ByAddr, h.ByAddr}} {
			for cidr, node := range of[0].Values {
				if other, ok := of[1].Values[cidr]; !ok || other != node {
					f(cidr)
				}
			}
		}
	}
	for _, of := range [][2]map[netip.Addr]model.Name{{h.Pods, o.Pods}, {o.Pods, h.Pods}} {
		for a, name := range of[0] {
			if other, ok := of[1][a]; !ok || other != name {
				f(netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
}

// BlockBits is the length of the prefix of a pool's blocks.
func BlockBits(p *model.Pool) int {
	bits := p.BlockBits
	if bits == 0 {
		if bits = 26; p.CIDR.Addr().Is6() {
			bits = 122
		}
	}
	return max(bits, p.CIDR.Bits())
}

// blockClaim is a block that may count, with the prefix inside which blocks of its pool can
// overlap.
type blockClaim struct {
	*model.Block
	root netip.Prefix
}

// acceptBlocks returns the blocks that count, and why others do not.
func acceptBlocks(c *model.Cluster) (map[netip.Prefix]*model.Block, []Refusal) {
	pools := PoolIndex(&View{Cluster: c})
	out := make(map[netip.Prefix]*model.Block, len(c.Blocks))
	var refused []Refusal
	refuse := func(b *model.Block, why string) {
		refused = append(refused, Refusal{Object: "IPAMBlock " + b.CIDR.String(), Field: "spec.cidr", Value: b.CIDR.String(), Why: why, Node: b.Node})
	}
	groups := make(map[netip.Prefix][]blockClaim, len(c.Blocks))
	for _, b := range c.Blocks {
		root, why := rootOf(pools, b)
		if why != "" {
			refuse(b, why)
			continue
		}
		if b.VM != nil {
			if !b.CIDR.IsSingleIP() {
				refuse(b, "is of a virtual machine, and more than one address")
				continue
			}
			out[b.CIDR] = b // its name is its address, so there is one at most
			continue
		}
		groups[root] = append(groups[root], blockClaim{b, root})
	}
	for _, group := range groups {
		if len(group) == 1 {
			out[group[0].CIDR] = group[0].Block
			continue
		}
		resolveOverlaps(group, out, refuse)
	}
	return out, refused
}

// rootOf returns the prefix of the size of the largest block that a block could overlap in its
// pools, or why the block does not count.
func rootOf(pools *Prefixes[*model.Pool], b *model.Block) (root netip.Prefix, why string) {
	if !b.CIDR.IsValid() || b.CIDR != b.CIDR.Masked() || b.CIDR.Addr().Is4In6() {
		return root, "is not the address of a network"
	}
	bits, inPool, fits := b.CIDR.Bits(), false, false
	late := ""
	pools.Containing(b.CIDR, func(_ netip.Prefix, p *model.Pool) bool {
		if p.Deleted != 0 && b.Created > p.Deleted {
			late = p.Name
			return true
		}
		size := BlockBits(p)
		inPool, fits, bits = true, fits || size <= b.CIDR.Bits(), min(bits, size)
		return true
	})
	switch {
	case !inPool && late != "":
		return root, "was claimed after IPPool " + late + " was deleted"
	case !inPool:
		return root, "lies in no IPPool"
	case !fits:
		return root, "is larger than a block of its IPPool"
	}
	return netip.PrefixFrom(b.CIDR.Addr(), bits).Masked(), ""
}

// resolveOverlaps enters the blocks of a group that overlap no older one.
func resolveOverlaps(group []blockClaim, out map[netip.Prefix]*model.Block, refuse func(*model.Block, string)) {
	slices.SortFunc(group, func(a, b blockClaim) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.UID, b.UID), a.CIDR.Compare(b.CIDR))
	})
	held := NewPrefixes[*model.Block]()
	inside := map[netip.Prefix]*model.Block{} // Prefixes that have a block that counts in them
	for _, b := range group {
		over := inside[b.CIDR]
		held.Containing(b.CIDR, func(_ netip.Prefix, o *model.Block) bool { over = o; return false })
		if over != nil {
			refuse(b.Block, fmt.Sprintf("overlaps the older block %s of node %s", over.CIDR, over.Node))
			continue
		}
		held.Set(b.CIDR, b.Block)
		out[b.CIDR] = b.Block
		for bits := b.CIDR.Bits() - 1; bits >= b.root.Bits(); bits-- {
			inside[netip.PrefixFrom(b.CIDR.Addr(), bits).Masked()] = b.Block
		}
	}
}
