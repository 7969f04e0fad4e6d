// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// layers say where the headers of a packet are that can become part of a larger one: TCP or UDP in
// IPv4 without options or IPv6 without extensions. A tunnel's packets are UDP.
type layers struct {
	transport, head int // the transport header, its payload
	tcp             bool
}

// network reads an IP packet, which has to fill p, and returns its protocol and the length of its
// header.
func network(p []byte) (protocol byte, head int, ok bool) {
	switch n := ipHead(p); {
	case n == 20 && int(binary.BigEndian.Uint16(p[2:])) == len(p) && binary.BigEndian.Uint16(p[6:])&0xbfff == 0 && fold(sum(0, p[:20])) == 0xffff:
		return p[9], n, true
	case n == 40 && int(binary.BigEndian.Uint16(p[4:]))+40 == len(p):
		return p[6], n, true
	}
	return 0, 0, false
}

// parse finds the layers of p.
func (l *layers) parse(p []byte) bool {
	protocol, n, ok := network(p)
	if !ok {
		return false
	}
	*l = layers{transport: n}
	t := p[l.transport:]
	switch {
	case protocol == unix.IPPROTO_TCP && len(t) >= 20:
		size := int(t[12]>>4) * 4
		// Flags but ACK and PSH have a meaning of their own.
		if size < 20 || size >= len(t) || t[13]&^0x08 != 0x10 {
			return false
		}
		l.head, l.tcp = l.transport+size, true
	case protocol == unix.IPPROTO_UDP && len(t) > 8:
		// One without a checksum would get one.
		if int(binary.BigEndian.Uint16(t[4:])) != len(t) || t[6]|t[7] == 0 {
			return false
		}
		l.head = l.transport + 8
	default:
		return false
	}
	return true
}

// valid reports whether the checksum of the transport header is right: nobody looks after the
// packet has become part of a larger one.
func (l *layers) valid(p []byte) bool {
	protocol := byte(unix.IPPROTO_UDP)
	if l.tcp {
		protocol = unix.IPPROTO_TCP
	}
	return fold(sum(pseudo(p, protocol, len(p)-l.transport), p[l.transport:])) == 0xffff
}

// pile is what the kernel is given at once: a packet, and the payloads of those that follow it.
type pile struct {
	layers
	parts   [][]byte // the first is the packet with its headers
	segment int      // payload of all but the last one
	length  int      // of all
	closed  bool     // nothing may follow
	checked bool     // the checksums of the first one were looked at
	alone   bool     // they are wrong
}

// maxPile is the most payloads of one pile: a call takes 1,024 parts (UIO_MAXIOV), one of which is
// the struct before the packet.
const maxPile = 512

// coalescer puts together what came of one flow (GRO). What is put together is what splitter makes
// of it again, but for the numbers of IPv4 packets that are not to be fragmented.
type coalescer struct {
	piles []pile // in the order in which their first packets came
	n     int
	head  [vnetLen]byte
	iov   [][]byte
}

// recent is how many piles are looked at for each packet: a peer that sends many flows at once must
// not cost the square of them.
const recent = 8

func (c *coalescer) reset() {
	for i := range c.piles[:c.n] {
		clear(c.piles[i].parts)
		c.piles[i] = pile{parts: c.piles[i].parts[:0]}
	}
	c.n = 0
}

// add takes a packet.
func (c *coalescer) add(p []byte) {
	var l layers
	candidate := l.parse(p)
	if candidate {
		for i := c.n - 1; i >= max(0, c.n-recent); i-- {
			to := &c.piles[i]
			if to.closed || to.layers != l || !l.sameFlow(to.parts[0], p) {
				continue
			}
			if to.follow(p) {
				return
			}
			to.closed = true // order is kept within a flow
			break
		}
	}
	if c.n == len(c.piles) {
		c.piles = append(c.piles, pile{})
	}
	to := &c.piles[c.n]
	c.n++
	to.layers, to.parts, to.length, to.segment, to.closed = l, append(to.parts[:0], p), len(p), len(p)-l.head, !candidate
	to.closed = to.closed || l.tcp && p[l.transport+13]&0x08 != 0
}

