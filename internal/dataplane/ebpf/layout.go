package ebpf

import (
	"net/netip"
)

// The structures of bpf/abi.h that hold addresses, for both families. The programs are compiled
// once for each, so that C has two layouts of every one; a test compares each with the types
// generated from C. A field that C pads in one family only is padded here by the compiler: such
// values are handed to the kernel by pointer (see table).

type (
	ip4 [4]byte
	ip6 [16]byte
)

// address is an address as the maps hold it, in network byte order. The zero value is none.
type address interface {
	ip4 | ip6
	comparable
}

type addrValue[A address] struct {
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

func (v addrValue[A]) sameSets(o addrValue[A]) bool {
	return v.IngressSet == o.IngressSet && v.EgressSet == o.EgressSet
}

type prefixKey[A address] struct {
	Len  uint32
	Addr A
}

type routeValue[A address] struct {
	Node  A
	Flags uint32
}

type svcKey[A address] struct {
	Addr  A
	Port  uint16
	Proto uint8
	Scope uint8
}

type svcValue[A address] struct {
	Id       svcKey[A]
	Count    uint32
	Local    uint32
	Flags    uint32
	Affinity uint32
	Rule     uint32
	Table    uint32
}

type rangeKey[A address] struct {
	Len  uint32
	Id   svcKey[A]
	Addr A
}

type backendKey[A address] struct {
	Svc  svcKey[A]
	Slot uint32
}

type backend[A address] struct {
	Addr  A
	Port  uint16
	Flags uint16
}

type liveKey[A address] struct {
	Svc     svcKey[A]
	Backend backend[A]
}

type settings[A address] struct {
	Epoch         uint32
	Flags         uint32
	Node          A
	TunnelIfindex uint32
	Vni           uint32
	SnatMin       uint16
	SnatMax       uint16
	HostNetns     uint64
	Timeouts      [10]uint32
	PerSecond     uint32
	TunnelMtu     uint32
	HostIfindex   uint32
	TunnelPort    uint16
	DsrPatience   uint16
	FlowsMost     uint32
	FlowsEach     uint32
}

// toAddr returns an address of the family as the maps hold it. Any other address is none, which no
// table has as a key but for node ports.
func toAddr[A address](a netip.Addr) A {
	var out A
	a = a.Unmap()
	switch p := any(&out).(type) {
	case *ip4:
		if a.Is4() {
			*p = a.As4()
		}
	case *ip6:
		if a.Is6() {
			*p = a.As16()
		}
	}
	return out
}

func fromAddr[A address](v A) netip.Addr {
	switch a := any(v).(type) {
	case ip4:
		return netip.AddrFrom4(a)
	case ip6:
		return netip.AddrFrom16(a)
	}
	return netip.Addr{}
}

// carries reports whether an address is of the family.
func carries[A address](a netip.Addr) bool {
	var family A
	_, four := any(family).(ip4)
	return a.IsValid() && (a.Is4() || a.Is4In6()) == four
}
