// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// What <linux/if_tun.h> and <linux/virtio_net.h> have from Linux 6.17 on, and x/sys/unix has not.
const (
	tunUDPTunnelGSO     = 0x80  // TUN_F_UDP_TUNNEL_GSO
	tunUDPTunnelGSOCsum = 0x100 // TUN_F_UDP_TUNNEL_GSO_CSUM

	flagTunnelCsum = 8    // VIRTIO_NET_HDR_F_UDP_TUNNEL_CSUM
	gsoTunnel4     = 0x20 // VIRTIO_NET_HDR_GSO_UDP_TUNNEL_IPV4
	gsoTunnel6     = 0x40 // VIRTIO_NET_HDR_GSO_UDP_TUNNEL_IPV6
)

// vnetLen is the length of what is before each packet: struct virtio_net_hdr_v1_hash_tunnel.
// plainVnetLen is that of struct virtio_net_hdr, which wireguard-go takes.
const (
	vnetLen      = 24
	plainVnetLen = 10
)

// vnet is what the kernel says of a packet, and is told: offsets are from the first byte of the
// packet, in bytes.
type vnet struct {
	flags, gso            uint8 // VIRTIO_NET_HDR_F_…, VIRTIO_NET_HDR_GSO_…
	headLen, segment      int   // of a segment: all headers, the payload
	csumStart, csumOffset int   // the innermost transport header, and where in it the checksum is
	outer, inner          int   // in a tunnel: the outer transport header, the inner network header
}

var errShort = errors.New("a packet of the TUN device is cut")

// decode reads the struct from the beginning of b.
func (v *vnet) decode(b []byte) error {
	if len(b) < vnetLen {
		return errShort
	}
	u16 := func(at int) int { return int(binary.NativeEndian.Uint16(b[at:])) }
	*v = vnet{flags: b[0], gso: b[1], headLen: u16(2), segment: u16(4), csumStart: u16(6), csumOffset: u16(8),
		outer: int(binary.LittleEndian.Uint16(b[20:])), inner: int(binary.LittleEndian.Uint16(b[22:]))}
	return nil
}

// encode writes the struct into b, which has vnetLen bytes.
func (v *vnet) encode(b []byte) {
	clear(b[:vnetLen])
	b[0], b[1] = v.flags, v.gso
	for i, n := range []int{v.headLen, v.segment, v.csumStart, v.csumOffset} {
		binary.NativeEndian.PutUint16(b[2+2*i:], uint16(n))
	}
	binary.LittleEndian.PutUint16(b[20:], uint16(v.outer))
	binary.LittleEndian.PutUint16(b[22:], uint16(v.inner))
}

// pseudo is the sum of the pseudo-header of what begins at transport and is n bytes long, of the IP
// packet p (RFC 9293 3.1, RFC 8200 8.1).
func pseudo(p []byte, protocol byte, n int) uint64 {
	addresses := p[8:40]
	if p[0]>>4 == 4 {
		addresses = p[12:20]
	}
	return sum(uint64(protocol)+uint64(n), addresses)
}

// fold makes 16 bits of a sum.
func fold(s uint64) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// setIP gives an IP header its length, the number of bytes of the packet, and its checksum.
func setIP(p []byte, length int) {
	if p[0]>>4 == 6 {
		binary.BigEndian.PutUint16(p[4:], uint16(length-40))
		return
	}
	binary.BigEndian.PutUint16(p[2:], uint16(length))
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^fold(sum(0, p[:int(p[0]&15)*4])))
}

// ipHead returns the length of the IP header at the beginning of p without those of extensions, 0
// where there is none.
func ipHead(p []byte) int {
	if len(p) >= 20 && p[0]>>4 == 4 {
		if n := int(p[0]&15) * 4; n >= 20 && n <= len(p) {
			return n
		}
	}
	if len(p) >= 40 && p[0]>>4 == 6 {
		return 40
	}
	return 0
}

// setUDPSum gives a datagram its checksum, that of nothing as 0xffff (RFC 768).
func setUDPSum(ip, udp []byte) {
	udp[6], udp[7] = 0, 0
	putUDPSum(udp, sum(pseudo(ip, unix.IPPROTO_UDP, len(udp)), udp))
}

// putUDPSum writes the checksum of a datagram that has this sum without it.
func putUDPSum(udp []byte, s uint64) {
	c := ^fold(s)
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], c)
}
