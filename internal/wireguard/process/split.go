// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// splitter cuts a packet that the kernel gave as one (GSO) into those that it stands for: TCP and
// UDP, in IPv4 and IPv6, as they are or in a UDP tunnel.
type splitter struct {
	vnet
	p    []byte
	from int // what is before is cut; len(p) when there is nothing left
	n    int // segments that were cut
}

// begin takes a packet with what the kernel says of it. It changes p.
func (s *splitter) begin(v vnet, p []byte) error {
	s.p, s.from, s.n = nil, 0, 0
	if len(p) == 0 || len(p) > 0xffff {
		return errShort
	}
	if v.gso == unix.VIRTIO_NET_HDR_GSO_NONE {
		if v.flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
			at := v.csumStart + v.csumOffset
			if at+2 > len(p) {
				return fmt.Errorf("the checksum of a packet of %d bytes at %d: %w", len(p), at, errShort)
			}
			// The field has the sum of the pseudo-header.
			c := ^fold(sum(0, p[v.csumStart:]))
			if v.csumOffset == 6 && c == 0 {
				c = 0xffff // UDP
			}
			binary.BigEndian.PutUint16(p[at:], c)
		}
		v.segment, v.headLen = len(p), 0
		s.vnet, s.p = v, p
		return nil
	}
	tunnel := v.gso&(gsoTunnel4|gsoTunnel6) != 0
	if !tunnel {
		v.outer, v.inner = 0, 0
	} else if n := ipHead(p); n == 0 || v.outer < n || v.inner < v.outer+8 || (v.csumStart-v.outer)%2 != 0 {
		return fmt.Errorf("a tunnel's packet with headers at %d and %d is none", v.outer, v.inner)
	}
	if v.inner > len(p) {
		return errShort
	}
	n := ipHead(p[v.inner:])
	if n == 0 || v.csumStart < v.inner+n || v.csumStart+8 > len(p) || v.segment == 0 {
		return fmt.Errorf("a packet of %d bytes has IP at %d and its payload at %d", len(p), v.inner, v.csumStart)
	}
	switch v.gso &^ (gsoTunnel4 | gsoTunnel6) {
	case unix.VIRTIO_NET_HDR_GSO_TCPV4, unix.VIRTIO_NET_HDR_GSO_TCPV6:
		if v.csumStart+20 > len(p) {
			return errShort
		}
		size := int(p[v.csumStart+12]>>4) * 4
		if size < 20 {
			return fmt.Errorf("a TCP header of %d bytes", size)
		}
		v.headLen, v.csumOffset = v.csumStart+size, 16
	case unix.VIRTIO_NET_HDR_GSO_UDP_L4:
		v.headLen, v.csumOffset = v.csumStart+8, 6
	default:
		return fmt.Errorf("a packet of the unknown kind %#x", v.gso)
	}
	if v.headLen >= len(p) {
		return errShort
	}
	s.vnet, s.p, s.from = v, p, v.headLen
	return nil
}

// left reports whether there is another segment.
func (s *splitter) left() bool { return s.from < len(s.p) }

// next writes the next segment into out and returns its length.
func (s *splitter) next(out []byte) (int, error) {
	end := min(s.from+s.segment, len(s.p))
	n := s.headLen + end - s.from
	if n > len(out) {
		s.from = len(s.p)
		return 0, fmt.Errorf("a packet of %d bytes is longer than %d", n, len(out))
	}
	out = out[:n]
	copy(out, s.p[:s.headLen])
	copy(out[s.headLen:], s.p[s.from:end])
	s.from = end
	if s.headLen == 0 {
		return n, nil
	}
	s.number(out, s.inner)
	ip, transport := out[s.inner:], out[s.csumStart:]
	setIP(ip, len(ip))
	rest := pseudo(ip, unix.IPPROTO_UDP, len(transport))
	if s.csumOffset == 16 {
		rest = pseudo(ip, unix.IPPROTO_TCP, len(transport))
		binary.BigEndian.PutUint32(transport[4:], binary.BigEndian.Uint32(transport[4:])+uint32(s.n*s.segment))
		if s.left() {
			transport[13] &^= 0x09 // FIN and PSH are of the last one
		}
		transport[16], transport[17] = 0, 0
		binary.BigEndian.PutUint16(transport[16:], ^fold(sum(rest, transport)))
	} else {
		binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)))
		setUDPSum(ip, transport)
	}
	if s.inner > 0 {
		s.number(out, 0)
		setIP(out, n)
		udp := out[s.outer:]
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		if s.flags&flagTunnelCsum != 0 {
			// With its checksum the transport's sum is what its pseudo-header leaves (RFC 1071).
			udp[6], udp[7] = 0, 0
			own := fold(sum(pseudo(out, unix.IPPROTO_UDP, len(udp)), udp[:s.csumStart-s.outer]))
			putUDPSum(udp, uint64(own)+uint64(^fold(rest)))
		}
	}
	s.n++
	return n, nil
}

// number gives an IPv4 packet that begins at a place its number.
func (s *splitter) number(out []byte, at int) {
	if out[at]>>4 == 4 {
		binary.BigEndian.PutUint16(out[at+4:], binary.BigEndian.Uint16(out[at+4:])+uint16(s.n))
	}
}
