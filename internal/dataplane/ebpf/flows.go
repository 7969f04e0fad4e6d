package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
)

// flowKey and flowValue are struct flow_key and flow_value of bpf/abi.h, for both families.
type flowKey[A address] struct {
	Saddr, Daddr A
	Sport, Dport uint16
	Proto        uint8
	Pad          [3]uint8
}

type flowValue[A address] struct {
	Epoch        uint32
	Seen         uint32
	Saddr, Daddr A
	Sport, Dport uint16
	Action       uint8
	State        uint8
	Flags        uint8
	From         uint8
	Source       A
	Ifindex      uint32
	Nexthop      A
	Rule         uint32
	Mac          [6]uint8
	Mtu          uint16
	Svc          svcKey[A]
	Backend      backend[A]
}

// Numbers of bpf/abi.h.
const (
	actPass   = 0
	actNeigh  = 2
	actTunnel = 3

	flowReply    = 1
	flowRewrite  = 2
	flowViaNode  = 4
	flowHandOn   = 8
	flowFromHost = 32
	flowSNAT     = 64
	flowClamp    = 128

	fromPod = 2

	stateReplied  = 1
	stateFIN      = 2
	stateClosing  = 4
	stateAnswered = 8
	stateReset    = 32
)

// enterBy says that packets come from the pod behind an interface; 0 = from none, and from where is
// to be found out.
func (v *flowValue[A]) enterBy(ifindex uint32) {
	if ifindex == 0 {
		return
	}
	v.From = fromPod
	binary.NativeEndian.PutUint32(unsafe.Slice((*byte)(unsafe.Pointer(&v.Source)), 4), ifindex)
}

// entersBy is the interface of the pod that packets come from, 0 when they come from none.
func (v flowValue[A]) entersBy() uint32 {
	if v.From != fromPod {
		return 0
	}
	return binary.NativeEndian.Uint32(unsafe.Slice((*byte)(unsafe.Pointer(&v.Source)), 4))
}

// after is the packet as it goes on, in the way of a key.
func (v flowValue[A]) after(proto uint8) flowKey[A] {
	return flowKey[A]{Saddr: v.Saddr, Daddr: v.Daddr, Sport: v.Sport, Dport: v.Dport, Proto: proto}
}

// reversed is the key of the other direction.
func (k flowKey[A]) reversed() flowKey[A] {
	return flowKey[A]{Saddr: k.Daddr, Daddr: k.Saddr, Sport: k.Dport, Dport: k.Sport, Proto: k.Proto}
}

// tuple is a key in the words of connection tracking; answer says that it is of a flow's answers.
// It is not ok where connection tracking has no such flow, or tells flows by more than the key:
// ICMP that is no query, and protocols that have ports there but not here.
func (k flowKey[A]) tuple(answer bool) (t conntrack.Tuple, ok bool) {
	t = conntrack.Tuple{Src: fromAddr(k.Saddr), Dst: fromAddr(k.Daddr), Proto: k.Proto}
	src, dst := be16(k.Sport), be16(k.Dport)
	switch {
	case t.Ported():
		t.SrcPort, t.DstPort = src, dst
	case t.ICMP():
		if answer {
			src, dst = dst, src
		}
		if dst-src > 0xff {
			return t, false
		}
		t.ID, t.Type = src, uint8(dst-src)
		if _, reply, ok := t.Query(); !ok || reply {
			return t, false
		}
		if answer {
			t.Type = t.Turned().Type
		}
	case k.Proto == unix.IPPROTO_GRE || k.Proto == unix.IPPROTO_UDPLITE || k.Proto == unix.IPPROTO_DCCP:
		return t, false
	}
	return t, true
}

// keyOf is the key of a tuple's packets.
func keyOf[A address](t conntrack.Tuple) (k flowKey[A], ok bool) {
	k = flowKey[A]{Saddr: toAddr[A](t.Src), Daddr: toAddr[A](t.Dst), Proto: t.Proto}
	ok = true
	switch {
	case t.Ported():
		k.Sport, k.Dport = be16(t.SrcPort), be16(t.DstPort)
	case t.ICMP():
		var query uint8
		var answer bool
		query, answer, ok = t.Query()
		k.Sport, k.Dport = be16(t.ID), be16(t.ID+uint16(query))
		if answer {
			k.Sport, k.Dport = k.Dport, k.Sport
		}
	case t.Proto == unix.IPPROTO_GRE, t.Proto == unix.IPPROTO_UDPLITE, t.Proto == unix.IPPROTO_DCCP:
		ok = false
	}
	return k, ok && carries[A](t.Src) && carries[A](t.Dst)
}

// eachFlow hands on the entries of a flow map that programs may be writing.
func eachFlow[A address](m *ebpf.Map, f func(flowKey[A], flowValue[A])) error {
	var k flowKey[A]
	var v flowValue[A]
	if int(m.KeySize()) != int(unsafe.Sizeof(k)) || int(m.ValueSize()) != int(unsafe.Sizeof(v)) {
		return fmt.Errorf("the map has entries of %d and %d bytes, not of %d and %d", m.KeySize(), m.ValueSize(), unsafe.Sizeof(k), unsafe.Sizeof(v))
	}
	return walk(m, func(key, value []byte) {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), value)
		f(k, v)
	})
}

// affinityKey and affinityValue are struct affinity_key and affinity_value of bpf/abi.h, for both
// families.
type affinityKey[A address] struct {
	Svc    svcKey[A]
	Client client[A]
}

type client[A address] struct {
	Addr  A
	Netns [2]uint32
}

type affinityValue[A address] struct {
	Backend backend[A]
	Seen    uint32
	Pad     uint32
}

// eachAffinity hands on the entries of a map that programs may be writing.
func eachAffinity[A address](m *ebpf.Map, f func(affinityKey[A], affinityValue[A])) error {
	var k affinityKey[A]
	var v affinityValue[A]
	if int(m.KeySize()) != int(unsafe.Sizeof(k)) || int(m.ValueSize()) != int(unsafe.Sizeof(v)) {
		return fmt.Errorf("the map has entries of %d and %d bytes, not of %d and %d", m.KeySize(), m.ValueSize(), unsafe.Sizeof(k), unsafe.Sizeof(v))
	}
	return walk(m, func(key, value []byte) {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), value)
		f(k, v)
	})
}

// unspecified is the address of frontends that are on all addresses, in the family of another.
func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func lookUpFlow[A address](m *ebpf.Map, k flowKey[A], v *flowValue[A]) error {
	return m.Lookup(&k, unsafe.Pointer(v))
}

// addFlow writes an entry where none is, and reports whether it did.
func addFlow[A address](m *ebpf.Map, k flowKey[A], v flowValue[A]) (bool, error) {
	err := m.Update(&k, unsafe.Pointer(&v), ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return false, nil
	}
	return err == nil, err
}

func readSettingsMap[A address](m *ebpf.Map, v *settings[A]) error {
	var zero uint32
	if err := m.Lookup(&zero, unsafe.Pointer(v)); err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	return nil
}
