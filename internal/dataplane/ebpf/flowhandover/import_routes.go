// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"net/netip"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// MarkedRoute is by which node packets of a connection go, as its mark says.
func (t Importer) MarkedRoute(e conntrack.Entry) (conntrack.NodeRoute, bool) {
	if t.Which != ImportAll || t.Predecessor.Route == nil || e.Mark == 0 {
		return conntrack.NodeRoute{}, false
	}
	return t.Predecessor.Route(e.Mark, e.Orig.Src.Is6())
}

// importForwarded makes the entries of a connection that this node hands on.
func importForwarded[A abi.Address](t Importer, e conntrack.Entry, route conntrack.NodeRoute, now, epoch uint32) (f ImportedFlow[A], ok bool) {
	var ok1, ok2 bool
	f.Key, ok1 = KeyOf[A](e.Orig)
	f.Back, ok2 = KeyOf[A](e.Reply)
	states, live := importedStates(e)
	if !ok1 || !ok2 || !live || e.Translated() {
		return f, false
	}
	after, back := f.Key, f.Back
	f.There = abi.FlowValue[A]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport, Flags: abi.FlowHandOn}
	f.Here = abi.FlowValue[A]{Saddr: back.Saddr, Daddr: back.Daddr, Sport: back.Sport, Dport: back.Dport, Flags: abi.FlowHandOn | abi.FlowReply}
	f.There.State, f.Here.State = states[0], states[1]
	for _, v := range []*abi.FlowValue[A]{&f.There, &f.Here} {
		v.Seen, v.Epoch = now, epoch-1
		if e.Status&conntrack.SeenReply != 0 {
			v.State |= abi.StateAnswered
		}
	}
	if svc, found := t.service(e.Orig); found {
		f.There.Svc = abi.ToSvc[A](svc.ID)
		f.There.Backend = abi.Backend[A]{Addr: abi.ToAddr[A](t.node(route.Node))} // answers come from there, whatever became of the backend
		for _, b := range t.State.Backends.At(svc.ID) {                           // Which one the other node chose is not known; whether it has one is asked by it
			if t.State.HomeOf(b.Addr) == t.node(route.Node) {
				f.There.Backend = abi.Backend[A]{Addr: abi.ToAddr[A](b.Addr), Port: abi.Be16(b.Port)}
			}
		}
		f.Here.Svc, f.Here.Backend = f.There.Svc, f.There.Backend
	}
	f.Established = states[0]&abi.StateReplied != 0
	return f, routeByNode(&f.There, t, route) && routeByKernel(&f.Here, t, e.Orig.Src)
}

// routeByNode lets a flow's packets go to a node.
func routeByNode[A abi.Address](v *abi.FlowValue[A], t Importer, route conntrack.NodeRoute) bool {
	node := t.node(route.Node)
	if !node.IsValid() {
		return false
	}
	if !route.Tunnel && t.State.Addrs[route.Node].SameLink {
		return routeByKernel(v, t, node)
	}
	v.Action, v.Ifindex, v.Nexthop, v.Mtu = abi.ActTunnel, 0, abi.ToAddr[A](node), abi.TunnelMTU[A](t.State.Settings)
	return t.State.NeedsTunnel()
}

// routeByKernel lets them go as the kernel's routes say.
func routeByKernel[A abi.Address](v *abi.FlowValue[A], t Importer, to netip.Addr) bool {
	if t.Route == nil {
		return false
	}
	ifindex, via, ok := t.Route(to)
	v.Action, v.Ifindex, v.Nexthop, v.Mtu = abi.ActNeigh, uint32(ifindex), abi.ToAddr[A](via), 0
	return ok
}

// node is the primary address of another node, of the family of one of its addresses; invalid when
// nobody knows it.
func (t Importer) node(a netip.Addr) netip.Addr {
	if v := t.State.Addrs[a]; v.Kind == nodestate.AddrNode {
		return v.Node
	}
	return netip.Addr{}
}
