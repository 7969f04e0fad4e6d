// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/maglev"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// outsideCluster: do no table know the address?
func (n *Node) outsideCluster(dst netip.Addr) bool {
	_, known := n.state.Addrs[dst]
	_, inRoute := n.state.RouteTo(dst)
	return !known && !inRoute
}

// transits: does the packet come by the tunnel from a pod of another node, for somebody outside of
// the cluster?
func (n *Node) transits(in In, src, dst netip.Addr) bool {
	a, known := n.state.Addrs[src]
	_, inRoute := n.state.RouteTo(src)
	return in.Hook == FromTunnel && (known && a.Kind == nodestate.AddrPod || !known && inRoute) && n.outsideCluster(dst)
}

// leavesByGateway: does a flow that begins leave the cluster by an egress gateway, or not at all?
func (n *Node) leavesByGateway(in In, src, dst netip.Addr, service bool) bool {
	if !n.state.Settings.Gateways {
		return false
	}
	if in.Hook == FromWorkload {
		return n.outsideCluster(dst) && n.state.MustLeaveByGateway(src, dst)
	}
	return !service && n.transits(in, src, dst)
}

// gatewayWeight is how much a gateway suits a flow: the one with the most gets it.
func gatewayWeight(hash uint32, gateway netip.Addr) uint32 {
	v, b := hash, gateway.AsSlice()
	for at := 0; at < len(b); at += 4 {
		v = (v ^ binary.NativeEndian.Uint32(b[at:])) * 0x9e3779b1
		v ^= v >> 15
	}
	v *= 0x85ebca6b
	return v ^ v>>13
}

// Gateway returns the egress gateway by which a flow that begins leaves the cluster, of those that
// the state has for its client; invalid = there is none. With here only those on the node count, as
// for what comes by the tunnel.
func Gateway(s *nodestate.State, client, to netip.AddrPort, here bool) (best netip.Addr) {
	hash := maglev.Hash(client, false) ^ maglev.Hash(to, false)*3
	var most uint32
	for _, g := range s.GatewaysOf(client.Addr(), to.Addr()) {
		if here && s.Addrs[g].Kind != nodestate.AddrEndpoint {
			continue
		}
		if w := gatewayWeight(hash, g); !best.IsValid() || w > most {
			best, most = g, w
		}
	}
	return best
}

// leadToGateway leads a flow that begins to its gateway.
func (n *Node) leadToGateway(in In, k flowKey, fwd *flow) *dropped {
	best := Gateway(n.state, netip.AddrPortFrom(k.src, k.sport), netip.AddrPortFrom(fwd.dst, fwd.dport), in.Hook == FromTunnel)
	if !best.IsValid() {
		return &dropped{reason: reason.NoGateway}
	}
	fwd.gateway = true
	if n.kind(best) == nodestate.AddrEndpoint {
		fwd.src = n.gatewaySource(best)
		w, ok := n.fib(fwd.dst)
		if !ok {
			return &dropped{reason: reason.NoRoute}
		}
		fwd.path = w
		return nil
	}
	home, _ := n.home(best)
	if !home.IsValid() {
		return &dropped{reason: reason.NoGateway}
	}
	w, ok := n.toNode(home, byTunnel)
	if !ok {
		return &dropped{reason: reason.NoRoute}
	}
	fwd.path, fwd.viaNode, fwd.clamp = w, true, true
	return nil
}

// gatewaySource is the address with which packets leave by a gateway of this node: that with which
// its own would.
func (n *Node) gatewaySource(gateway netip.Addr) netip.Addr {
	if n.state.Addrs[gateway].NATOutgoing {
		return n.self(gateway)
	}
	return gateway
}

// gatewayDiffers: does an open flow leave otherwise than it would have to now?
func (n *Node) gatewayDiffers(f *flow, in In, k flowKey) bool {
	if f.reply || f.handOn || !n.state.Settings.Gateways && !f.gateway {
		return false
	}
	a, known := n.state.Addrs[k.src]
	wanted := n.state.MustLeaveByGateway(k.src, f.dst)
	if in.Hook != FromWorkload {
		wanted = in.Hook == FromTunnel && (!known || a.Kind == nodestate.AddrPod) && f.gateway
	}
	wanted = wanted && n.outsideCluster(f.dst)
	if wanted != f.gateway {
		return true
	}
	if !wanted {
		return false
	}
	for _, g := range n.state.GatewaysOf(k.src, f.dst) {
		if n.kind(g) == nodestate.AddrEndpoint {
			if f.path.action != Tunnel && f.src == n.gatewaySource(g) {
				return false
			}
			continue
		}
		if home, _ := n.home(g); f.path.action == Tunnel && in.Hook == FromWorkload && home == f.path.next {
			return false
		}
	}
	return true
}
