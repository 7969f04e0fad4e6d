// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// ends are those of a packet.
type Header struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16 // of TCP, UDP and SCTP
	Proto            model.Protocol
	Message          uint16 // of ICMP: type * 256 + code
}

// header reads a packet's own ends: of IPv6 without extension headers.
func ParseHeader(b []byte) (t Header, ok bool) {
	var l4 []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && int(b[0]&15)*4 >= 20 && int(b[0]&15)*4 <= len(b):
		t.Src, t.Dst, t.Proto = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), model.Protocol(b[9])
		if binary.BigEndian.Uint16(b[6:])&0x1fff == 0 { // the first fragment, or whole
			l4 = b[int(b[0]&15)*4:]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		t.Src, t.Dst, t.Proto = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), model.Protocol(b[6])
		l4 = b[40:]
	default:
		return t, false
	}
	switch t.Proto {
	case model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP:
		if len(l4) >= 4 {
			t.SrcPort, t.DstPort = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
		}
	case model.ProtocolICMP, model.ProtocolICMPv6:
		if len(l4) >= 2 {
			t.Message = uint16(l4[0])<<8 | uint16(l4[1])
		}
	}
	return t, true
}

// asking is the message that began the flow of an answer, as connection tracking knows them.
func asking(t Header) uint16 {
	switch {
	case t.Proto == model.ProtocolICMPv6 && t.Message>>8 == 129:
		return 128 << 8
	case t.Proto == model.ProtocolICMP:
		switch t.Message >> 8 {
		case 0: // echo
			return 8 << 8
		case 14, 16, 18: // timestamp, information, address mask
			return t.Message&0xff00 - 1<<8
		}
	}
	return t.Message
}
