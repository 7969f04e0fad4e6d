// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// ipipName is the chain of IP in IP that is for this node: it asks who sent it, as the chain of
// VXLAN's packets does, and what comes out has the mark of that node.
const ipipName = "ipip"

// ipipRules lead IP in IP to its chain, while the node takes such packets.
func ipipRules(f table.Family, s *nodestate.State) []string {
	if !f.TakesIPIP(s) {
		return nil
	}
	return []string{"meta l4proto 4 iifname != $tunnel jump " + ipipName}
}

// ipipOuter lets an outer packet pass that another node sent, with its mark; "" = none is taken.
func ipipOuter(f table.Family, s *nodestate.State) string {
	if !f.TakesIPIP(s) {
		return ""
	}
	return "meta l4proto 4 iifname != $tunnel meta mark and $mask != 0 fib daddr type local accept"
}

func ipipChain(f table.Family, t *table.Table, s *nodestate.State) {
	if !f.TakesIPIP(s) {
		return
	}
	const node = " meta mark set ip saddr map @" + expr.MapNodes + " accept"
	t.Chains[ipipName] = table.Chain{Rules: expr.Expand(f, s,
		"fib daddr type != local return",
		"ip saddr . ether saddr @"+setNodeLinks+node,
		"ip saddr @"+setNodesFar+node,
		"ip saddr @"+setNodesBare+node,
		"drop")}
}
