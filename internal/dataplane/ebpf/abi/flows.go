// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// FlowKey and FlowValue are struct flow_key and flow_value of bpf/abi.h, for both families.
type FlowKey[A Address] struct {
	Saddr, Daddr A
	Sport, Dport uint16
	Proto        uint8
	Pad          [3]uint8
}

// In maps without flow records the fields from Count to TcpEnd are not there, nor those after
// Backend: see Unmarshal and Marshal.
type FlowValue[A Address] struct {
	Epoch         uint32
	Seen          uint32
	Saddr, Daddr  A
	Sport, Dport  uint16
	Action        uint8
	State         uint8
	Flags         uint8
	From          uint8
	Source        A
	Ifindex       uint32
	Nexthop       A
	Rule          uint32
	Mac           [6]uint8
	Mtu           uint16
	Count         uint64 // see flow records in bpf/abi_flow.h, and Counted
	Since         uint32
	TcpEnd        uint32
	Svc           SvcKey[A]
	Backend       Backend[A]
	Asked         SvcKey[A]
	Started       [2]uint32
	Rules         [2]uint32
	StagedRules   [2]uint32
	Rtt           uint32
	Retransmitted uint32
	FlagsSeen     uint8
	Staged        uint8
	Ends          uint8
	Account       uint8
	Room          uint32
}

// plainFlow is FLOW_PLAIN_SIZE of bpf/flow_fields.h: the size of entries without flow records.
func plainFlow[A Address](v *FlowValue[A]) uintptr {
	return unsafe.Offsetof(v.Count) + unsafe.Sizeof(v.Svc) + unsafe.Sizeof(v.Backend)
}

// bytes is the memory of v.
func (v *FlowValue[A]) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Unmarshal reads an entry of a map with flow records or without, by its size.
func (v *FlowValue[A]) Unmarshal(b []byte) error {
	count := unsafe.Offsetof(v.Count)
	switch uintptr(len(b)) {
	case unsafe.Sizeof(*v):
		copy(v.bytes(), b)
	case plainFlow(v):
		*v = FlowValue[A]{}
		copy(v.bytes(), b[:count])
		copy(v.bytes()[unsafe.Offsetof(v.Svc):], b[count:])
	default:
		return fmt.Errorf("an entry of a flow map has %d bytes, not %d or %d", len(b), unsafe.Sizeof(*v), plainFlow(v))
	}
	return nil
}

// Marshal is the entry for a map whose values have that many bytes.
func (v *FlowValue[A]) Marshal(size uint32) ([]byte, error) {
	count := unsafe.Offsetof(v.Count)
	switch uintptr(size) {
	case unsafe.Sizeof(*v):
		return v.bytes(), nil
	case plainFlow(v):
		b := make([]byte, size)
		copy(b, v.bytes()[:count])
		copy(b[count:], v.bytes()[unsafe.Offsetof(v.Svc):])
		return b, nil
	}
	return nil, fmt.Errorf("a flow map has entries of %d bytes, not of %d or %d", size, unsafe.Sizeof(*v), plainFlow(v))
}

// packetsAt is ACCOUNT_PACKETS_AT of bpf/account.h.
const packetsAt = 36

// Counted takes flow_value.count apart: packets, and bytes of IP.
func Counted(count uint64) (packets, bytes uint64) {
	return count >> packetsAt, count & (1<<packetsAt - 1)
}

// EnterBy says that packets come from the pod behind an interface; 0 = from none, and from where is
// to be found out.
func (v *FlowValue[A]) EnterBy(ifindex uint32) {
	if ifindex == 0 {
		return
	}
	v.From = FromPod
	binary.NativeEndian.PutUint32(unsafe.Slice((*byte)(unsafe.Pointer(&v.Source)), 4), ifindex)
}

// EntersBy is the interface of the pod that packets come from, 0 when they come from none.
func (v FlowValue[A]) EntersBy() uint32 {
	if v.From != FromPod && v.From != FromGranted {
		return 0
	}
	return binary.NativeEndian.Uint32(unsafe.Slice((*byte)(unsafe.Pointer(&v.Source)), 4))
}

// After is the packet as it goes on, in the way of a key.
func (v FlowValue[A]) After(proto uint8) FlowKey[A] {
	return FlowKey[A]{Saddr: v.Saddr, Daddr: v.Daddr, Sport: v.Sport, Dport: v.Dport, Proto: proto}
}

// Reversed is the key of the other direction.
func (k FlowKey[A]) Reversed() FlowKey[A] {
	return FlowKey[A]{Saddr: k.Daddr, Daddr: k.Saddr, Sport: k.Dport, Dport: k.Sport, Proto: k.Proto}
}

// AffinityKey and AffinityValue are struct affinity_key and affinity_value of bpf/abi.h, for both
// families.
type AffinityKey[A Address] struct {
	Svc    SvcKey[A]
	Client Client[A]
}

type Client[A Address] struct {
	Addr  A
	Netns [2]uint32
}

type AffinityValue[A Address] struct {
	Backend Backend[A]
	Seen    uint32
	Pad     uint32
}
