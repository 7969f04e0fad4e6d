// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
)

// self is the node's primary address of the family of a.
func (n *Node) self(a netip.Addr) netip.Addr {
	if a.Is6() {
		return n.state.Settings.Node6
	}
	return n.state.Settings.Node
}

// icmpOf is the ICMP of the family of a.
func icmpOf(a netip.Addr) model.Protocol {
	if a.Is6() {
		return packet.ProtoICMPv6
	}
	return model.ProtocolICMP
}

// longer is what the family's header is longer by than that of IPv4, bytes.
func longer(a netip.Addr) int {
	if a.Is6() {
		return 20
	}
	return 0
}

// mapped96 reports whether the first 96 bits are zero: unspecified, loopback, and what nobody has.
func mapped96(a netip.Addr) bool {
	b := a.As16()
	return [12]byte(b[:12]) == [12]byte{}
}

// Bounds of the extension headers of a packet that is looked at.
const (
	extHeaders = 6
	extBytes   = 456
)

// chainOf walks the extension headers of IPv6. hidden: what they carry, or where to, is not known.
// fragment: the packet is one, as far as that is known.
func chainOf(h *packet.IPv4) (hidden, fragment bool) {
	if !h.Src.Is6() {
		return false, h.MF || h.Offset != 0
	}
	size := 0
	for i, e := range h.Ext {
		switch {
		case i == extHeaders:
			return true, fragment
		case e.Proto == packet.ProtoRouting && leadsOn(h, i):
			return true, fragment
		case e.Proto == packet.ProtoFragment:
			fragment, size = h.MF || h.Offset != 0, size+8
		default:
			size += 2 + len(e.Data)
		}
	}
	if h.Offset != 0 {
		return false, true
	}
	return packet.IsExtension(h.Proto) || size > extBytes, fragment
}

// leadsOn: does the packet go on by its extension header i, a routing header, to somebody else (it
// has segments left, or is of type 0), or is there a packet behind it that the stack unpacks?
func leadsOn(h *packet.IPv4, i int) bool {
	kind, left, next := h.Ext[i].Data[0], h.Ext[i].Data[1], h.Proto
	if i+1 < len(h.Ext) {
		next = h.Ext[i+1].Proto
	}
	return kind == 0 || left != 0 || next == packet.ProtoIPIP || next == packet.ProtoIPv6
}

// linkOf reports what belongs to a link of IPv6. Neighbour discovery (RFC 4861) counts with hop
// limit 255, from a pod when it cannot leave its link; what routers alone say (advertisements,
// redirects) is for nobody to say here, and is as multicast is. From outside it is what hides that
// counts.
func linkOf(p *packet.Packet, h Hook) shape {
	if !p.IP.Src.Is6() {
		return shapeOK
	}
	local := p.IP.Dst.IsMulticast() || p.IP.Dst.IsLinkLocalUnicast() || p.IP.Src.IsMulticast() || p.IP.Src.IsLinkLocalUnicast()
	hidden, fragment := chainOf(&p.IP)
	if p.Kind == packet.Other && p.IP.Proto == packet.ProtoICMPv6 && len(p.Payload) > 0 && !hidden && !fragment {
		switch t := p.Payload[0]; {
		case p.IP.TTL == 255 && (t == 134 || t == 137):
			return shapeCast
		case p.IP.TTL == 255 && t >= 133 && t <= 136 && (local || h != FromWorkload), local && (t >= 130 && t <= 132 || t == 143):
			return shapeLink
		}
	}
	if local && hidden && (h == FromUplink || h == FromTunnel) {
		return shapeMalformed
	}
	if local {
		return shapeCast
	}
	return shapeOK
}

// report6 is report for ICMPv6, whose checksum covers the addresses too (RFC 8200, section 8.1).
func report6(p *packet.Packet, e icmpError, src netip.Addr, quote []byte) (*packet.Packet, error) {
	const most, headers = 1280, 48
	body := append([]byte{e.kind, e.code, 0, 0, 0, 0, uint8(e.mtu >> 8), uint8(e.mtu)}, quote[:min(len(quote), most-headers)]...)
	binary.BigEndian.PutUint16(body[2:], sumICMP6(src, p.IP.Src, body))
	out := &packet.Packet{DstMAC: p.SrcMAC, SrcMAC: p.DstMAC, Type: p.Type, Kind: packet.Other, Payload: body,
		IP: packet.IPv4{Src: src, Dst: p.IP.Src, TTL: 64, Proto: packet.ProtoICMPv6}}
	frame, err := out.Marshal()
	if err != nil {
		return nil, err
	}
	return packet.Unmarshal(frame)
}

// sumICMP6 is the checksum of an ICMPv6 message, 0 over one that has the right one.
func sumICMP6(src, dst netip.Addr, body []byte) uint16 {
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, uint8(len(body)>>8), uint8(len(body)), 0, 0, 0, packet.ProtoICMPv6)
	return checksum(append(pseudo, body...))
}
