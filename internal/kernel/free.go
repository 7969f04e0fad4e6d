// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What both data planes have: HostDevice is the device by which the node's own processes reach pods
// and Services, HostPeer its other end, TunnelDevice that of VXLAN. RouteProtocol marks Weir's
// routes and routing rules (rtnetlink(7), of the range for user space daemons). NodeRouteTable has
// the routes to other nodes' primary addresses through the tunnel, for what nodes themselves
// exchange: package wireguard has the rules that lead there.
const (
	HostDevice     = "weir0"
	HostPeer       = "weir0p"
	TunnelDevice   = "vxlan.calico"
	RouteProtocol  = 87
	NodeRouteTable = 87051821
)

// FreeRoutes removes Weir's routes by HostDevice that cover one of the addresses, or a gateway of
// the node's other routes. It asks nobody but the kernel, so that a node gets back to the API
// server whatever an earlier run left. It returns what it removed.
func FreeRoutes(addrs []netip.Addr) ([]netip.Prefix, error) {
	host, err := netlink.LinkByName(HostDevice)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for device %s: %w", HostDevice, err)
	}
	var out []netip.Prefix
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		removed, err := freeRoutes(family, host.Attrs().Index, addrs)
		out = append(out, removed...)
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

func freeRoutes(family, host int, addrs []netip.Addr) ([]netip.Prefix, error) {
	routes, err := Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	kept := slices.Clone(addrs)
	for _, r := range routes {
		kept = append(kept, Gateways(r)...)
	}
	var out []netip.Prefix
	var errs []error
	for _, r := range routes {
		p := RoutePrefix(r.Dst, family)
		if r.LinkIndex != host || r.Protocol != RouteProtocol || !slices.ContainsFunc(kept, func(a netip.Addr) bool { return p.Contains(a.Unmap()) }) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the route to %s by %s: %w", p, HostDevice, err))
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

// Gateways are the routers that a route leads by; none of Weir's routes, whose routers are other
// nodes.
func Gateways(r netlink.Route) []netip.Addr {
	var out []netip.Addr
	if r.Protocol == RouteProtocol {
		return nil
	}
	hops := []netlink.NexthopInfo{{Gw: r.Gw}}
	for _, h := range r.MultiPath {
		hops = append(hops, *h)
	}
	for _, h := range hops {
		if gw, ok := netip.AddrFromSlice(h.Gw); ok && !gw.Unmap().IsLinkLocalUnicast() {
			out = append(out, gw.Unmap())
		}
	}
	return out
}
