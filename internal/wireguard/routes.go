// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

const (
	// RouteTable has the routes to peers, of both families.
	RouteTable = 87051820
	// protocol marks our rule and routes, as those of the data planes.
	protocol = kernel.RouteProtocol
)

func familyNumber(six bool) int {
	if six {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// ensureRule makes the rule by which the tunnel's packets look for their node in RouteTable, and
// reports whether it was missing; no priority: there is none.
func ensureRule(six bool, priority int, port uint16) (made bool, err error) {
	found, err := kernel.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(familyNumber(six)) })
	if err != nil {
		return false, fmt.Errorf("listing routing rules: %w", err)
	}
	have := false
	var errs []error
	for _, r := range found {
		if r.Table != RouteTable {
			continue
		}
		if priority != 0 && !have && r.Priority == priority && r.IPProto == unix.IPPROTO_UDP && r.Dport != nil && r.Dport.Start == port && r.Dport.End == port {
			have = true
			continue
		}
		r.Family = familyNumber(six)
		errs = append(errs, netlink.RuleDel(&r))
	}
	if priority != 0 && !have {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = familyNumber(six), priority, RouteTable, protocol
		r.IPProto, r.Dport = unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port)
		made, errs = true, append(errs, netlink.RuleAdd(r))
	}
	if err := errors.Join(errs...); err != nil {
		return made, fmt.Errorf("the routing rule of the tunnel's port: %w", err)
	}
	return made, nil
}

// ensureRoutes makes the routes of RouteTable equal to one to each node by the device; index 0:
// none.
func ensureRoutes(six bool, index int, nodes []netip.Addr) error {
	filter := &netlink.Route{Table: RouteTable}
	found, err := kernel.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(familyNumber(six), filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("listing routes to peers: %w", err)
	}
	want := map[netip.Addr]bool{}
	for _, a := range nodes {
		want[a] = index != 0
	}
	var errs []error
	for _, r := range found {
		p := kernel.RoutePrefix(r.Dst, familyNumber(six))
		if want[p.Addr()] && p.IsSingleIP() && r.LinkIndex == index {
			want[p.Addr()] = false
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the route to %s: %w", p, err))
		}
	}
	for a, missing := range want {
		if !missing {
			continue
		}
		r := &netlink.Route{LinkIndex: index, Table: RouteTable, Protocol: protocol, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		if err := netlink.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("the route to peer %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}
