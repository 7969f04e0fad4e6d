// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

const (
	ethLen  = 14
	ipLen   = 20
	tcpLen  = 20
	udpLen  = 8
	icmpLen = 8
)

var be = binary.BigEndian

// Marshal returns the frame's bytes, with the checksums computed. It fails on what no header can
// hold: addresses that are not IPv4, option lengths, a packet of more than 65535 bytes.
func (p *Packet) Marshal() ([]byte, error) {
	b := make([]byte, ethLen, ethLen+ipLen+tcpLen+len(p.Payload))
	copy(b[0:6], p.DstMAC[:])
	copy(b[6:12], p.SrcMAC[:])
	be.PutUint16(b[12:], p.etherType())
	if p.Kind == Frame {
		return append(b, p.Payload...), nil
	}
	l4, err := p.marshalL4()
	if err != nil {
		return nil, err
	}
	head, err := p.IP.marshal(-1, len(l4))
	if err != nil {
		return nil, err
	}
	return append(append(b, head...), l4...), nil
}

func (p *Packet) etherType() uint16 {
	if p.Kind == Frame {
		return p.Type
	}
	if p.IP.six() {
		return TypeIPv6
	}
	return TypeIPv4
}

// marshal writes the header in front of n bytes; total overrides the length field when not
// negative.
func (h *IPv4) marshal(total, n int) ([]byte, error) {
	if h.six() {
		return h.marshal6(total, n)
	}
	if !h.Src.Is4() || !h.Dst.Is4() {
		return nil, fmt.Errorf("addresses %v and %v are not both IPv4 or both IPv6", h.Src, h.Dst)
	}
	if len(h.Options)%4 != 0 || len(h.Options) > 40 {
		return nil, fmt.Errorf("%d bytes of IP options: not a multiple of 4 up to 40", len(h.Options))
	}
	if h.Offset%8 != 0 {
		return nil, fmt.Errorf("fragment offset %d is not a multiple of 8", h.Offset)
	}
	if h.ID > 0xffff || len(h.Ext) > 0 {
		return nil, fmt.Errorf("IPv4 has an identification of 16 bits, not %d, and no extension headers", h.ID)
	}
	hl := ipLen + len(h.Options)
	if hl+n > 0xffff {
		return nil, fmt.Errorf("packet of %d bytes: more than 65535", hl+n)
	}
	if total < 0 {
		total = hl + n
	}
	b := make([]byte, hl)
	b[0] = 0x40 | uint8(hl/4)
	b[1] = h.TOS
	be.PutUint16(b[2:], uint16(total))
	be.PutUint16(b[4:], uint16(h.ID))
	frag := h.Offset / 8
	if h.DF {
		frag |= 0x4000
	}
	if h.MF {
		frag |= 0x2000
	}
	be.PutUint16(b[6:], frag)
	b[8], b[9] = h.TTL, h.Proto
	src, dst := h.Src.As4(), h.Dst.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	copy(b[20:], h.Options)
	be.PutUint16(b[10:], add(^sum(b, 0), h.SumError))
	return b, nil
}

