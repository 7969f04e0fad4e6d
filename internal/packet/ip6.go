package packet

import (
	"fmt"
	"net/netip"
)

// IPv6 (RFC 8200) and ICMPv6 (RFC 4443).
const (
	ip6Len       = 40
	echoRequest6 = 128
	echoReply6   = 129
)

// six reports whether the header is one of IPv6.
func (h *IPv4) six() bool { return h.Src.Is6() && h.Dst.Is6() }

// pick chooses by the family.
func (h *IPv4) pick(four, six uint8) uint8 {
	if h.six() {
		return six
	}
	return four
}

// icmp is the protocol number of the family's ICMP.
func (h *IPv4) icmp() uint8 { return h.pick(ProtoICMP, ProtoICMPv6) }

// size is the header's length, bytes.
func (h *IPv4) size() int {
	if h.six() {
		return ip6Len
	}
	return ipLen + len(h.Options)
}

func isRequest(icmpType uint8) bool { return icmpType == 8 || icmpType == echoRequest6 }

func isEcho(h *IPv4, icmpType uint8) bool {
	return icmpType == h.pick(8, echoRequest6) || icmpType == h.pick(0, echoReply6)
}

// IsError reports whether the type is one of those ICMP errors that quote a packet, in the family of the header.
func IsError(h *IPv4, icmpType uint8) bool {
	if h.six() {
		return icmpType >= 1 && icmpType <= 4
	}
	return icmpType == 3 || icmpType == 11 || icmpType == 12
}

// marshal6 is marshal for IPv6; total counts the header.
func (h *IPv4) marshal6(total, n int) ([]byte, error) {
	if h.DF || h.MF || h.ID != 0 || h.Offset != 0 || len(h.Options) > 0 || h.SumError != 0 {
		return nil, fmt.Errorf("IPv6 has no identification, fragment fields, options or checksum in its header")
	}
	if total < 0 {
		total = ip6Len + n
	}
	if total < ip6Len || total-ip6Len > 0xffff {
		return nil, fmt.Errorf("packet of %d bytes: not 40 to 65575", total)
	}
	b := make([]byte, ip6Len)
	be.PutUint32(b[0:], 6<<28|uint32(h.TOS)<<20)
	be.PutUint16(b[4:], uint16(total-ip6Len))
	b[6], b[7] = h.Proto, h.TTL
	copy(b[8:], h.Src.AsSlice())
	copy(b[24:], h.Dst.AsSlice())
	return b, nil
}

// unmarshalIP6 returns the header and the packet's stated length. Flow labels are not kept.
func unmarshalIP6(b []byte) (h IPv4, total int, ok bool) {
	if len(b) < ip6Len || b[0]>>4 != 6 {
		return h, 0, false
	}
	h = IPv4{
		TOS: uint8(be.Uint16(b[0:]) >> 4), TTL: b[7], Proto: b[6],
		Src: netip.AddrFrom16([16]byte(b[8:24])), Dst: netip.AddrFrom16([16]byte(b[24:40])),
	}
	return h, ip6Len + int(be.Uint16(b[4:])), true
}

// unmarshalQuoted reads the header of a quoted packet, of the family of the header around it.
func unmarshalQuoted(around *IPv4, b []byte) (h IPv4, total, n int, ok bool) {
	if around.six() {
		h, total, ok = unmarshalIP6(b)
		return h, total, ip6Len, ok
	}
	return unmarshalIP(b)
}
