// SPDX-License-Identifier: Apache-2.0

package nodeprobe

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// tokenSize is how many random bytes a request has, which its answer repeats.
const tokenSize = 8

// sockets are the raw sockets of both families, which get echo replies alone. They do not block:
// what has come is read before a node counts as one that did not answer.
type sockets struct {
	fd4, fd6 int // -1 = the machine has no such family
}

func open() (*sockets, error) {
	s := &sockets{fd4: -1, fd6: -1}
	const flags = unix.SOCK_RAW | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	fd, err := unix.Socket(unix.AF_INET, flags, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, fmt.Errorf("opening a raw socket of ICMP: %w", err)
	}
	s.fd4 = fd
	const icmpFilter = 1 // ICMP_FILTER of linux/icmp.h; a bit of each type that is not wanted
	if err := unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, int(^uint32(1<<ipv4.ICMPTypeEchoReply))); err != nil {
		s.close()
		return nil, fmt.Errorf("asking for echo replies alone: %w", err)
	}
	fd, err = unix.Socket(unix.AF_INET6, flags, unix.IPPROTO_ICMPV6)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return s, nil
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("opening a raw socket of ICMPv6: %w", err)
	}
	s.fd6 = fd
	var f unix.ICMPv6Filter
	for i := range f.Data {
		f.Data[i] = ^uint32(0)
	}
	f.Data[ipv6.ICMPTypeEchoReply>>5] &^= 1 << (ipv6.ICMPTypeEchoReply & 31)
	if err := unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &f); err != nil {
		s.close()
		return nil, fmt.Errorf("asking for echo replies of IPv6 alone: %w", err)
	}
	return s, nil
}

func (s *sockets) close() {
	if s == nil {
		return
	}
	for _, fd := range []int{s.fd4, s.fd6} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// send sends a request.
func (s *sockets) send(to netip.Addr, id, seq uint16, token [tokenSize]byte) error {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(id), Seq: int(seq), Data: token[:]}}
	if to.Is6() {
		if s.fd6 < 0 {
			return unix.EAFNOSUPPORT
		}
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	b, err := m.Marshal(nil) // the kernel fills in ICMPv6's checksum
	if err != nil {
		return err
	}
	if to.Is6() {
		return unix.Sendto(s.fd6, b, 0, &unix.SockaddrInet6{Addr: to.As16()})
	}
	return unix.Sendto(s.fd4, b, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// atMost bounds what is read at a time: whoever floods the node with replies must not hold it up.
const atMost = 4096

// read passes on the replies that have come.
func (s *sockets) read(note func(from netip.Addr, id uint16, token []byte)) {
	var buf [256]byte
	for _, fd := range []int{s.fd4, s.fd6} {
		if fd < 0 {
			continue
		}
		for range atMost {
			n, from, err := unix.Recvfrom(fd, buf[:], 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				break
			}
			b, proto := buf[:n], ipv6.ICMPTypeEchoReply.Protocol()
			var at netip.Addr
			switch from := from.(type) {
			case *unix.SockaddrInet4: // with its header of IPv4
				at, proto = netip.AddrFrom4(from.Addr), ipv4.ICMPTypeEchoReply.Protocol()
				if n < ipv4.HeaderLen || n < int(b[0]&15)*4 {
					continue
				}
				b = b[int(b[0]&15)*4:]
			case *unix.SockaddrInet6:
				at = netip.AddrFrom16(from.Addr)
			}
			m, err := icmp.ParseMessage(proto, b)
			if err != nil {
				continue
			}
			if echo, is := m.Body.(*icmp.Echo); is {
				note(at, uint16(echo.ID), echo.Data)
			}
		}
	}
}
