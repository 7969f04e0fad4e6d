// SPDX-License-Identifier: Apache-2.0

package remains

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/kernel"
)

// ipipDevice is Calico's device of IP in IP: the one that the kernel has by itself once its module
// is there. It sends to a route's gateway, and is not to be removed.
const ipipDevice = "tunl0"

// ipipKept is the alias of that device on a node that was taken over.
const ipipKept = "address kept by weir"

// calicosIPIP is that device where Calico uses it; nil = it does not. own is the address that
// Calico gives it.
func calicosIPIP(own netip.Addr) (netlink.Link, error) {
	l, err := netlink.LinkByName(ipipDevice)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at device %s: %w", ipipDevice, err)
	}
	found, err := addresses(l)
	if err != nil {
		return nil, err
	}
	for _, a := range found {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == own {
			return l, nil
		}
	}
	return nil, nil
}

func addresses(l netlink.Link) ([]netlink.Addr, error) {
	found, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
	}
	return found, nil
}

// TakeIPIP has Weir's device take IP in IP from here on, by Felix's rules, and makes the routes by
// which BIRD sends Weir's own, as they are: the first state replaces each of them at once. So there
// is no moment without a route or a device, and tables that are in force later find what they
// expect. own is the address that Calico gives its device; invalid, or of no such device = Calico
// does not use it.
func TakeIPIP(own netip.Addr) error {
	l, err := calicosIPIP(own)
	if l == nil || err != nil || l.Attrs().Flags&net.FlagUp == 0 {
		return err
	}
	if err := hostnet.TakeIPIP(l.Attrs().MTU, own); err != nil {
		return fmt.Errorf("take IP in IP over from Calico: %w", err)
	}
	if err := netlink.LinkSetAlias(l, ipipKept); err != nil {
		return fmt.Errorf("change the alias of %s: %w", ipipDevice, err)
	}
	found, err := birdRoutes()
	errs := []error{err}
	for _, r := range found {
		if r.LinkIndex != l.Attrs().Index || r.Gw == nil {
			continue
		}
		if err := replace(r.Dst, r.LinkIndex, r.Gw, r.Priority, kernel.RouteProtocol); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// birdRoutes are those of BIRD.
func birdRoutes() ([]netlink.Route, error) {
	found, err := kernel.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: birdProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes of BIRD: %w", err)
	}
	return found, nil
}

// replace writes a route in the place of the one to the same prefix with the same metric.
func replace(to *net.IPNet, link int, via net.IP, metric int, protocol netlink.RouteProtocol) error {
	err := netlink.RouteReplace(&netlink.Route{Dst: to, LinkIndex: link, Gw: via, Flags: int(netlink.FLAG_ONLINK), Priority: metric, Protocol: protocol})
	if err != nil {
		return fmt.Errorf("replace route %s: %w", to, err)
	}
	return nil
}

// EndIPIP takes Calico's device out of use on a node that was taken over, when no node has Calico
// any more. Until then its address stays the node's, by which Calico's nodes know it.
func EndIPIP() error {
	l, err := netlink.LinkByName(ipipDevice)
	if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && l.Attrs().Alias != ipipKept {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at device %s: %w", ipipDevice, err)
	}
	ours, err := kernel.FindDevice(hostnet.IPIPDevice)
	if err != nil {
		return err
	}
	own, err := addresses(l)
	if err != nil {
		return err
	}
	for _, a := range own {
		for _, from := range []netlink.Link{l, ours} {
			if from == nil {
				continue
			}
			if err := netlink.AddrDel(from, &netlink.Addr{IPNet: a.IPNet}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s of %s: %w", a.IPNet, from.Attrs().Name, err)
			}
		}
	}
	if err := errors.Join(netlink.LinkSetDown(l), netlink.LinkSetAlias(l, "")); err != nil {
		return fmt.Errorf("take %s down: %w", ipipDevice, err)
	}
	return nil
}
