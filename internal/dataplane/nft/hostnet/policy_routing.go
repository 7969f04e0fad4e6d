// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Policy routing is for packets that go to another node whatever the routes say: what is handed on
// to the node of a backend, and the answers of what another node handed on. Such a packet's mark
// has RoutedBit and the node's number. Routing rules lead it to a table with one route (ruleTree).
const (
	routeTables       = 8800 // and the node's number: tables of routes
	tunnelRouteTables = routeTables + marks.NodeMask>>marks.NodeShift
)

// RouteTable is the table of the route to the node of a number.
func RouteTable(number int) int { return routeTables + number }

// TunnelRouteTable is the table of the route through the tunnel to the node of a number.
func TunnelRouteTable(number int) int { return tunnelRouteTables + number }

// WriteRules makes our routing rules of a family those that lead packet marks to tables.
func WriteRules(f table.Family, tables map[uint32]int) error {
	return ensureRules(f, ruleTree(tables, false))
}

// policyRoutes are the routes that were written, which the kernel's library does not read back (see
// routes).
type policyRoutes struct {
	written map[routeKey]route
}

type routeKey struct {
	f     table.Family
	table int
}

// policyRule is a routing rule of ours, comparable.
type policyRule struct {
	priority   int
	mark, mask uint32
	invert     bool
	table      int // 0 = none
	target     int // of a jump; 0 = none
}

// ensure makes the rules and routes of a family equal to what a state wants.
func (w *policyRoutes) ensure(s *nodestate.State, m *Network, f table.Family, n *marks.Numbers) []error {
	routes, rules, errs := m.wantedPolicyRoutes(s, f, n)
	// Routes are there before what leads to them, and go after it.
	errs = append(errs, w.put(f, routes)...)
	if err := ensureRules(f, rules); err != nil {
		return append(errs, policyRouteError(f, err))
	}
	if err := w.prune(f, routes); err != nil {
		errs = append(errs, policyRouteError(f, err))
	}
	return errs
}

func policyRouteError(f table.Family, err error) error {
	return &dataplane.KeyError{Table: "routes", Key: "policy routing of " + f.String(), Err: err}
}

// wantedPolicyRoutes are the routes by table, and the rules.
func (m *Network) wantedPolicyRoutes(s *nodestate.State, f table.Family, n *marks.Numbers) (map[int]route, map[policyRule]bool, []error) {
	routes, tables, errs := map[int]route{}, map[uint32]int{}, []error(nil)
	links := map[int]bool{}
	add := func(table int, r route, mark uint32) {
		routes[table], tables[mark] = r, table
	}
	for node, number := range n.ByNode {
		mark := marks.RoutedBit | uint32(number)<<marks.NodeShift
		through, tunnelled := m.handsOn(s, node)
		if tunnelled {
			add(tunnelRouteTables+number, through, mark|marks.TunnelBit)
		}
		switch {
		case s.Addrs[node].SameLink:
			near, err := routeTo(node)
			if err != nil {
				errs = append(errs, policyRouteError(f, err))
				continue
			}
			add(routeTables+number, near, mark)
			if !f.Six && !links[near.link] {
				links[near.link] = true
				if err := acceptLocalOfLink(near.link, m.stateDir); err != nil {
					errs = append(errs, policyRouteError(f, err))
				}
			}
		case tunnelled:
			add(routeTables+number, through, mark)
		}
	}
	return routes, ruleTree(tables, s.Settings.Chained), errs
}

// put writes routes that are not there.
func (w *policyRoutes) put(f table.Family, want map[int]route) []error {
	have, err := listPolicyRoutes(f)
	if err != nil {
		return []error{policyRouteError(f, err)}
	}
	links := map[int]int{}
	for _, r := range have {
		links[r.Table] = r.LinkIndex
	}
	if w.written == nil {
		w.written = map[routeKey]route{}
	}
	var errs []error
	for table, one := range want {
		k := routeKey{f, table}
		if link, ok := links[table]; ok && link == one.link && w.written[k] == one {
			continue
		}
		out := one.netlink(netip.PrefixFrom(f.Zero(), 0))
		out.Table = table
		if err := netlink.RouteReplace(out); err != nil {
			errs = append(errs, policyRouteError(f, fmt.Errorf("writing the route of table %d: %w", table, err)))
			continue
		}
		w.written[k] = one
	}
	return errs
}

