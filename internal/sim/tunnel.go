// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// Protocols that carry IP as it is (IANA): IPv4 (RFC 2003) and IPv6 (RFC 2473, 4213).
const (
	protoIPv4 = 4
	protoIPv6 = 41
)

// tunnels: does a pod that sends this to dst begin a tunnel, in which policy sees nothing?
func (n *Node) tunnels(proto model.Protocol, dst netip.Addr, port uint16) bool {
	set := &n.state.Settings
	switch proto {
	case protoIPv4, protoIPv6:
		k := n.kind(dst)
		node := k == nodestate.AddrHost || k == nodestate.AddrNode
		return !set.IPIPFromPods || proto == protoIPv4 && dst.Is4() && set.IPIP.Accept && node
	case model.ProtocolUDP:
		k := n.kind(dst)
		return port == set.Tunnel.Port && (!set.VXLANFromPods || k == nodestate.AddrHost || k == nodestate.AddrNode)
	}
	return false
}

// leadsToTunnel: does a Service lead the flow to VXLAN's port, where a node may take it for another
// node's?
func (n *Node) leadsToTunnel(in In, f *flow) bool {
	if f.svc.Proto != model.ProtocolUDP || f.backend.Port != n.state.Settings.Tunnel.Port {
		return false
	}
	if in.Hook == FromWorkload {
		return n.tunnels(model.ProtocolUDP, f.backend.Addr, f.backend.Port)
	}
	switch n.kind(f.backend.Addr) {
	case nodestate.AddrEndpoint, nodestate.AddrPod:
		return false
	case 0:
		_, pool := n.state.RouteTo(f.backend.Addr)
		return !pool
	}
	return true
}

// ipipHeader are the bytes of an outer header.
const ipipHeader = 20

// Values of the last two bits of an IP header's type of service (RFC 3168).
const (
	ecnMask      = 3
	ecnCongested = 3
)

// by is how a packet goes to another node.
type by int

const (
	byLink by = iota
	byVXLAN
	byIPIP
	byTunnel  // the one by which nodes hand on
	byLearned // as the kernel routes the address itself, else byLink
)

// routed is what a route says, or an address of kind POD.
func routed(tunnel, ipip, learned bool) by {
	switch {
	case ipip:
		return byIPIP
	case tunnel:
		return byVXLAN
	case learned:
		return byLearned
	}
	return byLink
}

// handedOn is by what a packet is handed on to a node.
func handedOn(sameLink bool) by {
	if sameLink {
		return byLink
	}
	return byTunnel
}

// handsOnByIPIP reports whether nodes hand on packets of a family by IP in IP where they are not on
// one link.
func (n *Node) handsOnByIPIP(like netip.Addr) bool {
	return n.state.Settings.IPIP.HandOn && like.Is4()
}

// takesByIPIP reports whether this node hands on to that one by IP in IP: some cannot take it.
func (n *Node) takesByIPIP(node netip.Addr) bool {
	return n.handsOnByIPIP(node) && !n.state.Addrs[node].NoIPIP
}

// throughIPIP is the path to a node by IP in IP: where the kernel's routes lead to it.
func (n *Node) throughIPIP(node netip.Addr) (path, bool) {
	w, ok := n.fib(node)
	if !ok {
		return path{}, false
	}
	w.action, w.next = Tunnel, node
	if w.mtu > 0 {
		w.mtu -= ipipHeader
	}
	if m := n.state.Settings.IPIP.MTU; m > 0 && (w.mtu == 0 || m < w.mtu) {
		w.mtu = m
	}
	return w, true
}

// segmentMTU is what of an IP packet fits into the tunnel by which nodes hand on.
func (n *Node) segmentMTU(like netip.Addr) int {
	if n.handsOnByIPIP(like) {
		return n.state.Settings.IPIP.MTU
	}
	return n.state.Settings.Tunnel.MTU - longer(like)
}

// unpacks reports whether a packet came in IP in IP, for a node that takes such.
func (n *Node) unpacks(in In) bool {
	p := in.Packet
	return in.Hook == FromUplink && n.state.Settings.IPIP.Accept && p.Type == packet.TypeIPv4 && p.Kind == packet.Other &&
		p.IP.Proto == protoIPv4 && n.kind(p.IP.Dst) == nodestate.AddrHost
}

// unpack is what becomes of a packet in IP in IP: what is in it is received as from the tunnel.
func (n *Node) unpack(in In) Result {
	if d := n.evaluateUntracked(in); d != nil {
		return n.refuse(in, *d)
	}
	outer := in.Packet
	a := n.state.Addrs[outer.IP.Src]
	forged := a.SameLink && a.MAC != [6]byte{} && packet.MAC(a.MAC) != outer.SrcMAC
	if a.Kind != nodestate.AddrNode || forged || len(outer.IP.Options) > 0 {
		return drop(in, dropped{reason: reason.TunnelSource})
	}
	if n.strays(in) {
		return drop(in, dropped{reason: reason.ReversePath})
	}
	if len(outer.Payload) < ipipHeader {
		return drop(in, dropped{reason: reason.Malformed})
	}
	inner, err := packet.Unwrap(outer)
	if err != nil {
		return drop(in, dropped{reason: reason.Malformed})
	}
	if outer.IP.TOS&ecnMask == ecnCongested {
		if inner.Kind == packet.Frame || inner.IP.TOS&ecnMask == 0 {
			return drop(in, dropped{reason: reason.Malformed})
		}
		inner.IP.TOS |= ecnCongested
	}
	n.alone, n.unseen = false, false
	r := n.receive(In{Hook: FromTunnel, IfIndex: in.IfIndex, Packet: inner, Source: outer.IP.Src, IPIP: true})
	if r.Action == Drop || r.Action == Keep {
		r.Packet = outer
	}
	return r
}
