// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// nodeRoutes are the routes to other nodes themselves through the tunnel, in kernel.NodeRouteTable,
// as they were written: the kernel's library does not read them back (see routes).
type nodeRoutes struct {
	written map[netip.Prefix]route
}

// ensure makes the routes of families whose tables are in force equal to what a state wants.
func (w *nodeRoutes) ensure(s *nodestate.State, m *Network, opened func(table.Family) bool) (errs []error) {
	want := map[netip.Prefix]route{}
	for p := range s.Settings.NodeRoutes {
		if m.tunnel != nil && opened(table.FamilyOf(p.Addr())) {
			want[p] = m.tunnelRoute(s, p.Addr())
		}
	}
	have, err := listNodeRoutes()
	if err != nil {
		return []error{err}
	}
	links := map[netip.Prefix]int{}
	for p, r := range have {
		links[p] = r.LinkIndex
		if _, ok := want[p]; ok {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, routeError(p, "removing", err))
			continue
		}
		delete(w.written, p)
	}
	if w.written == nil {
		w.written = map[netip.Prefix]route{}
	}
	for p, one := range want {
		if links[p] == one.link && w.written[p] == one {
			continue
		}
		out := one.netlink(p)
		out.Table = kernel.NodeRouteTable
		if err := netlink.RouteReplace(out); err != nil {
			errs = append(errs, routeError(p, "adding", err))
			continue
		}
		w.written[p] = one
	}
	return errs
}

// removeNodeRoutes takes away those that lead into the tunnel: others are the other data plane's.
func removeNodeRoutes() error {
	tunnel, err := findDevice(TunnelDevice)
	if errors.Is(err, kernel.ErrForeignDevice) {
		return nil // routes went with the device of that name that was ours
	}
	if err != nil || tunnel == nil {
		return err
	}
	have, err := listNodeRoutes()
	if err != nil {
		return err
	}
	var errs []error
	for p, r := range have {
		if r.LinkIndex != tunnel.index {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, routeError(p, "removing", err))
		}
	}
	return errors.Join(errs...)
}

func listNodeRoutes() (map[netip.Prefix]netlink.Route, error) {
	out := map[netip.Prefix]netlink.Route{}
	for _, f := range table.Families {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f.Number(), &netlink.Route{Protocol: routeProtocol, Table: kernel.NodeRouteTable},
				netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("listing routes to nodes: %w", err)
		}
		for _, r := range found {
			out[kernel.RoutePrefix(r.Dst, f.Number())] = r
		}
	}
	return out, nil
}
