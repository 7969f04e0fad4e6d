// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// RenderDisabled makes the table of a family that the node does not carry: the kernel may route it
// all the same, with routes and settings of before or of somebody else, and nothing would evaluate
// what pods send and are sent. So they send and get none.
func RenderDisabled(f table.Family, t *table.Table, s *nodestate.State) {
	base := func(name string, hook knftables.BaseChainHook, prio knftables.BaseChainPriority, direction string) {
		rules := []string{direction + " @" + expr.SetWorkloads + " drop"}
		if p := expr.PodInterfaces(s); p != "" {
			rules = append(rules, direction+" "+p+" drop")
		}
		t.Chains[name] = table.Chain{Type: knftables.FilterType, Hook: hook, Priority: prio, Rules: rules}
	}
	base("from-network", knftables.PreroutingHook, "raw", "iifname")
	base("forwarded", knftables.ForwardHook, "filter", "oifname")
	base("sent", knftables.OutputHook, "filter", "oifname")
	table.AddSet(f, t, expr.SetWorkloads, table.Set{Key: "ifname"})
	addWorkloads(t, s)
}

// addWorkloads adds the interfaces of all pods.
func addWorkloads(t *table.Table, s *nodestate.State) {
	for _, name := range expr.Workloads(s) {
		t.Add(expr.SetWorkloads, name, "")
	}
}
