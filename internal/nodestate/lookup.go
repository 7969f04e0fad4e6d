package nodestate

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// Bits of PolicyValue.Protos, equal to enum policy_proto of the programs.
const (
	ProtoBitTCP  uint8 = 1
	ProtoBitUDP  uint8 = 2
	ProtoBitSCTP uint8 = 4
	ProtoBitICMP uint8 = 8
)

// ProtoBit returns the bit of a protocol in PolicyValue.Protos, 0 for protocols that never have
// entries of their own.
func ProtoBit(p model.Protocol) uint8 {
	switch p {
	case model.ProtocolTCP:
		return ProtoBitTCP
	case model.ProtocolUDP:
		return ProtoBitUDP
	case model.ProtocolSCTP:
		return ProtoBitSCTP
	case model.ProtocolICMP:
		return ProtoBitICMP
	}
	return 0
}

// ClassOf is look-up 1: the exact address, then the longest prefix, else class 0.
func (s *State) ClassOf(addr netip.Addr) Class {
	addr = addr.Unmap()
	if c, ok := s.Peers.Get(addr); ok {
		return c
	}
	if len(s.PeerCIDRs) == 0 {
		return 0
	}
	for bits := addr.BitLen(); bits >= 0; bits-- {
		p, err := addr.Prefix(bits)
		if err != nil {
			return 0
		}
		if c, ok := s.PeerCIDRs[p]; ok {
			return c
		}
	}
	return 0
}

// Verdict is look-up 2 for an endpoint's set in one direction: may it exchange packets of this
// protocol and destination port with peer, and which rule says so. No isolation allows by rule 0.
func (s *State) Verdict(iso Isolation, peer netip.Addr, proto model.Protocol, port uint16) (bool, RuleID) {
	if iso.Set == 0 {
		return true, 0
	}
	key := PolicyKey{Set: iso.Set, Peer: s.ClassOf(peer), Head: true}
	head, ok := s.Policy[key]
	if !ok {
		key.Peer = 0
		if head, ok = s.Policy[key]; !ok {
			return false, iso.Rule
		}
	}
	if head.Protos&ProtoBit(proto) != 0 {
		key.Head, key.Proto = false, proto
		for n := 16; n >= 0; n-- {
			if head.Lens>>n&1 == 0 {
				continue
			}
			key.Len, key.Port = uint8(n), MaskPort(port, uint8(n))
			if v, ok := s.Policy[key]; ok {
				return v.Allow, v.Rule
			}
		}
	}
	return head.Allow, head.Rule
}

// MaskPort keeps the first bits of a port (host byte order).
func MaskPort(port uint16, bits uint8) uint16 { return port &^ (0xffff >> bits) }
