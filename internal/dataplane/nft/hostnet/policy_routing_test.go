// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nettest"
)

// TestPolicyRouting: among a thousand nodes each mark leads to its table, also for what has an
// address of this node; marks of nodes that are gone, and packets without one, go as the routes
// say. What comes and goes changes few rules, and nothing is left afterwards.
func TestPolicyRouting(t *testing.T) {
	for _, f := range table.Families {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			nettest.Run(t, func(string) error { return policyRoutingOf(f) })
		})
	}
}

func policyRoutingOf(f table.Family) error {
	own, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	if f.Six {
		own, other = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1")
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up1"}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	for _, name := range []string{"lo", "up0", "up1"} {
		l, err := netlink.LinkByName(name)
		if err = errors.Join(err, netlink.LinkSetUp(l)); err != nil {
			return err
		}
	}
	d, err := netlink.LinkByName("up0")
	if err != nil {
		return err
	}
	up, bits := d.Attrs().Index, own.BitLen()
	err = errors.Join(netlink.AddrAdd(d, &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}),
		netlink.RouteAdd(route{link: up}.netlink(netip.PrefixFrom(f.Zero(), 0))))
	if err != nil {
		return err
	}
	// That of WireGuard has our protocol number, and is not ours to remove.
	crypt := netlink.NewRule()
	crypt.Family, crypt.Priority, crypt.Table, crypt.Protocol = f.Number(), 99, 87051820, routeProtocol
	crypt.IPProto, crypt.Dport = unix.IPPROTO_UDP, netlink.NewRulePortRange(4789, 4789)
	if err := netlink.RuleAdd(crypt); err != nil {
		return err
	}
	before, err := listRules(f)
	if err != nil {
		return err
	}
	// One of another version, which jumps elsewhere.
	old := firstRule
	old.target = 86
	r := rand.New(rand.NewPCG(1, 2))
	w, tables := &policyRoutes{}, map[uint32]int{}
	routes := map[int]route{}
	for _, number := range append(r.Perm(marks.MaxNodes)[:998], 0, marks.MaxNodes-1) {
		for mark, table := range map[uint32]int{marks.RoutedBit | uint32(number+1)<<marks.NodeShift: routeTables + number + 1, marks.RoutedBit | marks.TunnelBit | uint32(number+1)<<marks.NodeShift: tunnelRouteTables + number + 1} {
			tables[mark], routes[table] = table, route{link: up}
		}
	}
	if err := errors.Join(append(w.put(f, routes), netlink.RuleAdd(old.toNetlink(f)), ensureRules(f, ruleTree(tables, false)))...); err != nil {
		return err
	}
	look := func(wanted map[uint32]int) error {
		for _, to := range []netip.Addr{own, other} {
			free := unix.RT_TABLE_MAIN
			if to == own {
				free = unix.RT_TABLE_LOCAL
			}
			for number := range marks.MaxNodes + 2 {
				for _, mark := range []uint32{uint32(number) << marks.NodeShift, marks.RoutedBit | uint32(number)<<marks.NodeShift, marks.RoutedBit | marks.TunnelBit | uint32(number)<<marks.NodeShift} {
					want, is := wanted[mark]
					if !is {
						want = free
						if number%16 != 0 { // one of each block is enough
							continue
						}
					}
					got, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
					if err != nil || len(got) != 1 || got[0].Table != want {
						return fmt.Errorf("%s with mark %#x goes by %v (%w), want table %d", to, mark, got, err, want)
					}
				}
			}
		}
		return nil
	}
	if err := look(tables); err != nil {
		return err
	}
	all, err := listRules(f)
	if err != nil {
		return err
	}
	if err := ensureRules(f, ruleTree(tables, false)); err != nil {
		return err
	}
	again, err := listRules(f)
	if err != nil || !slices.EqualFunc(all, again, func(a, b netlink.Rule) bool { return ruleOf(a) == ruleOf(b) }) {
		return fmt.Errorf("rules that are right were changed (%w)", err)
	}
	for mark := range tables {
		if r.IntN(2) == 0 {
			delete(tables, mark)
		}
	}
	if err := errors.Join(ensureRules(f, ruleTree(tables, false)), look(tables), ensureRules(f, nil)); err != nil {
		return err
	}
	after, err := listRules(f)
	if err == nil && !slices.EqualFunc(before, after, func(a, b netlink.Rule) bool { return ruleOf(a) == ruleOf(b) }) {
		err = fmt.Errorf("left: %v, before: %v", after, before)
	}
	return err
}
