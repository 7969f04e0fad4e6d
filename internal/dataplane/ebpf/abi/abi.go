// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/weir-net/weir/internal/nodestate"
)

// Be16 turns a port into network byte order and back.
func Be16(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// Widen returns an address as maps of both families have it, and Unwiden the address of that.
func Widen(a netip.Addr) (words [4]uint32) {
	b := a.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

func Unwiden(words [4]uint32) netip.Addr {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b).Unmap()
}

func ToPrefix[A Address](p netip.Prefix) PrefixKey[A] {
	return PrefixKey[A]{Len: uint32(p.Bits()), Addr: ToAddr[A](p.Masked().Addr())}
}

// ToRange returns the key of one of a service port's source ranges.
func ToRange[A Address](id nodestate.Frontend, p netip.Prefix) RangeKey[A] {
	return RangeKey[A]{Len: uint32(RangeBits[A]() + p.Bits()), Id: ToSvc[A](id), Addr: ToAddr[A](p.Masked().Addr())}
}

// RangeBits are the bits of a range_key's prefix before those of the address.
func RangeBits[A Address]() int { return 8 * int(unsafe.Sizeof(SvcKey[A]{})) }

func ShowRange[A Address](k RangeKey[A]) string {
	return fmt.Sprintf("%s from %s/%d", ShowSvc(k.Id), FromAddr(k.Addr), int(k.Len)-RangeBits[A]())
}

func ToSvc[A Address](f nodestate.Frontend) SvcKey[A] {
	return SvcKey[A]{Addr: ToAddr[A](f.Addr), Port: Be16(f.Port), Proto: uint8(f.Proto)}
}

func ShowAddr[A Address](v A) string { return FromAddr(v).String() }
func ShowPrefix[A Address](k PrefixKey[A]) string {
	return fmt.Sprintf("%s/%d", FromAddr(k.Addr), k.Len)
}
func ShowSvc[A Address](k SvcKey[A]) string {
	return fmt.Sprintf("%s:%d/%d", FromAddr(k.Addr), Be16(k.Port), k.Proto)
}
func ShowBackend[A Address](k BackendKey[A]) string {
	return fmt.Sprintf("%s scope %d slot %d", ShowSvc(k.Svc), k.Svc.Scope, k.Slot)
}
func ShowLive[A Address](k LiveKey[A]) string {
	return fmt.Sprintf("%s backend %s:%d", ShowSvc(k.Svc), FromAddr(k.Backend.Addr), Be16(k.Backend.Port))
}
func ShowPolicy(k WeirPolicyKey) string {
	if k.Head != 0 {
		return fmt.Sprintf("set %016x peer %016x", k.Set, k.Peer)
	}
	return fmt.Sprintf("set %016x peer %016x protocol %d port %d/%d", k.Set, k.Peer, k.Proto, k.Port, k.Len)
}
func ShowHost(k WeirHostKey) string {
	return fmt.Sprintf("interface %d, IPv%d", k.Ifindex, k.Family)
}
func ShowCookie(k uint64) string    { return fmt.Sprintf("netns %d", k) }
func ShowLink(k WeirLinkKey) string { return fmt.Sprintf("%x", k.Mac) }

// SourceBits are the bits of a source_key's prefix before those of the address.
const SourceBits = 32

// ToSource returns the key of a prefix that is, or is not, granted behind an interface.
func ToSource[A Address](ifindex int, p netip.Prefix) SourceKey[A] {
	return SourceKey[A]{Len: uint32(SourceBits + p.Bits()), Ifindex: uint32(ifindex), Addr: ToAddr[A](p.Masked().Addr())}
}

// FromSource is the reverse of ToSource, without the interface.
func FromSource[A Address](k SourceKey[A]) netip.Prefix {
	return netip.PrefixFrom(FromAddr(k.Addr), int(k.Len)-SourceBits)
}

func ShowSource[A Address](k SourceKey[A]) string {
	return fmt.Sprintf("%s by interface %d", FromSource(k), k.Ifindex)
}

// EgressBits are the bits of an egress_key's prefix before those of the address.
const EgressBits = 64

// Halves returns a number as keys have it that have no room to align it: the lower half first.
func Halves(v uint64) [2]uint32 { return [2]uint32{uint32(v), uint32(v >> 32)} }

// Joined is the reverse of Halves.
func Joined(v [2]uint32) uint64 { return uint64(v[0]) | uint64(v[1])<<32 }
