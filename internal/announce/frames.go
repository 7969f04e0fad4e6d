// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// gratuitous announces to all hosts on a link that an address is here.
func gratuitous(l Link, addr netip.Addr) error {
	frame, proto := announcement(addr, l.MAC), uint16(unix.ETH_P_ARP)
	if addr.Is6() {
		frame, proto = advertisement(addr, l.MAC), unix.ETH_P_IPV6
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: receives nothing
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Ifindex: l.Index, Protocol: proto<<8 | proto>>8, Halen: 6}
	copy(to.Addr[:], frame[:6])
	if err := unix.Sendto(fd, frame, 0, to); err != nil {
		return fmt.Errorf("send a frame: %w", err)
	}
	return nil
}

var everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// announcement is an ARP announcement (RFC 5227 section 3): a request whose sender and target are
// the address itself.
func announcement(addr netip.Addr, mac net.HardwareAddr) []byte {
	return bytes.Join([][]byte{everybody, mac, {8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac, addr.AsSlice(), make([]byte, 6), addr.AsSlice()}, nil)
}

// advertisement is an unsolicited neighbour advertisement to all nodes, with the override flag (RFC
// 4861 section 7.2.6).
func advertisement(addr netip.Addr, mac net.HardwareAddr) []byte {
	src, all := addr.AsSlice(), netip.MustParseAddr("ff02::1").AsSlice()
	icmp := bytes.Join([][]byte{{136, 0, 0, 0, 0x20, 0, 0, 0}, src, {2, 1}, mac}, nil)
	binary.BigEndian.PutUint16(icmp[2:], checksum(bytes.Join([][]byte{src, all, {0, 0, 0, byte(len(icmp)), 0, 0, 0, 58}, icmp}, nil)))
	return bytes.Join([][]byte{{0x33, 0x33, 0, 0, 0, 1}, mac, {0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(icmp)), 58, 255}, src, all, icmp}, nil)
}

// checksum is that of RFC 1071; b has an even length.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
