// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// What nodes themselves exchange is led to kernel.NodeRouteTable, where a data plane has routes to
// nodes through the tunnel, by the last of these rules; the others are about its exceptions. They
// have the priority of the rule of the tunnel's port and stand behind it: the kernel keeps rules of
// one priority in the order in which they came.

// hostRules are the rules of a family, in their order.
func hostRules(six bool, w *nodestate.WireGuard) (out []netlink.Rule) {
	if !w.Hosts.On() {
		return nil
	}
	rule := func(table int, change func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = familyNumber(six), w.RulePriority, table, protocol
		change(r)
		out = append(out, *r)
	}
	tcp := func(table int, source, destination *netlink.RulePortRange) {
		rule(table, func(r *netlink.Rule) {
			r.IifName, r.IPProto, r.Sport, r.Dport = "lo", unix.IPPROTO_TCP, source, destination
		})
	}
	if len(w.Hosts.Clear) > 0 {
		// The answers to what the other node sends for its pods, which is encrypted.
		tcp(kernel.NodeRouteTable, nil, netlink.NewRulePortRange(w.Hosts.SNATFirst, w.Hosts.SNATLast))
	}
	for _, p := range w.Hosts.Clear {
		tcp(unix.RT_TABLE_MAIN, nil, netlink.NewRulePortRange(p, p))
		tcp(unix.RT_TABLE_MAIN, netlink.NewRulePortRange(p, p), nil)
	}
	rule(kernel.NodeRouteTable, func(r *netlink.Rule) { // all but WireGuard's own packets
		r.IPProto, r.Sport, r.Invert = unix.IPPROTO_UDP, netlink.NewRulePortRange(w.Port, w.Port), true
	})
	return out
}

// ensureHostRules makes the rules of a family those that are wanted; anew: also where they are
// these, as that of the tunnel's port came behind them.
func ensureHostRules(six bool, want []netlink.Rule, anew bool) error {
	found, err := kernel.Dump(func() ([]netlink.Rule, error) { return netlink.RuleList(familyNumber(six)) })
	if err != nil {
		return fmt.Errorf("listing routing rules: %w", err)
	}
	var have []netlink.Rule
	for _, r := range found {
		if r.Protocol == protocol && r.IPProto != 0 && r.Table != RouteTable {
			have = append(have, r)
		}
	}
	if !anew && slices.EqualFunc(have, want, sameRule) {
		return nil
	}
	var errs []error
	for _, r := range slices.Backward(have) { // the exceptions after what they are exceptions to
		r.Family = familyNumber(six)
		errs = append(errs, netlink.RuleDel(&r))
	}
	for _, r := range want {
		errs = append(errs, netlink.RuleAdd(&r))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the routing rules of what nodes exchange: %w", err)
	}
	return nil
}

func sameRule(a, b netlink.Rule) bool {
	same := func(a, b *netlink.RulePortRange) bool { return a == b || a != nil && b != nil && *a == *b }
	return a.Priority == b.Priority && a.Table == b.Table && a.IPProto == b.IPProto && a.Invert == b.Invert && a.IifName == b.IifName &&
		same(a.Sport, b.Sport) && same(a.Dport, b.Dport)
}