// sameFlow compares addresses and ports.
func (l *layers) sameFlow(a, b []byte) bool {
	from := l.transport - 8
	if a[0]>>4 == 6 {
		from = l.transport - 32
	}
	return a[0]>>4 == b[0]>>4 && bytes.Equal(a[from:l.transport+4], b[from:l.transport+4])
}

// follow adds a packet of the same flow if it is what would come next were the pile cut.
func (t *pile) follow(p []byte) bool {
	first, n := t.parts[0], len(p)-t.head
	if t.alone || n > t.segment || t.length+n > 0xffff || len(t.parts) == maxPile || !t.same(first, p) {
		return false
	}
	if t.tcp {
		sent := binary.BigEndian.Uint32(first[t.transport+4:]) + uint32(t.length-t.head)
		if binary.BigEndian.Uint32(p[t.transport+4:]) != sent {
			return false
		}
	}
	if !t.checked {
		t.checked, t.alone = true, !t.valid(first)
	}
	if t.alone || !t.valid(p) {
		return false
	}
	t.parts = append(t.parts, p[t.head:])
	t.length += n
	t.closed = n < t.segment
	if t.tcp && p[t.transport+13]&0x08 != 0 {
		first[t.transport+13] |= 0x08
		t.closed = true
	}
	return true
}

// same compares all of the headers but lengths, checksums, numbers of packets and of bytes, and
// whether to push.
func (t *pile) same(a, b []byte) bool {
	if !t.sameIP(a, b) {
		return false
	}
	x, y := a[t.transport:t.head], b[t.transport:t.head]
	if !t.tcp {
		return bytes.Equal(x[:4], y[:4])
	}
	return bytes.Equal(x[:4], y[:4]) && bytes.Equal(x[8:13], y[8:13]) && bytes.Equal(x[14:16], y[14:16]) && bytes.Equal(x[18:], y[18:])
}

// sameIP compares the IP headers.
func (t *pile) sameIP(a, b []byte) bool {
	if a[0] != b[0] {
		return false
	}
	if a[0]>>4 == 6 {
		return bytes.Equal(a[:4], b[:4]) && bytes.Equal(a[6:40], b[6:40])
	}
	number := binary.BigEndian.Uint16(a[4:]) + uint16(len(t.parts))
	free := a[6]&0x40 != 0 // a number says nothing where there are no fragments (RFC 6864)
	return a[1] == b[1] && bytes.Equal(a[6:10], b[6:10]) && bytes.Equal(a[12:20], b[12:20]) && (free || binary.BigEndian.Uint16(b[4:]) == number)
}

// render returns what a pile is for the kernel, until the next call: the struct before the packet,
// and its parts.
func (c *coalescer) render(t *pile) [][]byte {
	var v vnet
	p := t.parts[0]
	if len(t.parts) > 1 {
		v = vnet{flags: unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, gso: unix.VIRTIO_NET_HDR_GSO_UDP_L4, headLen: t.head, segment: t.segment, csumStart: t.transport, csumOffset: 6}
		protocol := byte(unix.IPPROTO_UDP)
		if t.tcp {
			v.gso, v.csumOffset, protocol = unix.VIRTIO_NET_HDR_GSO_TCPV4, 16, unix.IPPROTO_TCP
			if p[0]>>4 == 6 {
				v.gso = unix.VIRTIO_NET_HDR_GSO_TCPV6
			}
		} else {
			binary.BigEndian.PutUint16(p[t.transport+4:], uint16(t.length-t.transport))
		}
		setIP(p, t.length)
		// The kernel adds the rest to the sum of the pseudo-header.
		binary.BigEndian.PutUint16(p[t.transport+v.csumOffset:], fold(pseudo(p, protocol, t.length-t.transport)))
	}
	v.encode(c.head[:])
	c.iov = append(append(c.iov[:0], c.head[:]), t.parts...)
	return c.iov
}
