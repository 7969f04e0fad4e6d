// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// inputsPolicy are the kinds that policy is made from.
const inputsPolicy = model.KindSettings | model.KindHostEndpoints | model.KindPolicies | model.KindTiers | model.KindNetworkSets | model.KindServiceAccounts | model.KindPods | model.KindNamespaces | model.KindLocal

// compiler keeps the tables of policy, and their rules in the table of rules, from one state to the
// next.
type compiler struct {
	tables *policyTables
	rules  *table.Table[nodestate.RuleID, nodestate.Rule] // of the state: those of Services are in it too
	// unlimited are the tables that there were without policies held back; nil while there are
	// none.
	unlimited      *policyTables
	unlimitedRules table.Table[nodestate.RuleID, nodestate.Rule]
}

func newCompiler(rules *table.Table[nodestate.RuleID, nodestate.Rule]) *compiler {
	return &compiler{tables: newPolicyTables(table.Digest64[nodestate.Class], rules), rules: rules}
}

// isolation returns which endpoints policy isolates.
func (k *compiler) isolation() (ingress, egress map[netip.Addr]nodestate.Isolation) {
	return k.tables.ingress, k.tables.egress
}

// overdrawn names the namespaces whose policies are refused something.
func (k *compiler) overdrawn() []nodestate.Overdrawn { return k.tables.overdrawnAll() }

// update brings the policy tables, and the rules of policies, up to date. It reports whether
// the isolation of endpoints may have changed.
func (k *compiler) update(c *cluster.View, dirty *model.Dirty, next *nodestate.State, keys *nodestate.Keys) bool {
	if dirty.Has(model.KindPods) {
		k.tables.ruleIDs.clear()
		room, apart := k.tables.capacity, k.tables.classQuota
		k.tables, k.unlimited = newPolicyTables(k.tables.digest, k.rules), nil
		k.tables.capacity, k.tables.classQuota = room, apart
	}
	changed := k.tables.update(c, dirty)
	changed = k.updateClassBudget(c, dirty) || changed
	k.tables.policy = table.StoreChanges(&next.Policy, k.tables.policy, keys, nodestate.TablePolicy)
	k.tables.peers = table.StoreChanges(&next.Peers, k.tables.peers, keys, nodestate.TablePolicy)
	if k.tables.classes != nil {
		k.tables.classes.OfAddrs = k.tables.peers
	}
	table.StoreMap(&next.HostEndpoints, k.tables.hosts, keys, nodestate.TablePolicy)
	table.StoreMap(&next.PeerCIDRs, k.tables.peerCIDRs, keys, nodestate.TablePolicy)
	table.StoreMap(&next.Staged, k.tables.staged, keys, nodestate.TableStaged)
	table.StoreMap(&next.HostStaged, k.tables.hostsStaged, keys, nodestate.TableStaged)
	if !slices.Equal(next.Unfit, k.tables.unfit) {
		next.Unfit, keys.Tables = k.tables.unfit, keys.Tables|nodestate.TableStaged
	}
	return changed
}

// updateClassBudget holds policies back, and takes up again, what others' sets leave no room for.
// Which these are follows from all policies, those that are held back among them: while there are
// some, tables of all of them are kept alongside those in force. It reports whether the isolation
// of endpoints may have changed.
func (k *compiler) updateClassBudget(c *cluster.View, dirty *model.Dirty) bool {
	all := k.tables
	if k.unlimited != nil {
		all = k.unlimited
		all.update(c, dirty)
	}
	if !all.tenantsChanged {
		return false
	}
	all.tenantsChanged = false
	held, over := all.withholdClasses()
	k.tables.overClasses = over
	if maps.Equal(held, k.tables.withheld) {
		return false
	}
	if k.unlimited == nil {
		k.unlimitedRules = table.New[nodestate.RuleID](func(a, b nodestate.Rule) bool { return a == b })
		k.unlimited = newPolicyTables(k.tables.digest, &k.unlimitedRules)
		k.unlimited.capacity, k.unlimited.classQuota = k.tables.capacity, k.tables.classQuota
		everything := model.AllDirty()
		k.unlimited.update(c, &everything)
		k.unlimited.tenantsChanged = false
	}
	if len(held) == 0 {
		k.unlimited = nil
	}
	k.tables.withheld = held
	k.tables.bind(c, dirty, nil)
	return true
}