// prune removes routes that nothing leads to any more.
func (w *policyRoutes) prune(f table.Family, want map[int]route) error {
	have, err := listPolicyRoutes(f)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range have {
		if _, ok := want[r.Table]; ok {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the route of table %d: %w", r.Table, err))
			continue
		}
		delete(w.written, routeKey{f, r.Table})
	}
	return errors.Join(errs...)
}

// listPolicyRoutes are our routes in tables of policy routes.
func listPolicyRoutes(f table.Family) ([]netlink.Route, error) {
	found, err := kernel.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(f.Number(), &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var out []netlink.Route
	for _, r := range found {
		if r.Table > routeTables && r.Table <= tunnelRouteTables+marks.MaxNodes {
			out = append(out, r)
		}
	}
	return out, nil
}

// listRules are all routing rules of a family, in their order.
func listRules(f table.Family) ([]netlink.Rule, error) {
	rules, err := kernel.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(f.Number()) })
	if err != nil {
		return nil, fmt.Errorf("listing routing rules: %w", err)
	}
	return rules, nil
}

// ensureRules makes the rules with our protocol number equal to want. What is wanted is there, and
// before the table local, before anything goes, so that a packet is led by the rules of before or
// by these; but where a rule of another version jumps elsewhere, which the kernel takes for the
// same, that has to go first, and what has a mark meets the table local meanwhile.
func ensureRules(f table.Family, want map[policyRule]bool) error {
	found, err := listRules(f)
	if err != nil {
		return err
	}
	have := map[policyRule]bool{}
	var gone []netlink.Rule
	for _, r := range found {
		if r.Protocol != routeProtocol || isLocal(r) { // putFirstRule's
			continue
		}
		if r.IPProto != 0 { // of package wireguard
			continue
		}
		if k := ruleOf(r); want[k] && !have[k] {
			have[k] = true
		} else {
			gone = append(gone, r)
		}
	}
	add := func(r policyRule) error {
		if err := netlink.RuleAdd(r.toNetlink(f)); err != nil {
			return fmt.Errorf("adding routing rule %+v: %w", r, err)
		}
		return nil
	}
	var errs []error
	var again []policyRule
	for r := range want {
		if have[r] {
			continue
		}
		switch err := add(r); {
		case errors.Is(err, unix.EEXIST): // to the kernel it is one that jumps elsewhere
			again = append(again, r)
		case err != nil:
			errs = append(errs, err)
		}
	}
	errs = append(errs, putFirstRule(f), deleteRules(f, gone))
	for _, r := range again {
		errs = append(errs, add(r))
	}
	if len(again) > 0 {
		errs = append(errs, putFirstRule(f))
	}
	return errors.Join(errs...)
}

func deleteRules(f table.Family, rules []netlink.Rule) error {
	var errs []error
	for _, r := range rules {
		r.Family = f.Number()
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing routing rule %+v: %w", ruleOf(r), err))
		}
	}
	return errors.Join(errs...)
}

func ruleOf(r netlink.Rule) policyRule {
	out := policyRule{priority: r.Priority, mark: r.Mark, invert: r.Invert, table: r.Table, target: max(r.Goto, 0)}
	if r.Mask != nil {
		out.mask = *r.Mask
	}
	return out
}

// netlink is the rule as the library has it.
func (r policyRule) toNetlink(f table.Family) *netlink.Rule {
	out := netlink.NewRule()
	out.Family, out.Priority, out.Protocol = f.Number(), r.priority, routeProtocol
	out.Mark, out.Mask, out.Invert, out.Table = r.mark, &r.mask, r.invert, r.table
	if r.target > 0 {
		out.Goto = r.target
	}
	return out
}

// removePolicyRoutes takes away rules and their routes.
func removePolicyRoutes() error {
	var errs []error
	for _, f := range table.Families {
		errs = append(errs, ensureRules(f, nil), (&policyRoutes{}).prune(f, nil))
	}
	return errors.Join(errs...)
}
