// SPDX-License-Identifier: Apache-2.0

// Package packet is a small text form for packets and its translation to and from bytes: Ethernet
// with IPv4 or IPv6 and TCP, UDP, SCTP, ICMP echo, ICMP errors with the packet that they quote, or
// anything else as bytes.
//
//	tcp 10.244.1.2:1234 > 10.96.0.1:80 S ttl=64
//	udp 10.244.1.2:999 > 10.96.0.10:53 ttl=64 data="query"
//	sctp 10.244.1.2:1234 > 10.96.0.1:80 INIT tag=0 ttl=64
//	icmp 10.244.1.2 > 8.8.8.8 echo id=7 seq=1 ttl=64
//	icmp 8.8.8.8 > 10.244.1.2 answer type=14 id=7 ttl=64
//	icmp 10.0.0.1 > 10.244.1.2 error type=3 code=3 ttl=64 [udp 10.244.1.2:999 > 10.0.0.1:53 ttl=62]
//	ip 10.0.0.1 > 10.0.0.2 proto=17 frag=1480+ data=0x00ff
//	icmp fd00::2 > fd00::1 error type=2 rest=1280 ttl=64 [tcp [fd00::1]:1234 > [fd00::2]:80 none ttl=62]
//	udp [fd00::1]:999 > [fd00::2]:53 ttl=64 ext=60:0x010400000000
//	ip fd00::1 > fd00::2 proto=17 ipid=70000 ttl=64 ext=0:0x050200000000 frag=1480+ data=0x00ff
//	frame type=0x0806 data=0x0001
//
// fill=N means N bytes of data.
// Nothing read from bytes is believed: what does not parse becomes a frame of bytes.
package packet

import (
	"fmt"
	"net/netip"
	"slices"
)

// Kind says which fields of a Packet count.
type Kind uint8

// The kinds.
const (
	Frame Kind = iota // not IP, or IP that does not parse: Type and Payload
	TCP               // whole TCP segment
	UDP               // whole UDP datagram
	SCTP              // whole SCTP packet with a chunk at least
	Echo              // ICMP echo request (type 8, ICMPv6 128) or reply (0, 129), RFC 792 and 4443; also the queries 13, 15, 17 of IPv4 and their answers
	Error             // ICMP destination unreachable, time exceeded, parameter problem (3, 11, 12); ICMPv6 1 to 4
	Other             // any other IP, and every fragment: Payload is all that follows the IP header
)

// EtherTypes that the text form knows by heart.
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeIPv6 = 0x86dd
)

// IP protocol numbers (IANA).
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
)

// Bits of Packet.Flags (RFC 9293).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// IPv4 is an IP header: of IPv4 (RFC 791), or of IPv6 (RFC 8200) where the addresses are, which has
// none of DF, Options and SumError, and ID, MF and Offset in a fragment header only. Lengths and
// checksum follow from the rest.
type IPv4 struct {
	Src, Dst netip.Addr
	TTL, TOS uint8
	ID       uint32 // IPv4: 16 bits
	DF, MF   bool
	Offset   uint16 // of a fragment, bytes, a multiple of 8
	Proto    uint8  // of the payload; of a fragment but the first, what the fragment header says
	Options  []byte // a multiple of 4, at most 40 bytes
	Ext      []Ext  // IPv6
	// SumError is what the checksum is off by, in ones' complement: 0 for a right one. It outlives
	// incremental updates of the checksum (RFC 1624) as it does in a data plane.
	SumError uint16
}

// Ext is an extension header of IPv6 (RFC 8200 section 4). One of ProtoFragment represents what ID,
// MF and Offset say, and a fragment without one has it at the end.
type Ext struct {
	Proto uint8  // its own number
	Data  []byte // all after its length field: 6 bytes and a multiple of 8, up to 2,046; of ProtoFragment nil
}

// Packet is an Ethernet frame. The zero values of the addresses are zero bytes.
type Packet struct {
	DstMAC, SrcMAC MAC
	Type           uint16 // EtherType
	Kind           Kind
	IP             IPv4

	SrcPort, DstPort uint16 // TCP, UDP, SCTP
	Flags            uint8  // TCP
	Reserved         uint8  // TCP: the four bits next to the data offset
	Seq, Ack         uint32 // TCP
	Window, Urgent   uint16 // TCP
	Options          []byte // TCP; a multiple of 4, at most 40 bytes

	Tag      uint32 // SCTP: verification tag
	Chunk    uint8  // SCTP: type of the first chunk; Payload is all that follows the type
	CRCError uint32 // SCTP: the checksum xor the right one

	ICMPType, ICMPCode uint8  // Echo, Error
	ID, EchoSeq        uint16 // Echo
	Rest               uint32 // Error: second word of the header (next-hop MTU, pointer)
	Quote              *Quote // Error

	UDPLength uint16 // UDP: the length field where it lies, 0 where it is right
	NoSum     bool   // UDP: sent without a checksum; SCTP: the checksum is 0, somebody computes it later
	SumError  uint16 // as IP.SumError, for the checksum of TCP, UDP or ICMP
	Payload   []byte
}

// Quote is the packet inside an ICMP error: an IP header and what followed it, of TCP, UDP, SCTP
// and ICMP at least 8 bytes.
type Quote struct {
	IP       IPv4
	TotalLen uint16 // of the packet that is quoted, bytes
	L4       []byte // as much as is quoted
}

// Fragment reports whether p is a fragment, first ones included.
func (p *Packet) Fragment() bool {
	return p.Kind != Frame && (p.IP.MF || p.IP.Offset != 0)
}

// Clone returns a copy that shares nothing with p.
func (p *Packet) Clone() *Packet {
	c := *p
	c.IP.Options, c.IP.Ext = clone(p.IP.Options), slices.Clone(p.IP.Ext)
	c.Options = clone(p.Options)
	c.Payload = clone(p.Payload)
	if p.Quote != nil {
		q := *p.Quote
		q.IP.Options, q.IP.Ext = clone(q.IP.Options), slices.Clone(q.IP.Ext)
		q.L4 = clone(q.L4)
		c.Quote = &q
	}
	return &c
}

func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}
