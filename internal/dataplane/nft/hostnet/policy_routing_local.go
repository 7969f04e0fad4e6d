// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// What is handed on has an address of this node as its destination, and the kernel asks the table
// `local` first, by the rule of priority 0. Ours of the same priority has to come before it: of
// equal ones the older comes first, so the local one is made again.

// localSpare is the priority of a second rule for the table local, which is there while the first
// is made again.
const localSpare = 1

// isLocal reports whether a rule leads everything to the table local.
func isLocal(r netlink.Rule) bool {
	return r.Table == unix.RT_TABLE_LOCAL && r.Mark == 0 && r.Mask == nil && r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && !r.Invert
}

// putFirstRule makes firstRule come before the rule for the table local. At each moment there is
// one for that table.
func putFirstRule(f table.Family) error {
	rules, err := listRules(f)
	if err != nil {
		return err
	}
	first, local, spare := -1, -1, -1
	for i, r := range rules {
		switch {
		case isLocal(r) && r.Priority == localSpare && r.Protocol == routeProtocol:
			spare = i
		case isLocal(r) && r.Priority == 0 && local < 0:
			local = i
		case r.Protocol == routeProtocol && ruleOf(r) == firstRule:
			first = i
		}
	}
	own := func(priority int, protocol uint8) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = f.Number(), priority, unix.RT_TABLE_LOCAL, protocol
		return r
	}
	if first >= 0 && local >= 0 && local < first {
		if spare < 0 {
			if err := netlink.RuleAdd(own(localSpare, routeProtocol)); err != nil {
				return fmt.Errorf("adding a second rule for the table local: %w", err)
			}
			spare = 0
		}
		if err := deleteRules(f, rules[local:local+1]); err != nil {
			return err
		}
		local = -1
	}
	if spare < 0 {
		return nil
	}
	if local < 0 {
		// By the kernel's protocol number, so that nobody takes it for a rule of somebody who is
		// gone.
		if err := netlink.RuleAdd(own(0, unix.RTPROT_KERNEL)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding the rule for the table local again: %w", err)
		}
	}
	return deleteRules(f, []netlink.Rule{*own(localSpare, routeProtocol)})
}
