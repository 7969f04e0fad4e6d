// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
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
		_, pool := n.routeOf(f.backend.Addr)
		return !pool
	}
	return true
}
