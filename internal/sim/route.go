// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// route is the path to dst, or why there is none.
func (n *Node) route(dst netip.Addr) (path, bool, reason.Reason) {
	if a, ok := n.state.Addrs[dst]; ok {
		switch a.Kind {
		case nodestate.AddrHost:
			return path{action: Pass}, true, 0
		case nodestate.AddrEndpoint:
			return path{action: Local, ifindex: a.IfIndex, mac: packet.MAC(a.MAC), mtu: n.opts.LinkMTU(a.IfIndex)}, true, 0
		case nodestate.AddrPod:
			w, ok := n.remote(dst, a.Node, routed(a.Tunnel, a.IPIP, a.Learned))
			return w, ok, reason.NoRoute
		}
		if a.Tunnel {
			w, ok := n.toNode(a.Node, byVXLAN)
			return w, ok, reason.NoRoute
		}
		w, ok := n.fib(dst)
		return w, ok, reason.NoRoute
	}
	if r, ok := n.state.RouteTo(dst); ok {
		switch {
		case r.Node.IsValid():
			w, ok := n.remote(dst, r.Node, routed(r.Tunnel, r.IPIP, r.Learned))
			return w, ok, reason.NoRoute
		case r.Local:
			return path{}, false, reason.NoEndpoint
		}
		return path{}, false, reason.NoRoute
	}
	w, ok := n.fib(dst)
	return w, ok, reason.NoRoute
}

// remote is the path to dst, which lives on a node. Where the kernel was told no way to dst, it has
// that of the pool, by the host device, which fib refuses.
func (n *Node) remote(dst, node netip.Addr, how by) (path, bool) {
	if how == byLearned {
		if w, ok := n.fib(dst); ok {
			return w, true
		}
		how = byLink
	}
	return n.toNode(node, how)
}

// toNode is the path to a node, or to what lives there.
func (n *Node) toNode(node netip.Addr, how by) (path, bool) {
	switch {
	case how == byLink:
		return n.fib(node)
	case how == byIPIP, how == byTunnel && n.takesByIPIP(node):
		return n.throughIPIP(node)
	}
	return path{action: Tunnel, next: node, mtu: max(n.state.Settings.Tunnel.MTU-longer(node), 0)}, true
}

// fib asks the kernel's routing.
func (n *Node) fib(dst netip.Addr) (path, bool) {
	hop, ok := n.opts.FIB(dst)
	if !ok || hop.IfIndex == n.opts.HostIfIndex { // a route by the host device is for host processes
		return path{}, false
	}
	next := dst
	if hop.Gateway.IsValid() {
		next = hop.Gateway
	}
	return path{action: Neigh, ifindex: hop.IfIndex, next: next, mtu: hop.MTU}, true
}

// home is the other node where a backend lives, invalid when it lives here or on no node, and
// whether packets are handed on to it by the tunnel.
func (n *Node) home(dst netip.Addr) (node netip.Addr, tunnel bool) {
	if a, ok := n.state.Addrs[dst]; ok {
		if a.Kind != nodestate.AddrNode && a.Kind != nodestate.AddrPod {
			return netip.Addr{}, false
		}
		return a.Node, !a.SameLink
	}
	if r, ok := n.state.RouteTo(dst); ok && r.Node.IsValid() {
		return r.Node, !r.SameLink
	}
	return netip.Addr{}, false
}
