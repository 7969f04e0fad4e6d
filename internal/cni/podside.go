// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// podSide is a netlink socket in a pod's network namespace.
type podSide struct {
	*netlink.Handle
	file   *os.File
	cookie uint64
	link   int // index of the interface that configure found
}

// openPod opens the namespace and reads its cookie, the number by which programs know it.
func openPod(f *os.File) (*podSide, error) {
	at := netns.NsHandle(int(f.Fd()))
	h, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the pod's network namespace: %w", err)
	}
	if err := h.SetSocketTimeout(netlinkTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("set the time-out of netlink: %w", err)
	}
	sock, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open a socket in the pod's network namespace: %w", err)
	}
	defer sock.Close()
	cookie, err := netnsCookie(sock.GetFd())
	if err != nil {
		h.Close()
		return nil, err
	}
	return &podSide{Handle: h, file: f, cookie: cookie}, nil
}

// netnsCookie returns the cookie of a socket's network namespace (SO_NETNS_COOKIE, Linux 5.14).
func netnsCookie(fd int) (uint64, error) {
	var cookie uint64
	size := uint32(unsafe.Sizeof(cookie))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE,
		uintptr(unsafe.Pointer(&cookie)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("read the cookie of the pod's network namespace (SO_NETNS_COOKIE, since Linux 5.14): %w", errno)
	}
	return cookie, nil
}

// veth makes both ends in one call: the host's, which stays down, and the pod's, which is put into
// its namespace at once.
func (h *hostLinks) veth(name string, p *podSide, ifname, mac string, mtu int) (*netlink.Veth, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, mtu, kernel.HostSideMAC[:]
	v := netlink.NewVeth(attrs)
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return nil, err
	}
	v.PeerName, v.PeerHardwareAddr, v.PeerMTU = ifname, hw, uint32(mtu)
	v.PeerNamespace = netlink.NsFd(int(p.file.Fd()))
	if err := h.LinkAdd(v); err != nil {
		return nil, err
	}
	return v, nil
}

// configure gives the pod's end its addresses and routes.
func (p *podSide) configure(ifname string, addrs []netip.Addr) error {
	link, err := p.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("look up %s in the pod: %w", ifname, err)
	}
	p.link = link.Attrs().Index
	lo := netlink.NewLinkAttrs()
	lo.Index, lo.Name = 1, "lo" // the kernel makes it first in every namespace
	if err := p.LinkSetUp(&netlink.Device{LinkAttrs: lo}); err != nil {
		return fmt.Errorf("set lo up in the pod: %w", err)
	}
	if slices.ContainsFunc(addrs, netip.Addr.Is6) {
		err := kernel.InNetns(int(p.file.Fd()), func() error {
			// Routes are given here, and nobody else has the pod's addresses: nothing to solicit,
			// nothing to wait for.
			return setIPv6(ifname, sysctl{"accept_ra", 0}, sysctl{"accept_dad", 0}, sysctl{"disable_ipv6", 0})
		})
		if err != nil {
			return fmt.Errorf("in the pod: %w", err)
		}
	}
	for _, a := range addrs {
		dst := hostNet(a)
		addr := &netlink.Addr{IPNet: &dst}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := p.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("give %s to %s in the pod: %w", a, ifname, err)
		}
	}
	if err := p.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up in the pod: %w", ifname, err)
	}
	for _, a := range addrs {
		if err := p.defaultRoute(link.Attrs().Index, gatewayFor(a)); err != nil {
			return fmt.Errorf("default route by %s in the pod: %w", gatewayFor(a), err)
		}
	}
	return nil
}

// awaitAddrs waits until the pod receives at its IPv6 addresses. The kernel makes the local route
// of one in a worker of its own, also when there is no detection of duplicates to wait for.
func (p *podSide) awaitAddrs(ctx context.Context, addrs []netip.Addr) error {
	for _, a := range addrs {
		for a.Is6() {
			routes, err := p.RouteGet(a.AsSlice())
			if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("the pod does not take packets to %s: %w", a, errors.Join(ctx.Err(), err))
			}
		}
	}
	return nil
}

func (p *podSide) defaultRoute(ifindex int, gw netip.Addr) error {
	err := p.NeighSet(&netlink.Neigh{LinkIndex: ifindex, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: kernel.HostSideMAC[:]})
	if err != nil {
		return err
	}
	if gw.Is4() {
		dst := hostNet(gw)
		if err := p.RouteAdd(&netlink.Route{LinkIndex: ifindex, Scope: netlink.SCOPE_LINK, Dst: &dst}); err != nil {
			return err
		}
	}
	any := net.IPNet{IP: make(net.IP, gw.BitLen()/8), Mask: net.CIDRMask(0, gw.BitLen())}
	return p.RouteAdd(&netlink.Route{LinkIndex: ifindex, Dst: &any, Gw: gw.AsSlice()})
}

// verify compares the pod's end with what it should be. The error says what is different.
func (p *podSide) verify(ifname, mac string, addrs []netip.Addr) error {
	link, err := p.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("%s is not in the pod: %w", ifname, err)
	}
	if got := link.Attrs().HardwareAddr.String(); got != mac {
		return fmt.Errorf("%s in the pod has the MAC address %s instead of %s", ifname, got, mac)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%s in the pod is down", ifname)
	}
	have, err := p.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("read the addresses of %s in the pod: %w", ifname, err)
	}
	for _, a := range addrs {
		want := hostNet(a)
		if !slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IPNet.String() == want.String() }) {
			return fmt.Errorf("%s in the pod lacks the address %s", ifname, a)
		}
		if err := p.verifyRoute(link, gatewayFor(a)); err != nil {
			return err
		}
	}
	return nil
}

func (p *podSide) verifyRoute(link netlink.Link, gw netip.Addr) error {
	family := netlink.FAMILY_V6
	if gw.Is4() {
		family = netlink.FAMILY_V4
	}
	routes, err := p.RouteList(link, family)
	if err != nil {
		return fmt.Errorf("read the routes of the pod: %w", err)
	}
	for _, r := range routes {
		if ones := 0; r.Dst != nil {
			if ones, _ = r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if via, ok := netip.AddrFromSlice(r.Gw); ok && via.Unmap() == gw {
			return nil
		}
	}
	return errors.New("the pod's default route by " + gw.String() + " is missing")
}
