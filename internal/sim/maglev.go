// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/maglev"
	"github.com/weir-net/weir/internal/nodestate"
)

// maglevChoice is the backend that all nodes choose for a packet's flow; nil where the service does
// not want that, or this node alone may answer and the backend is elsewhere.
func (n *Node) maglevChoice(s nodestate.Service, localOnly bool, k flowKey) *nodestate.Backend {
	if !s.Maglev {
		return nil
	}
	list := slices.DeleteFunc(slices.Clone(n.state.Backends.At(s.ID)), func(b nodestate.Backend) bool { return !b.InList(false) })
	table, ok := n.maglev[s.ID]
	if !ok {
		var addrs []netip.AddrPort
		for _, b := range list {
			addrs = append(addrs, netip.AddrPortFrom(b.Addr, b.Port))
		}
		table = maglev.Table(addrs)
		n.maglev[s.ID] = table
	}
	if len(table) == 0 {
		return nil
	}
	b := list[table[maglev.Slot(netip.AddrPortFrom(k.src, k.sport), s.Affinity > 0, len(table))]]
	if localOnly && !b.Local {
		return nil
	}
	return &b
}

// follow turns the answers of a watched flow to the node that handed its packet on, or straight to
// the client when none did.
func (n *Node) follow(f *flow, k flowKey, in In) {
	via := n.handedBy(in, false, k.dst)
	rev, _ := n.find(f.partner(k.proto))
	if via == f.from || rev == nil {
		return
	}
	var w way
	var ok bool
	if via.IsValid() {
		w, ok = n.toNode(via, !n.state.Addrs[via].SameLink)
	} else {
		w, ok, _ = n.route(k.src)
	}
	if !ok {
		return
	}
	rev.way, rev.viaNode, f.from = w, via.IsValid(), via
}
