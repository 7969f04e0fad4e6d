// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// Bits of PolicyValue.Protos, equal to enum policy_proto of the programs.
const (
	ProtoBitTCP   uint8 = 1
	ProtoBitUDP   uint8 = 2
	ProtoBitSCTP  uint8 = 4
	ProtoBitICMP  uint8 = 8
	ProtoBitOther uint8 = 16 // protocols without ports
)

// ProtoBit returns the bit of a protocol in PolicyValue.Protos, in the tables of IPv6 or of IPv4.
func ProtoBit(p model.Protocol, six bool) uint8 {
	switch {
	case p == model.ProtocolTCP:
		return ProtoBitTCP
	case p == model.ProtocolUDP:
		return ProtoBitUDP
	case p == model.ProtocolSCTP:
		return ProtoBitSCTP
	case p == model.ProtocolICMP && !six, p == model.ProtocolICMPv6 && six:
		return ProtoBitICMP
	}
	return ProtoBitOther
}

// ClassOf is look-up 1: the exact address, then the longest prefix, else class 0.
func (s *State) ClassOf(addr netip.Addr) Class {
	addr = addr.Unmap()
	if c, ok := s.Peers.Get(addr); ok {
		return c
	}
	c, _ := longest(s.PeerCIDRs, addr)
	return c
}

// RouteTo is the route of the longest prefix that has an address.
func (s *State) RouteTo(addr netip.Addr) (Route, bool) { return longest(s.Routes, addr) }

// HomeOf is the primary address of the node where an address lives; invalid when it is this one, or
// none is known.
func (s *State) HomeOf(addr netip.Addr) netip.Addr {
	if v, ok := s.Addrs[addr]; ok {
		return v.Node
	}
	r, _ := s.RouteTo(addr)
	return r.Node
}

// longest is what the longest prefix that has an address leads to.
func longest[V any](m map[netip.Prefix]V, addr netip.Addr) (v V, ok bool) {
	if len(m) == 0 {
		return v, false
	}
	for bits := addr.BitLen(); bits >= 0; bits-- {
		p, err := addr.Prefix(bits)
		if err != nil {
			return v, false
		}
		if v, ok = m[p]; ok {
			return v, true
		}
	}
	return v, false
}

// ServiceAt is the Service of what is sent to f: that of the frontend, or, at an address of a node,
// that of a node port.
func (s *State) ServiceAt(f Frontend) (Service, bool) {
	svc, ok := s.Frontends.Get(f)
	if kind := s.Addrs[f.Addr].Kind; ok || kind != AddrHost && kind != AddrNode {
		return svc, ok
	}
	if f.Addr.Is4() {
		f.Addr = netip.IPv4Unspecified()
	} else {
		f.Addr = netip.IPv6Unspecified()
	}
	return s.Frontends.Get(f)
}

// FloatingAt is the own address of the pod that a floating address leads to; invalid = none. What
// comes from outside is translated where that pod is, and not before.
func (s *State) FloatingAt(a netip.Addr, outside bool) netip.Addr {
	to, ok := s.Floating[a]
	if !ok || outside && s.Addrs[to].Kind != AddrEndpoint {
		return netip.Addr{}
	}
	return to
}

// Ports are what of a packet policy looks at in addition to its addresses and its protocol. Of
// ICMP, Dst is the type * 256 + the code; other protocols without ports have zeros.
type Ports struct{ Src, Dst uint16 }

// RuleText says in words what a rule number means, "" for none.
func (s *State) RuleText(id RuleID) string {
	if id == 0 || s == nil {
		return ""
	}
	r, ok := s.Rules.Get(id)
	if !ok {
		return fmt.Sprintf("rule %d (no longer there)", id)
	}
	return r.String()
}

// Verdict is look-up 2 for an endpoint's set in one direction: may it exchange packets of this
// protocol with these ports with peer, and which rule says so. No isolation allows by rule 0.
func (s *State) Verdict(iso Isolation, peer netip.Addr, proto model.Protocol, ports Ports) (bool, RuleID) {
	v := s.Decide(iso, peer, proto, ports)
	return v.Allow, v.Rule
}

// Decide is Verdict with all of what was found: whether it is to be logged, too.
func (s *State) Decide(iso Isolation, peer netip.Addr, proto model.Protocol, ports Ports) PolicyValue {
	if iso.Set == 0 {
		return PolicyValue{Allow: true}
	}
	key := PolicyKey{Set: iso.Set, Peer: s.ClassOf(peer), Head: true}
	head, ok := s.Policy.Get(key)
	if !ok {
		key.Peer = 0
		if head, ok = s.Policy.Get(key); !ok {
			return PolicyValue{Rule: iso.Rule}
		}
	}
	v, bit := head, ProtoBit(proto, peer.Is6())
	if head.Protos&bit != 0 {
		key.Head, key.Proto = false, proto
		lens, port := head.Lens, ports.Dst
		if bit == ProtoBitOther {
			lens, port = 1, 0
		}
		if e, ok := s.byPort(key, lens, port); ok {
			v = e
		}
	}
	if v.Sources != 0 {
		key.Sources, key.Head, key.Proto = v.Sources, true, 0
		v = s.Policy.At(key)
		key.Head = false
		if e, ok := s.byPort(key, v.Lens, ports.Src); ok {
			v = e
		}
	}
	return v
}

// byPort returns the entry with the longest prefix of a port, of the lengths in lens.
func (s *State) byPort(key PolicyKey, lens uint32, port uint16) (PolicyValue, bool) {
	for n := 16; n >= 0; n-- {
		if lens>>n&1 == 0 {
			continue
		}
		key.Len, key.Port = uint8(n), MaskPort(port, uint8(n))
		if v, ok := s.Policy.Get(key); ok {
			return v, true
		}
	}
	return PolicyValue{}, false
}

// MaskPort keeps the first bits of a port (host byte order).
func MaskPort(port uint16, bits uint8) uint16 { return port &^ (0xffff >> bits) }

// NeedsTunnel reports whether anything goes through VXLAN, or may come by it: a route or an address
// that asks for it, or a node that is not on our link, to which packets of outside clients are
// handed on through it, and which may do so while it hands on by IP in IP no longer, or not yet. So
// may any node where IP in IP is in use: VXLAN has its place at nodes that cannot take it. Pods'
// packets go through it to egress gateways of any other node.
func (s *State) NeedsTunnel() bool {
	if s.Settings.IPIP.Accept || s.Settings.IPIP.Replaced || s.Settings.Gateways {
		return true
	}
	for _, r := range s.Routes {
		if r.Tunnel && !r.IPIP {
			return true
		}
	}
	for _, a := range s.Addrs {
		if a.Tunnel && !a.IPIP || a.Kind == AddrNode && !a.SameLink {
			return true
		}
	}
	return false
}
