// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// inputs are the kinds that policy is made from.
const inputs = model.KindSettings | model.KindHostEndpoints | model.KindPolicies | model.KindTiers | model.KindNetworkSets | model.KindServiceAccounts | model.KindPods | model.KindNamespaces | model.KindLocal

// Compiler keeps the tables of policy, and their rules in the table of rules, from one state to the
// next.
type Compiler struct {
	tables *tables
	rules  *table.Table[nodestate.RuleID, nodestate.Rule] // of the state: those of Services are in it too
	// unlimited are the tables that there were without policies held back; nil while there are
	// none.
	unlimited      *tables
	unlimitedRules table.Table[nodestate.RuleID, nodestate.Rule]
}

// Limits are what policy may take of a node, and how classes get their numbers: tests make both
// small, so that what is asked for does not fit, and numbers collide.
type Limits struct {
	Entries int                               // of look-up 2
	Classes int                               // that each namespace may make in any case
	Digest  func(text string) nodestate.Class // of the texts of classes
}

// NodeLimits returns those of a node.
func NodeLimits() Limits {
	return Limits{Entries: MaxEntries, Classes: reservedClasses, Digest: table.Digest64[nodestate.Class]}
}

// New returns a compiler that has computed nothing yet, and writes its rules into a table.
func New(rules *table.Table[nodestate.RuleID, nodestate.Rule], l Limits) *Compiler {
	return &Compiler{tables: newTables(l, rules), rules: rules}
}

// Load is what a compiler looked at and keeps.
type Load struct {
	Sets    int // whose entries were counted
	Classes int // that there are
	Texts   int // bytes of what says which classes these are
}

// Load measures a compiler.
func (k *Compiler) Load() Load {
	l := Load{Sets: len(k.tables.measured) + len(k.tables.written)}
	if k.tables.classes != nil {
		l.Classes, l.Texts = k.tables.classes.Len(), k.tables.classes.TextSize()
	}
	return l
}

// Isolation returns which endpoints policy isolates.
func (k *Compiler) Isolation() (ingress, egress map[netip.Addr]nodestate.Isolation) {
	return k.tables.ingress, k.tables.egress
}

// Overdrawn names the namespaces whose policies are refused something.
func (k *Compiler) Overdrawn() []nodestate.Overdrawn { return k.tables.overdrawnAll() }

// Update brings the policy tables of the next state, and the rules of policies, up to date with
// what is dirty, and adds to keys which tables differ. It reports whether the isolation of
// endpoints may have changed.
func (k *Compiler) Update(c *cluster.View, dirty *model.Dirty, next *nodestate.State, keys *nodestate.Keys) bool {
	if dirty.Has(model.KindPods) {
		k.tables.ruleIDs.clear()
		k.tables, k.unlimited = newTables(k.tables.limits, k.rules), nil
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
	if n := k.tables.names; !maps.Equal(n.Patterns, next.Names.Patterns) || !maps.Equal(n.Sets, next.Names.Sets) {
		next.Names.Patterns, next.Names.Texts, next.Names.Sets, keys.Tables = n.Patterns, n.Texts, n.Sets, keys.Tables|nodestate.TableNames
	}
	if !slices.Equal(next.Unfit, k.tables.unfit) {
		next.Unfit, keys.Tables = k.tables.unfit, keys.Tables|nodestate.TableStaged
	}
	return changed
}

// updateClassBudget holds policies back, and takes up again, what others' sets leave no room for.
// Which these are follows from all policies, those that are held back among them: while there are
// some, tables of all of them are kept alongside those in force. It reports whether the isolation
// of endpoints may have changed.
func (k *Compiler) updateClassBudget(c *cluster.View, dirty *model.Dirty) bool {
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
		k.unlimited = newTables(k.tables.limits, &k.unlimitedRules)
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
