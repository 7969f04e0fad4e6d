// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"net/netip"
)

// The structures of bpf/abi.h that hold addresses, for both families. The programs are compiled
// once for each, so that C has two layouts of every one; a test compares each with the types
// generated from C. A field that C pads in one family only is padded here by the compiler: such
// values are handed to the kernel by pointer (see table).

type (
	Ip4 [4]byte
	Ip6 [16]byte
)

// Address is an address as the maps hold it, in network byte order. The zero value is none.
type Address interface {
	Ip4 | Ip6
	comparable
}

type AddrValue[A Address] struct {
	Kind        uint8
	Flags       uint8
	Mac         [6]uint8
	Ifindex     uint32
	Node        A
	IngressSet  uint64
	EgressSet   uint64
	IngressRule uint32
	EgressRule  uint32
}

func (v AddrValue[A]) SameSets(o AddrValue[A]) bool {
	return v.IngressSet == o.IngressSet && v.EgressSet == o.EgressSet
}

type GatewayList[A Address] struct {
	Count    uint32
	Gateways [Gateways]A
}

// GatewayKey is struct gateway_key.
type GatewayKey[A Address] struct {
	Group  [2]uint32
	Client A
}

// SourceKey is struct source_key.
type SourceKey[A Address] struct {
	Len     uint32
	Ifindex uint32
	Addr    A
}

// EgressKey is struct egress_key.
type EgressKey[A Address] struct {
	Len    uint32
	Policy [2]uint32
	Addr   A
}

type PrefixKey[A Address] struct {
	Len  uint32
	Addr A
}

type RouteValue[A Address] struct {
	Node  A
	Flags uint32
}

type SvcKey[A Address] struct {
	Addr  A
	Port  uint16
	Proto uint8
	Scope uint8
}

type SvcValue[A Address] struct {
	Id       SvcKey[A]
	Count    uint32
	Local    uint32
	Flags    uint32
	Affinity uint32
	Rule     uint32
	Table    uint32
}

type RangeKey[A Address] struct {
	Len  uint32
	Id   SvcKey[A]
	Addr A
}

type BackendKey[A Address] struct {
	Svc  SvcKey[A]
	Slot uint32
}

type Backend[A Address] struct {
	Addr  A
	Port  uint16
	Flags uint16
}

type LiveKey[A Address] struct {
	Svc     SvcKey[A]
	Backend Backend[A]
}

type Settings[A Address] struct {
	Epoch         uint32
	Flags         uint32
	Node          A
	TunnelIfindex uint32
	Vni           uint32
	SnatMin       uint16
	SnatMax       uint16
	HostNetns     uint64
	Timeouts      [Timeouts]uint32
	PerSecond     uint32
	TunnelMtu     uint16
	IpipMtu       uint16
	HostIfindex   uint32
	TunnelPort    uint16
	DsrPatience   uint16
	FlowsMost     uint32
	FlowsEach     uint32
}

// ToAddr returns an address of the family as the maps hold it. Any other address is none, which no
// table has as a key but for node ports.
func ToAddr[A Address](a netip.Addr) A {
	var out A
	a = a.Unmap()
	switch p := any(&out).(type) {
	case *Ip4:
		if a.Is4() {
			*p = a.As4()
		}
	case *Ip6:
		if a.Is6() {
			*p = a.As16()
		}
	}
	return out
}

func FromAddr[A Address](v A) netip.Addr {
	switch a := any(v).(type) {
	case Ip4:
		return netip.AddrFrom4(a)
	case Ip6:
		return netip.AddrFrom16(a)
	}
	return netip.Addr{}
}

// Carries reports whether an address is of the family.
func Carries[A Address](a netip.Addr) bool {
	var family A
	_, four := any(family).(Ip4)
	return a.IsValid() && (a.Is4() || a.Is4In6()) == four
}

// SockKey and SockValue are struct sock_key and sock_value.
type SockKey[A Address] struct {
	Cookie [2]uint32
	Addr   A
	Port   uint16
	Proto  uint16
}

type SockValue[A Address] struct {
	Addr A
	Port uint16
	Pad  uint16
	Svc  SvcKey[A]
}

// ExhaustedValue is struct spent of bpf/abi.h.
type ExhaustedValue struct{ Replaced, Refused uint64 }
