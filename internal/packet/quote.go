// SPDX-License-Identifier: Apache-2.0

package packet

import "net/netip"

// OneWay is by how much Ports has the destination port of an ICMP message that nothing answers
// beyond its source port.
const OneWay = 0x4000

// Ports returns the ports as a flow key has them: those of TCP, UDP and SCTP; of an ICMP query that
// is answered the identifier, and the identifier + the type, of its answer the other way round; of
// other ICMP the type * 256 + the code, and that + OneWay, all modulo 65536; zeros for everything
// else, fragments but the first included.
func (p *Packet) Ports() (src, dst uint16) {
	switch {
	case p.Kind == TCP || p.Kind == UDP || p.Kind == SCTP:
		return p.SrcPort, p.DstPort
	case p.Kind == Echo || p.Kind == Error:
		return messagePorts(&p.IP, p.ICMPType, p.ICMPCode, p.ID)
	}
	if p.Kind != Other || p.IP.Offset != 0 || len(p.Payload) < quoted {
		return 0, 0
	}
	return ports(&p.IP, p.Payload)
}

// TCPFlags returns the flags of a TCP segment or of its first fragment, also of one whose header
// contradicts itself.
func (p *Packet) TCPFlags() uint8 {
	if p.Kind == Other && p.IP.Proto == ProtoTCP && p.IP.Offset == 0 && len(p.Payload) >= tcpLen {
		return p.Payload[13]
	}
	return p.Flags
}

// Rewrite gives the packet other addresses and ports (as in Ports). Checksums stay as right or
// wrong as they were.
func (p *Packet) Rewrite(src, dst netip.Addr, sport, dport uint16) {
	was := p.IP
	p.IP.Src, p.IP.Dst = src, dst
	switch p.Kind {
	case TCP, UDP, SCTP:
		p.SrcPort, p.DstPort = sport, dport
	case Echo:
		p.ID = sport
		if !isRequest(p.ICMPType) {
			p.ID = dport
		}
	case Other:
		if p.IP.Proto == ProtoSCTP && p.IP.Offset == 0 && len(p.Payload) >= sctpLen {
			p.Payload = clone(p.Payload)
			rewriteSCTP(p.Payload, sport, dport)
			return
		}
		if p.IP.Proto == p.IP.icmp() && p.IP.MF && p.IP.Offset == 0 && len(p.Payload) >= icmpLen && isEcho(&p.IP, p.Payload[0], p.Payload[1]) {
			p.Payload = rewriteEcho(&was, &p.IP, p.Payload, sport, dport)
			return
		}
		if p.IP.Proto == ProtoICMPv6 && p.IP.six() && p.IP.Offset == 0 && len(p.Payload) >= 4 {
			p.Payload = clone(p.Payload)
			be.PutUint16(p.Payload[2:], updateSum(be.Uint16(p.Payload[2:]), pseudo(&was), pseudo(&p.IP)))
			return
		}
		at := map[uint8]int{ProtoTCP: 16, ProtoUDP: 6}[p.IP.Proto]
		if at == 0 || p.IP.Offset != 0 || len(p.Payload) < at+2 {
			return
		}
		l4 := clone(p.Payload)
		before := sum(l4[0:4], pseudo(&was))
		be.PutUint16(l4[0:], sport)
		be.PutUint16(l4[2:], dport)
		if c := be.Uint16(l4[at:]); p.IP.Proto != ProtoUDP || c != 0 {
			c = updateSum(c, before, sum(l4[0:4], pseudo(&p.IP)))
			if c == 0 && p.IP.Proto == ProtoUDP {
				c = 0xffff
			}
			be.PutUint16(l4[at:], c)
		}
		p.Payload = l4
	}
}

// rewriteEcho gives the first bytes of an echo another identifier, and updates the checksum, also
// for addresses that it covers.
func rewriteEcho(was, now *IPv4, from []byte, sport, dport uint16) []byte {
	l4, id := clone(from), sport
	if !isRequest(l4[0]) {
		id = dport
	}
	before, after := be.Uint16(l4[4:]), id
	be.PutUint16(l4[4:], id)
	if now.six() {
		before, after = add(before, pseudo(was)), add(after, pseudo(now))
	}
	be.PutUint16(l4[2:], updateSum(be.Uint16(l4[2:]), before, after))
	return l4
}

// Ports returns the quoted packet's ports, in the form of Packet.Ports.
func (q *Quote) Ports() (src, dst uint16) { return ports(&q.IP, q.L4) }

// mustQuote is how much of the packet's transport an ICMP error quotes at least, bytes: what
// identifies its ports, if it has any.
func (h *IPv4) mustQuote() int {
	switch h.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP, h.icmp():
		return quoted
	}
	return 0
}

func ports(h *IPv4, l4 []byte) (src, dst uint16) {
	switch h.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		return be.Uint16(l4[0:]), be.Uint16(l4[2:])
	case h.icmp():
		return messagePorts(h, l4[0], l4[1], be.Uint16(l4[4:]))
	}
	return 0, 0
}

// Rewrite gives the quoted packet other addresses and ports (an ICMP query's identifier as in
// Ports). Of the checksums inside, the IP header's and such a query's are updated; those of TCP and
// UDP are not, which nobody verifies in a quote: what they cover is not all there.
func (q *Quote) Rewrite(src, dst netip.Addr, sport, dport uint16) {
	was := q.IP
	q.IP.Src, q.IP.Dst = src, dst
	switch {
	case q.IP.Proto == ProtoTCP, q.IP.Proto == ProtoUDP, q.IP.Proto == ProtoSCTP:
		l4 := clone(q.L4)
		be.PutUint16(l4[0:], sport)
		be.PutUint16(l4[2:], dport)
		q.L4 = l4
	case q.IP.Proto == q.IP.icmp() && isEcho(&q.IP, q.L4[0], q.L4[1]):
		q.L4 = rewriteEcho(&was, &q.IP, q.L4, sport, dport)
	}
}

// updateSum updates a checksum for data whose sum was before and is after (RFC 1624, equation 3).
func updateSum(c, before, after uint16) uint16 {
	return ^add(add(^c, ^before), after)
}

func pseudo(h *IPv4) uint16 {
	return sum(h.Src.AsSlice(), sum(h.Dst.AsSlice(), 0))
}
