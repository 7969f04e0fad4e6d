// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// markedRoute is by which node packets of a connection go, as its mark says.
func (t importer) markedRoute(e conntrack.Entry) (conntrack.Way, bool) {
	if t.which != ImportAll || t.predecessor.Way == nil || e.Mark == 0 {
		return conntrack.Way{}, false
	}
	return t.predecessor.Way(e.Mark, e.Orig.Src.Is6())
}

// importForwarded makes the entries of a connection that this node hands on.
func importForwarded[A abi.Address](t importer, e conntrack.Entry, way conntrack.Way, now, epoch uint32) (f importedFlow[A], ok bool) {
	var ok1, ok2 bool
	f.key, ok1 = keyOf[A](e.Orig)
	f.back, ok2 = keyOf[A](e.Reply)
	states, live := importedStates(e)
	if !ok1 || !ok2 || !live || e.Translated() {
		return f, false
	}
	after, back := f.key, f.back
	f.there = abi.FlowValue[A]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport, Flags: abi.FlowHandOn}
	f.here = abi.FlowValue[A]{Saddr: back.Saddr, Daddr: back.Daddr, Sport: back.Sport, Dport: back.Dport, Flags: abi.FlowHandOn | abi.FlowReply}
	f.there.State, f.here.State = states[0], states[1]
	for _, v := range []*abi.FlowValue[A]{&f.there, &f.here} {
		v.Seen, v.Epoch = now, epoch-1
		if e.Status&conntrack.SeenReply != 0 {
			v.State |= abi.StateAnswered
		}
	}
	if svc, found := t.service(e.Orig); found {
		f.there.Svc = abi.ToSvc[A](svc.ID)
		f.there.Backend = abi.Backend[A]{Addr: abi.ToAddr[A](t.node(way.Node))} // answers come from there, whatever became of the backend
		for _, b := range t.state.Backends.At(svc.ID) {                         // which one the other node chose is not known; whether it has one is asked by it
			if t.backendNode(b.Addr) == t.node(way.Node) {
				f.there.Backend = abi.Backend[A]{Addr: abi.ToAddr[A](b.Addr), Port: abi.Be16(b.Port)}
			}
		}
		f.here.Svc, f.here.Backend = f.there.Svc, f.there.Backend
	}
	f.established = states[0]&abi.StateReplied != 0
	return f, routeByNode(&f.there, t, way) && routeByKernel(&f.here, t, e.Orig.Src)
}

// routeByNode lets a flow's packets go to a node.
func routeByNode[A abi.Address](v *abi.FlowValue[A], t importer, way conntrack.Way) bool {
	node := t.node(way.Node)
	if !node.IsValid() {
		return false
	}
	if !way.Tunnel && t.state.Addrs[way.Node].SameLink {
		return routeByKernel(v, t, node)
	}
	v.Action, v.Ifindex, v.Nexthop, v.Mtu = abi.ActTunnel, 0, abi.ToAddr[A](node), uint16(abi.TunnelMTU[A](t.state.Settings))
	return t.state.NeedsTunnel()
}

// routeByKernel lets them go as the kernel's routes say.
func routeByKernel[A abi.Address](v *abi.FlowValue[A], t importer, to netip.Addr) bool {
	if t.route == nil {
		return false
	}
	ifindex, via, ok := t.route(to)
	v.Action, v.Ifindex, v.Nexthop, v.Mtu = abi.ActNeigh, uint32(ifindex), abi.ToAddr[A](via), 0
	return ok
}

// node is the primary address of another node, of the family of one of its addresses; invalid when
// nobody knows it.
func (t importer) node(a netip.Addr) netip.Addr {
	if v := t.state.Addrs[a]; v.Kind == nodestate.AddrNode {
		return v.Node
	}
	return netip.Addr{}
}

// backendNode is the primary address of the node where a backend lives; invalid when it is this one
// or none.
func (t importer) backendNode(a netip.Addr) netip.Addr {
	if v, ok := t.state.Addrs[a]; ok {
		return v.Node
	}
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		if err != nil {
			break
		}
		if r, ok := t.state.Routes[p]; ok {
			return r.Node
		}
	}
	return netip.Addr{}
}
