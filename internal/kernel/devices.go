// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DeviceAlias marks the devices that are ours (IFLA_IFALIAS). Both data planes have the same ones,
// so that a node that changes its data plane keeps them; a device of such a name without the alias
// belongs to somebody else and is left alone.
const DeviceAlias = "weir"

// HostSideMAC is the MAC address of the host side of every pod's interface, which pods know from a
// permanent neighbour entry, and of HostDevice: the programs address what they hand to the host's
// stack to it.
var HostSideMAC = [6]byte{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// ErrForeignDevice is returned by FindDevice for a device that is somebody else's.
var ErrForeignDevice = errors.New("exists and is not Weir's")

// FindDevice returns our device of a name; nil = there is none of that name.
func FindDevice(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking for device %s: %w", name, err)
	case l.Attrs().Alias != DeviceAlias:
		return nil, fmt.Errorf("device %s %w (it lacks the alias %q): remove it with ip link del %s", name, ErrForeignDevice, DeviceAlias, name)
	}
	return l, nil
}

// quietAddr is given to our devices where the machine checks reverse paths on all interfaces: the
// loose check needs an interface that has an address. Nothing is sent from it or to it.
var quietAddr = &net.IPNet{IP: net.IPv4(169, 254, 1, 2), Mask: net.CIDRMask(32, 32)}

// DressDevice marks a new device as ours and keeps it quiet: no ARP, and no IPv6 unless the node
// carries that.
func DressDevice(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking for the new device %s: %w", name, err)
	}
	if err := netlink.LinkSetAlias(l, DeviceAlias); err != nil {
		return fmt.Errorf("marking device %s as ours: %w", name, err)
	}
	if err := netlink.LinkSetARPOff(l); err != nil {
		return fmt.Errorf("switching ARP off on %s: %w", name, err)
	}
	_, err = DisableIPv6(name)
	return err
}

// TrustDevice lets packets in by one of our devices whatever route leads to their source: answers
// of Services and of pods on other nodes arrive there, and outside clients' packets that a node
// hands on. The data plane has evaluated them. Answers of a Service of the node's own address have
// a local source.
func TrustDevice(name string) error {
	all, err := Sysctl("net", "ipv4", "conf", "all", "rp_filter")
	if err != nil {
		return err
	}
	if _, err := SetSysctl(1, "net", "ipv4", "conf", name, "accept_local"); err != nil {
		return err
	}
	if all == 0 {
		_, err := SetSysctl(0, "net", "ipv4", "conf", name, "rp_filter")
		return err
	}
	if _, err := SetSysctl(2, "net", "ipv4", "conf", name, "rp_filter"); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.AddrAdd(l, &netlink.Addr{IPNet: quietAddr, Scope: int(netlink.SCOPE_LINK)})
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("giving %s an address: %w", name, err)
	}
	return nil
}

// RoutePrefix is the destination of a route of a family (netlink.FAMILY_V4 or FAMILY_V6); a route
// without one is the default route.
func RoutePrefix(n *net.IPNet, family int) netip.Prefix {
	switch {
	case n == nil && family == netlink.FAMILY_V6:
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	case n == nil:
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}
