// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Neighbours ask for an address of IPv6 by a multicast group that its last 24 bits name (RFC 4861).
// An interface receives only groups that it has joined, and a switch that snoops sends only those
// that were reported to it. So each group of an announced address is joined by a socket, which also
// reports it (RFC 3810), and its MAC address is given to the interface, where it stays while no
// agent runs and the data plane answers by itself.

// membership is a group on an interface.
type membership struct {
	index int
	group netip.Addr
}

// groups keeps what this process joined. What an earlier one left on an interface costs a few
// frames that are ignored, and stays.
type groups struct {
	joined  map[membership]string // the interface's name then
	sockets []*groupSocket
}

type groupSocket struct {
	fd   int
	have map[membership]bool
}

// solicitedNode is the group by which neighbours ask for addr.
func solicitedNode(addr netip.Addr) netip.Addr {
	a := addr.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
}

// wanted are the groups of the announced addresses on the uplinks whose subnets they lie in.
func wanted(announced map[netip.Addr]bool, links []Link) map[membership]string {
	out := map[membership]string{}
	for addr := range announced {
		if !addr.Is6() {
			continue
		}
		for _, l := range links {
			if onLink(l, addr) {
				out[membership{l.Index, solicitedNode(addr)}] = l.Name
			}
		}
	}
	return out
}

// update joins and leaves. What failed is tried again by the next one.
func (g *groups) update(want map[membership]string) error {
	var errs []error
	for m, name := range want {
		if g.joined[m] == name {
			continue
		}
		if err := errors.Join(filter(unix.SIOCADDMULTI, name, m.group), g.join(m)); err != nil {
			errs = append(errs, fmt.Errorf("join %s on %s: %w", m.group, name, err))
			continue
		}
		g.joined[m] = name
	}
	for m, name := range maps.Clone(g.joined) {
		if want[m] == name {
			continue
		}
		delete(g.joined, m)
		g.leave(m)
		// An interface that is gone has no groups.
		if err := filter(unix.SIOCDELMULTI, name, m.group); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("leave %s on %s: %w", m.group, name, err))
		}
	}
	return errors.Join(errs...)
}

// join makes a socket a member; one holds as many groups as the kernel lets it
// (net.core.optmem_max).
func (g *groups) join(m membership) error {
	if len(g.sockets) == 0 {
		if err := g.open(); err != nil {
			return err
		}
	}
	err := g.sockets[len(g.sockets)-1].join(m)
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) {
		if err = g.open(); err == nil {
			err = g.sockets[len(g.sockets)-1].join(m)
		}
	}
	return err
}

func (g *groups) open() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	g.sockets = append(g.sockets, &groupSocket{fd: fd, have: map[membership]bool{}})
	return nil
}

func (s *groupSocket) join(m membership) error {
	err := unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m.request())
	if err != nil && !errors.Is(err, unix.EADDRINUSE) {
		return os.NewSyscallError("setsockopt", err)
	}
	s.have[m] = true
	return nil
}

func (m membership) request() *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: uint32(m.index)}
}

func (g *groups) leave(m membership) {
	for _, s := range g.sockets {
		if s.have[m] {
			delete(s.have, m)
			// The kernel left by itself where the interface is gone.
			_ = unix.SetsockoptIPv6Mreq(s.fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, m.request())
		}
	}
}

// close ends the memberships; the interfaces keep the MAC addresses.
func (g *groups) close() {
	for _, s := range g.sockets {
		unix.Close(s.fd)
	}
	g.sockets = nil
}

// filter adds a group's MAC address (RFC 2464, section 7) to those that an interface receives, or
// removes it.
func filter(request uint, name string, group netip.Addr) error {
	var ifreq struct { // netdevice(7)
		name   [unix.IFNAMSIZ]byte
		family uint16
		mac    [6]byte
		_      [16]byte
	}
	if len(name) >= len(ifreq.name) {
		return unix.ENODEV
	}
	copy(ifreq.name[:], name)
	a := group.As16()
	ifreq.mac = [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&ifreq)))
	if errno != 0 && !(errno == unix.EEXIST && request == unix.SIOCADDMULTI) {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
