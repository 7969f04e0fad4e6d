// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"encoding/binary"
	"net/netip"
)

// vxlan puts an IP packet's frame into a VXLAN packet (RFC 7348) in a frame. Its UDP checksum is
// right with IPv6 outside, and absent with IPv4.
func vxlan(dstMAC, srcMAC [6]byte, src, dst netip.Addr, port uint16, vni uint32, inner []byte) []byte {
	udp := 8 + 8 + len(inner)
	b := append(append([]byte{}, dstMAC[:]...), srcMAC[:]...)
	if src.Is4() {
		b = append(b, 8, 0, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+udp))
		b = append(b, 0, 1, 0, 0, 64, 17, 0, 0)
		b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
		binary.BigEndian.PutUint16(b[24:], checksum(b[14:34]))
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(udp))
		b = append(b, 17, 64)
		b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	}
	b = append(b, 0xc0, 0x01)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(udp))
	b = append(b, 0, 0, 8, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint32(b, vni<<8), inner...)
	if src.Is6() {
		pseudo := append(append([]byte{}, b[22:54]...), 0, 0, byte(udp>>8), byte(udp), 0, 0, 0, 17)
		sum := checksum(append(pseudo, b[54:]...))
		binary.BigEndian.PutUint16(b[60:], orAll(sum))
	}
	return b
}

// carried returns what a VXLAN packet in a frame has inside, when it is one to that port.
func carried(b []byte, port uint16) (src, dst netip.Addr, vni uint32, inner []byte, ok bool) {
	at := 0
	switch {
	case len(b) >= 34 && binary.BigEndian.Uint16(b[12:]) == 0x0800 && b[23] == 17:
		src, dst = netip.AddrFrom4([4]byte(b[26:30])), netip.AddrFrom4([4]byte(b[30:34]))
		at = 14 + int(b[14]&15)*4
	case len(b) >= 54 && binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[20] == 17:
		src, dst = netip.AddrFrom16([16]byte(b[22:38])), netip.AddrFrom16([16]byte(b[38:54]))
		at = 54
	default:
		return src, dst, 0, nil, false
	}
	if len(b) < at+16+14 || binary.BigEndian.Uint16(b[at+2:]) != port || b[at+8] != 8 {
		return src, dst, 0, nil, false
	}
	return src, dst, binary.BigEndian.Uint32(b[at+12:]) >> 8, b[at+16:], true
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// orAll is the other form of a checksum of 0, which would say that there is none.
func orAll(sum uint16) uint16 {
	if sum == 0 {
		return 0xffff
	}
	return sum
}