func (p *Packet) marshalL4() ([]byte, error) {
	var b []byte
	at := 0 // of the checksum
	switch p.Kind {
	case TCP:
		if len(p.Options)%4 != 0 || len(p.Options) > 40 {
			return nil, fmt.Errorf("%d bytes of TCP options: not a multiple of 4 up to 40", len(p.Options))
		}
		b = make([]byte, tcpLen, tcpLen+len(p.Options)+len(p.Payload))
		be.PutUint16(b[0:], p.SrcPort)
		be.PutUint16(b[2:], p.DstPort)
		be.PutUint32(b[4:], p.Seq)
		be.PutUint32(b[8:], p.Ack)
		b[12] = uint8((tcpLen+len(p.Options))/4)<<4 | p.Reserved&0xf
		b[13] = p.Flags
		be.PutUint16(b[14:], p.Window)
		be.PutUint16(b[18:], p.Urgent)
		b = append(b, p.Options...)
		at = 16
	case UDP:
		b = make([]byte, udpLen, udpLen+len(p.Payload))
		be.PutUint16(b[0:], p.SrcPort)
		be.PutUint16(b[2:], p.DstPort)
		be.PutUint16(b[4:], p.udpLength())
		at = 6
	case SCTP:
		b = p.marshalSCTP()
		if len(b) > 0xffff-ipLen {
			return nil, fmt.Errorf("packet of %d bytes: more than 65535", len(b)+ipLen)
		}
		return b, nil
	case Echo:
		b = make([]byte, icmpLen, icmpLen+len(p.Payload))
		b[0], b[1] = p.ICMPType, p.ICMPCode
		be.PutUint16(b[4:], p.ID)
		be.PutUint16(b[6:], p.EchoSeq)
		at = 2
	case Error:
		if p.Quote == nil {
			return nil, fmt.Errorf("ICMP error without the packet that it quotes")
		}
		b = make([]byte, icmpLen)
		b[0], b[1] = p.ICMPType, p.ICMPCode
		be.PutUint32(b[4:], p.Rest)
		q, err := p.Quote.marshal()
		if err != nil {
			return nil, fmt.Errorf("quoted packet: %w", err)
		}
		b = append(b, q...)
		at = 2
	default:
		return p.Payload, nil
	}
	b = append(b, p.Payload...)
	if len(b) > 0xffff-ipLen {
		return nil, fmt.Errorf("packet of %d bytes: more than 65535", len(b)+ipLen)
	}
	if p.Kind == UDP && p.NoSum {
		return b, nil
	}
	s := add(^p.sumL4(b), p.SumError)
	if p.Kind == UDP && s == 0 {
		s = 0xffff // RFC 768: 0 means none
	}
	be.PutUint16(b[at:], s)
	return b, nil
}

func (p *Packet) udpLength() uint16 {
	if p.UDPLength != 0 {
		return p.UDPLength
	}
	return uint16(udpLen + len(p.Payload))
}

// sumL4 is the ones' complement sum of b, with the pseudo header where the protocol has one.
func (p *Packet) sumL4(b []byte) uint16 {
	var seed uint16
	if p.Kind == TCP || p.Kind == UDP || p.IP.six() {
		n := uint16(len(b))
		if p.Kind == UDP {
			n = p.udpLength()
		}
		seed = add(pseudo(&p.IP), add(uint16(p.IP.Proto), n))
	}
	return sum(b, seed)
}

func (q *Quote) marshal() ([]byte, error) {
	head, err := q.IP.marshal(int(q.TotalLen), len(q.L4))
	if err != nil {
		return nil, err
	}
	return append(head, q.L4...), nil
}

// Unmarshal reads a frame. It fails on less than an Ethernet header only; IP that is cut or
// contradicts itself comes back as a Frame, transport headers that do as Other. An extension header
// that does, or that is the second fragment header, is Proto and the beginning of the payload.
// Bytes after the IP packet (padding), flow labels and reserved bits are dropped. The result shares
// nothing with b.
func Unmarshal(b []byte) (*Packet, error) {
	if len(b) < ethLen {
		return nil, fmt.Errorf("frame of %d bytes: less than an Ethernet header", len(b))
	}
	p := &Packet{Type: be.Uint16(b[12:])}
	copy(p.DstMAC[:], b[0:6])
	copy(p.SrcMAC[:], b[6:12])
	body := b[ethLen:]
	if p.Type == TypeIPv4 {
		if h, total, n, ok := unmarshalIP(body); ok && total >= n && total <= len(body) {
			p.IP = h
			p.unmarshalL4(body[n:total])
			return p, nil
		}
	}
	if p.Type == TypeIPv6 {
		if h, total, ok := unmarshalIP6(body); ok && total <= len(body) {
			n := ip6Len + h.unmarshalExt(body[ip6Len:total])
			p.IP = h
			p.unmarshalL4(body[n:total])
			return p, nil
		}
	}
	p.Payload = clone(body)
	return p, nil
}

// unmarshalIP returns the header, the packet's stated length and the header's.
func unmarshalIP(b []byte) (h IPv4, total, n int, ok bool) {
	if len(b) < ipLen || b[0]>>4 != 4 {
		return h, 0, 0, false
	}
	n = int(b[0]&0xf) * 4
	if n < ipLen || n > len(b) {
		return h, 0, 0, false
	}
	frag := be.Uint16(b[6:])
	h = IPv4{
		TOS: b[1], ID: uint32(be.Uint16(b[4:])), DF: frag&0x4000 != 0, MF: frag&0x2000 != 0, Offset: frag & 0x1fff * 8,
		TTL: b[8], Proto: b[9],
		Src: netip.AddrFrom4([4]byte(b[12:16])), Dst: netip.AddrFrom4([4]byte(b[16:20])),
	}
	if n > ipLen {
		h.Options = clone(b[ipLen:n])
	}
	h.SumError = ^sum(b[:n], 0)
	h.SumError = sumError(h.SumError)
	return h, int(be.Uint16(b[2:])), n, true
}

