// SPDX-License-Identifier: Apache-2.0

// Package remains is what Calico's daemons leave in the kernel of a node when they end: Felix's
// chains, ipsets, routes and devices, and BIRD's routes. It makes of these Weir's what packets need
// until Weir's own are in force, removes the rest, and on the way back makes Weir's routes BIRD's.
// It needs no API server, and may be repeated.
package remains

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/iptables"
	"github.com/weir-net/weir/internal/kernel"
)

const (
	felixProtocol = 80 // of Felix's routes but those to pods
	birdProtocol  = 12 // of BIRD's, RTPROT_BIRD
)

// AdoptRoutes makes BIRD's routes those of a weir-bgp before.
func AdoptRoutes() error {
	if err := fib.Adopt(birdProtocol); err != nil {
		return fmt.Errorf("take the routes of BIRD over: %w", err)
	}
	return nil
}

// RemoveVXLAN removes Calico's tunnel, whose device has the name and the port of Weir's. The first
// state makes that, some tenths of a second later. Until then a peer's address there counts as a
// gateway, which no pool may cover.
func RemoveVXLAN() error {
	_, err := kernel.FindDevice(kernel.TunnelDevice)
	if !errors.Is(err, kernel.ErrForeignDevice) {
		return err
	}
	l, err := netlink.LinkByName(kernel.TunnelDevice)
	if err != nil {
		return fmt.Errorf("look at device %s: %w", kernel.TunnelDevice, err)
	}
	if v, ok := l.(*netlink.Vxlan); !ok || v.FlowBased {
		return fmt.Errorf("device %s is not one that Calico makes: it is left alone", kernel.TunnelDevice)
	}
	if err := netlink.LinkDel(l); err != nil {
		return fmt.Errorf("remove the device %s of Calico: %w", kernel.TunnelDevice, err)
	}
	return nil
}

// felix are Felix's chains, and its rules in chains of others, which bear its comments.
var felix = iptables.Owner{
	Chain:   func(name string) bool { return strings.HasPrefix(name, "cali-") },
	Comment: func(text string) bool { return strings.HasPrefix(text, "cali:") },
}

// Remove removes Felix's rules, sets and routes, and with routed what is left of BIRD's. Weir's
// have to be in force.
func Remove(routed bool) (iptables.Removed, error) {
	removed, err := iptables.Remove(felix)
	return removed, errors.Join(err, removeSets(), removeRoutes(routed))
}

func removeSets() error {
	all, err := netlink.IpsetListAll()
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
			return nil // no ipset in this kernel
		}
		return fmt.Errorf("list ipsets: %w", err)
	}
	var errs []error
	for _, s := range all {
		if strings.HasPrefix(s.SetName, "cali40") || strings.HasPrefix(s.SetName, "cali4t") || strings.HasPrefix(s.SetName, "cali60") || strings.HasPrefix(s.SetName, "cali6t") {
			if err := netlink.IpsetDestroy(s.SetName); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("destroy ipset %s: %w", s.SetName, err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeRoutes removes those that are no pod's: of the node's blocks, which drop, and to others'.
// Of Calico's BIRD there are the former by now.
func removeRoutes(routed bool) error {
	var errs []error
	protocols := []netlink.RouteProtocol{felixProtocol}
	if routed {
		protocols = append(protocols, birdProtocol)
	}
	for _, protocol := range protocols {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
			continue
		}
		for i := range found {
			if err := netlink.RouteDel(&found[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove route %s: %w", found[i].Dst, err))
			}
		}
	}
	return errors.Join(errs...)
}

// HandBack makes Weir's routes to what is on other nodes those of BIRD, where Calico's runs by now.
// It could not write what another program routes. At its next look at the kernel's table it keeps
// those that it knows itself, and removes others; nothing goes another way meanwhile.
func HandBack() error {
	found, err := birdRoutes()
	if err != nil || len(found) == 0 {
		return err
	}
	ways, err := hostnet.Ways()
	if err != nil {
		return err
	}
	tunnel, err := netlink.LinkByName(ipipDevice)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("look at device %s: %w", ipipDevice, err)
	}
	var errs []error
	if tunnel != nil && tunnel.Attrs().Alias == ipipKept {
		errs = append(errs, netlink.LinkSetAlias(tunnel, ""))
	}
	for _, w := range ways {
		link := w.Link
		if w.IPIP {
			if tunnel == nil || tunnel.Attrs().Flags&net.FlagUp == 0 {
				continue // Calico sends another way
			}
			link = tunnel.Attrs().Index
		}
		to := &net.IPNet{IP: w.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(w.Prefix.Bits(), 32)}
		errs = append(errs, replace(to, link, w.Via.AsSlice(), 0, birdProtocol))
	}
	return errors.Join(errs...)
}
