// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// A virtual machine keeps its address while it moves to another pod on another node. The address is
// a block of its own, inside the block of some node, so that the longest prefix says where packets
// go. Of two pods with the address, the one on that node is an endpoint; the other one stands by:
// nothing is sent to it, and nothing that it sends has a source that counts.

// MachinesOf returns the blocks that are addresses of virtual machines; nil = none.
func MachinesOf(blocks map[netip.Prefix]*model.Block) map[netip.Addr]*model.Block {
	var out map[netip.Addr]*model.Block
	for cidr, b := range blocks {
		if b.VM == nil || !cidr.IsSingleIP() {
			continue
		}
		if out == nil {
			out = map[netip.Addr]*model.Block{}
		}
		out[cidr.Addr()] = b
	}
	return out
}

// Machines yields the blocks that are addresses of virtual machines.
func (h *Ownership) Machines() iter.Seq2[netip.Addr, *model.Block] { return maps.All(h.vms) }

// MachineAt returns the block of the virtual machine that has an address, nil when none does.
func (h *Ownership) MachineAt(a netip.Addr) *model.Block { return h.vms[a] }

// standBy takes the endpoints whose addresses are at other nodes out of those of a view: their
// interfaces are held, as those of pods of which nothing is known.
func (h *Ownership) standBy(l *model.Local) (held map[int]string) {
	for a, b := range h.vms {
		ep := l.Endpoints[a]
		if ep == nil || b.Node == l.Node {
			continue
		}
		if held == nil {
			held = map[int]string{}
			l.Endpoints = maps.Clone(l.Endpoints)
		}
		held[ep.IfIndex] = ep.Interface
		delete(l.Endpoints, a)
	}
	return held
}
