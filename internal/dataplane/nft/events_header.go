package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// unspecified is the address of node ports.
func unspecified(six bool) netip.Addr {
	if six {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// header reads a packet's own ends: of IPv6 without extension headers.
func header(b []byte) (t kernel.Tuple, ok bool) {
	var l4 []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && int(b[0]&15)*4 >= 20 && int(b[0]&15)*4 <= len(b):
		t.Src, t.Dst, t.Proto = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9]
		if binary.BigEndian.Uint16(b[6:])&0x1fff == 0 { // the first fragment, or whole
			l4 = b[int(b[0]&15)*4:]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		t.Src, t.Dst, t.Proto = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6]
		l4 = b[40:]
	default:
		return t, false
	}
	switch model.Protocol(t.Proto) {
	case model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP:
		if len(l4) >= 4 {
			t.Sport, t.Dport = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
		}
	case model.ProtocolICMP, model.ProtocolICMPv6:
		if len(l4) >= 2 {
			t.ICMPType, t.ICMPCode = l4[0], l4[1]
		}
	}
	return t, true
}