// sumError turns the complement of a sum over data and checksum field into what has to be added to
// the right checksum to get the one seen: the sum is 0xffff + error, so its complement is -error.
func sumError(c uint16) uint16 {
	e := ^c
	if e == 0xffff {
		return 0
	}
	return e
}

func (p *Packet) unmarshalL4(b []byte) {
	switch {
	case p.IP.MF || p.IP.Offset != 0:
	case p.IP.Proto == ProtoTCP && p.unmarshalTCP(b):
		return
	case p.IP.Proto == ProtoUDP && len(b) >= udpLen:
		p.Kind = UDP
		p.SrcPort, p.DstPort = be.Uint16(b[0:]), be.Uint16(b[2:])
		p.Payload = clone(b[udpLen:])
		if n := be.Uint16(b[4:]); int(n) != len(b) && n != 0 {
			p.UDPLength = n
		} else if n == 0 {
			break // the text form has no word for a length field of 0
		}
		if be.Uint16(b[6:]) == 0 {
			p.NoSum = true
		} else {
			p.SumError = sumError(^p.sumL4(b))
		}
		return
	case p.IP.Proto == ProtoSCTP && p.unmarshalSCTP(b):
		return
	case p.IP.Proto == p.IP.icmp() && p.unmarshalICMP(b):
		return
	}
	*p = Packet{DstMAC: p.DstMAC, SrcMAC: p.SrcMAC, Type: p.Type, IP: p.IP, Kind: Other, Payload: clone(b)}
}

func (p *Packet) unmarshalTCP(b []byte) bool {
	if len(b) < tcpLen {
		return false
	}
	n := int(b[12]>>4) * 4
	if n < tcpLen || n > len(b) {
		return false
	}
	p.Kind = TCP
	p.SrcPort, p.DstPort = be.Uint16(b[0:]), be.Uint16(b[2:])
	p.Seq, p.Ack = be.Uint32(b[4:]), be.Uint32(b[8:])
	p.Reserved, p.Flags = b[12]&0xf, b[13]
	p.Window, p.Urgent = be.Uint16(b[14:]), be.Uint16(b[18:])
	if n > tcpLen {
		p.Options = clone(b[tcpLen:n])
	}
	p.Payload = clone(b[n:])
	p.SumError = sumError(^p.sumL4(b))
	return true
}

func (p *Packet) unmarshalICMP(b []byte) bool {
	if len(b) < icmpLen {
		return false
	}
	switch {
	case isEcho(&p.IP, b[0], b[1]):
		p.Kind = Echo
		p.ID, p.EchoSeq = be.Uint16(b[4:]), be.Uint16(b[6:])
		p.Payload = clone(b[icmpLen:])
	case IsError(&p.IP, b[0]):
		h, total, n, ok := unmarshalQuoted(&p.IP, b[icmpLen:])
		if !ok || len(b[icmpLen+n:]) < h.mustQuote() || total > 0xffff { // of IPv6, more than TotalLen holds
			return false
		}
		p.Kind = Error
		p.Rest = be.Uint32(b[4:])
		p.Quote = &Quote{IP: h, TotalLen: uint16(total), L4: clone(b[icmpLen+n:])}
	default:
		return false
	}
	p.ICMPType, p.ICMPCode = b[0], b[1]
	p.SumError = sumError(^p.sumL4(b))
	return true
}

// sum is the ones' complement sum of b's 16-bit words (RFC 1071), begun with seed.
func sum(b []byte, seed uint16) uint16 {
	t := uint64(seed)
	for ; len(b) > 1; b = b[2:] {
		t += uint64(be.Uint16(b))
	}
	if len(b) == 1 {
		t += uint64(b[0]) << 8
	}
	for t > 0xffff {
		t = t>>16 + t&0xffff
	}
	return uint16(t)
}

// add adds in ones' complement.
func add(a, b uint16) uint16 {
	t := uint32(a) + uint32(b)
	return uint16(t>>16 + t&0xffff)
}
