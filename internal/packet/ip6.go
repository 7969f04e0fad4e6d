// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// size is the header's length with those that extend it, bytes.
func (h *IPv4) size() int {
	if h.six() {
		all, _ := h.ExtLen()
		return ip6Len + all
	}
	return ipLen + len(h.Options)
}

// IsError reports whether the type is one of those ICMP errors that quote a packet, in the family
// of the header.
func IsError(h *IPv4, icmpType uint8) bool {
	if h.six() {
		return icmpType >= 1 && icmpType <= 4
	}
	return icmpType == 3 || icmpType == 11 || icmpType == 12
}

// Numbers of IPv6's extension headers.
const (
	ProtoHopByHop    = 0
	ProtoRouting     = 43
	ProtoFragment    = 44
	ProtoDestination = 60
)

// Numbers of packets in packets.
const (
	ProtoIPIP = 4  // of IPv4
	ProtoIPv6 = 41 // of IPv6
)

const (
	extUnit = 8  // lengths of extension headers are multiples
	extMost = 64 // headers that Unmarshal reads, at most
)

// IsExtension reports whether the number is that of a header that says what follows it.
func IsExtension(proto uint8) bool {
	return proto == ProtoHopByHop || proto == ProtoRouting || proto == ProtoFragment || proto == ProtoDestination
}

// chain is Ext with the fragment header of a fragment.
func (h *IPv4) chain() []Ext {
	if (h.MF || h.Offset != 0) && h.fragmentAt() < 0 {
		return append(slices.Clone(h.Ext), Ext{Proto: ProtoFragment})
	}
	return h.Ext
}

func (h *IPv4) fragmentAt() int {
	return slices.IndexFunc(h.Ext, func(e Ext) bool { return e.Proto == ProtoFragment })
}

// ExtLen is the length of the extension headers, bytes; after counts those after the fragment
// header alone, which are a part of what is fragmented.
func (h *IPv4) ExtLen() (all, after int) {
	for _, e := range h.chain() {
		n := extUnit
		if e.Proto != ProtoFragment {
			n = 2 + len(e.Data)
		}
		all, after = all+n, after+n
		if e.Proto == ProtoFragment {
			after = 0
		}
	}
	if h.fragmentAt() < 0 {
		after = 0
	}
	return all, after
}

// marshalExt writes the extension headers, and returns the number of the first.
func (h *IPv4) marshalExt() (b []byte, first uint8, err error) {
	chain := h.chain()
	next := func(i int) uint8 {
		if i < len(chain) {
			return chain[i].Proto
		}
		return h.Proto
	}
	fragments := 0
	for i, e := range chain {
		if e.Proto != ProtoFragment {
			if !IsExtension(e.Proto) || len(e.Data)%extUnit != extUnit-2 || len(e.Data) > 2046 {
				return nil, 0, fmt.Errorf("%d bytes of extension header %d: not 6 and a multiple of 8, up to 2046, of 0, 43 or 60", len(e.Data), e.Proto)
			}
			b = append(append(b, next(i+1), uint8(len(e.Data)/extUnit)), e.Data...)
			continue
		}
		if fragments++; fragments > 1 || e.Data != nil {
			return nil, 0, fmt.Errorf("a second fragment header, or one with data")
		}
		if h.Offset%8 != 0 || h.Offset != 0 && i+1 < len(chain) {
			return nil, 0, fmt.Errorf("fragment offset %d: not a multiple of 8, or headers after it", h.Offset)
		}
		flags := h.Offset
		if h.MF {
			flags |= 1
		}
		b = be.AppendUint32(be.AppendUint16(append(b, next(i+1), 0), flags), h.ID)
	}
	if fragments == 0 && h.ID != 0 {
		return nil, 0, fmt.Errorf("IPv6 has an identification in a fragment header only")
	}
	return b, next(0), nil
}

// unmarshalExt reads the extension headers at the beginning of b as far as they can be read, and
// returns their length. It ends after the header of a fragment that is not the first.
func (h *IPv4) unmarshalExt(b []byte) (n int) {
	for len(h.Ext) < extMost && IsExtension(h.Proto) && len(b) >= n+extUnit {
		e, at := Ext{Proto: h.Proto}, b[n:]
		if e.Proto == ProtoFragment {
			if h.fragmentAt() >= 0 {
				break
			}
			flags := be.Uint16(at[2:])
			h.Offset, h.MF, h.ID = flags&0xfff8, flags&1 != 0, be.Uint32(at[4:])
			n += extUnit
		} else {
			size := (int(at[1]) + 1) * extUnit
			if size > len(at) {
				break
			}
			e.Data = clone(at[2:size])
			n += size
		}
		h.Ext, h.Proto = append(h.Ext, e), at[0]
		if h.Offset != 0 {
			break
		}
	}
	return n
}

// marshal6 is marshal for IPv6; total counts the header.
func (h *IPv4) marshal6(total, n int) ([]byte, error) {
	if h.DF || len(h.Options) > 0 || h.SumError != 0 {
		return nil, fmt.Errorf("IPv6 has no flag DF, options or checksum in its header")
	}
	ext, first, err := h.marshalExt()
	if err != nil {
		return nil, err
	}
	if total < 0 {
		total = ip6Len + len(ext) + n
	}
	if total < ip6Len || total-ip6Len > 0xffff {
		return nil, fmt.Errorf("packet of %d bytes: not 40 to 65575", total)
	}
	b := make([]byte, ip6Len)
	be.PutUint32(b[0:], 6<<28|uint32(h.TOS)<<20)
	be.PutUint16(b[4:], uint16(total-ip6Len))
	b[6], b[7] = first, h.TTL
	copy(b[8:], h.Src.AsSlice())
	copy(b[24:], h.Dst.AsSlice())
	return append(b, ext...), nil
}

// unmarshalIP6 returns the header, without those that extend it, and the packet's stated length.
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
	if !around.six() {
		return unmarshalIP(b)
	}
	if h, total, ok = unmarshalIP6(b); ok {
		n = ip6Len + h.unmarshalExt(b[ip6Len:])
	}
	return h, total, n, ok
}

// parseExt reads <number>, the place of the fragment header, or <number>:<data>.
func (h *IPv4) parseExt(s string) error {
	number, data, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 0, 8)
	if err != nil {
		return err
	}
	e := Ext{Proto: uint8(n)}
	if ok {
		if err := parseData(data, &e.Data); err != nil {
			return err
		}
	}
	h.Ext = append(h.Ext, e)
	return nil
}

// extWords are the words for parseExt; the fragment header is not mentioned where it is expected.
func (h *IPv4) extWords() []string {
	var w []string
	for i, e := range h.Ext {
		switch {
		case e.Proto != ProtoFragment:
			w = append(w, fmt.Sprintf("ext=%d:0x%x", e.Proto, e.Data))
		case i+1 < len(h.Ext) || !h.MF && h.Offset == 0:
			w = append(w, fmt.Sprintf("ext=%d", e.Proto))
		}
	}
	return w
}
