// SPDX-License-Identifier: Apache-2.0

// Package answers reads what DNS servers send: packets with their extension headers, datagrams in
// fragments, messages in TCP streams, and in messages which addresses the names of a chain have.
// What it keeps is bounded, whatever servers send. Both data planes have packets on their way to
// pods read by it, for policy by domain name (docs/design/domain-names.md).
package answers

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// port is that of DNS servers.
const port = 53

// Packet is an IP packet of a DNS server to a client, or a part of one.
type Packet struct {
	Server, Client netip.Addr
	Proto          uint8  // of the transport
	Port           uint16 // the client's; 0 where the packet has none: a later fragment

	Fragmented bool // the rest of the IP packet is in others
	ID         uint32
	Offset     int // of Payload in the whole
	More       bool

	Seq   uint32 // of TCP
	Flags uint8  // of TCP
	// Payload is what follows the transport's header; of a fragment the header is in it.
	Payload []byte
}

// Flags of TCP.
const (
	Fin = 1 << iota
	Syn
	Rst
	_
	Ack
)

// ParsePacket reads an IP packet, and reports whether a DNS server's port sent it, as far as that
// can be known.
func ParsePacket(b []byte) (p Packet, ok bool) {
	if len(b) < 20 {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		ok = p.parse4(b)
	case 6:
		ok = p.parse6(b)
	}
	if !ok || p.Proto != unix.IPPROTO_UDP && p.Proto != unix.IPPROTO_TCP {
		return p, false
	}
	if p.Fragmented && p.Offset > 0 {
		return p, true
	}
	if len(p.Payload) < 8 || binary.BigEndian.Uint16(p.Payload) != port {
		return p, false
	}
	p.Port = binary.BigEndian.Uint16(p.Payload[2:])
	return p, p.Fragmented || p.parseTransport()
}

func (p *Packet) parse4(b []byte) bool {
	head, total, piece := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:])), binary.BigEndian.Uint16(b[6:])
	if head < 20 || total < head || total > len(b) {
		return false
	}
	p.Proto = b[9]
	p.Server, p.Client = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	if piece&0x3fff != 0 {
		p.Fragmented, p.ID, p.Offset, p.More = true, uint32(binary.BigEndian.Uint16(b[4:])), int(piece&0x1fff)*8, piece&0x2000 != 0
	}
	p.Payload = b[head:total]
	return true
}

func (p *Packet) parse6(b []byte) bool {
	if len(b) < 40 {
		return false
	}
	total := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if total > len(b) {
		return false
	}
	p.Proto = b[6]
	p.Server, p.Client = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	for b = b[40:total]; ; {
		size := 8
		switch p.Proto {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_DSTOPTS, unix.IPPROTO_ROUTING:
			if len(b) < size {
				return false
			}
			size = (int(b[1]) + 1) * 8
		case unix.IPPROTO_FRAGMENT:
			if len(b) < size {
				return false
			}
			piece := binary.BigEndian.Uint16(b[2:])
			p.Fragmented, p.ID, p.Offset, p.More = true, binary.BigEndian.Uint32(b[4:]), int(piece&^7), piece&1 != 0
			p.Proto, p.Payload = b[0], b[size:]
			return true // extension headers behind this one are not followed
		default:
			p.Payload = b
			return true
		}
		if len(b) < size {
			return false
		}
		p.Proto, b = b[0], b[size:]
	}
}

// parseTransport takes the header off a payload that begins with it.
func (p *Packet) parseTransport() bool {
	b := p.Payload
	if p.Proto == unix.IPPROTO_UDP {
		p.Payload = b[8:]
		return true
	}
	if len(b) < 20 {
		return false
	}
	head := int(b[12]>>4) * 4
	if head < 20 || head > len(b) {
		return false
	}
	p.Seq, p.Flags, p.Payload = binary.BigEndian.Uint32(b[4:]), b[13], b[head:]
	return true
}
