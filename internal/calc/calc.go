// SPDX-License-Identifier: Apache-2.0

// Package calc turns a cluster into the desired state of one node. It is pure: it reads no clock,
// no kernel and no API server, and equal clusters give equal states, whatever was computed before.
//
// Calc does it at once. A Calculator does the same for a cluster that changes: it computes again
// only the tables whose inputs changed, and of the services only those that did.
package calc

import (
	"maps"
	"reflect"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Dirty says what of a cluster changed; see model.Dirty.
type Dirty = model.Dirty

// Calc returns the desired state of the node c.Local.Node.
func Calc(c *model.Cluster) *nodestate.State {
	s, _ := New().Update(c, model.AllDirty())
	return s
}

// Calculator computes the states of one node one after the other. It is for one goroutine.
type Calculator struct {
	state    *nodestate.State // handed out last, never changed
	services *services
	announce *announcements
	policy   *policyTables
	rules    table[nodestate.RuleID, nodestate.Rule]
	// unlimited are the tables that there were without policies held back; nil while there are
	// none.
	unlimited      *policyTables
	unlimitedRules table[nodestate.RuleID, nodestate.Rule]
	node           string     // Local.Node of the last state
	ipv6           bool       // it carried IPv6
	owners         *ownership // of the last state
	ownership      ownershipIndex
	covered        *covered      // what no pool may cover
	overlaps       []PoolOverlap // pools that do
}

// New returns a calculator that has computed nothing yet: its first Update computes everything.
func New() *Calculator {
	k := &Calculator{rules: newTable[nodestate.RuleID](func(a, b nodestate.Rule) bool { return a == b })}
	k.policy = newPolicyTables(digest64[nodestate.Class], &k.rules)
	k.services, k.announce = newServices(&k.rules), newAnnouncements()
	k.services.answers = k.announce.answers
	return k
}

// The kinds that each part of a state is made from.
const (
	inputsSettings = model.KindSettings | model.KindBlocks | model.KindPools | model.KindNodes | model.KindLocal | model.KindServiceCIDRs
	inputsRoutes   = model.KindPools | model.KindBlocks | model.KindNodes | model.KindLocal
	inputsPolicy   = model.KindSettings | model.KindHostEndpoints | model.KindPolicies | model.KindTiers | model.KindNetworkSets | model.KindServiceAccounts | model.KindPods | model.KindNamespaces | model.KindLocal
	inputsAddrs    = model.KindSettings | model.KindNodes | model.KindPods | model.KindPools | model.KindBlocks | model.KindLocal
	inputsClients  = model.KindLocal
)

// Refused returns the claims of nodes that do not count in the last state, in an order of its own.
func (k *Calculator) Refused() []Refusal {
	if k.owners == nil {
		return nil
	}
	return k.owners.refusals()
}

// Update returns the state of the node c.Local.Node and the tables that differ from the state that
// was returned before. Whatever changed in c since then must be marked in dirty; what is marked and
// did not change costs time only. When nothing differs the earlier state is returned again.
// Tables that do not differ are shared between the states.
func (k *Calculator) Update(all *model.Cluster, dirty Dirty) (*nodestate.State, nodestate.Keys) {
	first := k.state == nil
	if first {
		k.state, dirty = nodestate.New(), model.AllDirty()
	}
	c := newView(all, k.ownership.update(all, &dirty))
	if k.node != c.Local.Node || k.ipv6 != c.ipv6 {
		dirty = model.AllDirty() // which backends are local, which addresses count: everything turns on them
	}
	k.node, k.ipv6 = c.Local.Node, c.ipv6
	defer func() { k.owners = c.owners }()

	if _, servers := dirty.Slices[apiServerSlice]; servers || k.owners != c.owners || dirty.Has(inputsCovered) {
		if by := coveredBy(c); first || !by.equal(k.covered) {
			k.covered = by
			dirty.Add(model.KindPools) // which of them count
		}
	}
	c.covered = k.covered

	next, keys := *k.state, nodestate.Keys{}
	if dirty.Has(inputsSettings) {
		k.overlaps = poolOverlaps(c)
		if v := settings(c); !reflect.DeepEqual(v, next.Settings) {
			next.Settings, keys.Tables = v, keys.Tables|nodestate.TableSettings
		}
	}
	if dirty.Has(inputsRoutes) {
		storeMap(&next.Routes, routes(c), &keys, nodestate.TableRoutes)
	}
	bound := k.updatePolicy(c, &dirty, &next, &keys)
	switch {
	case dirty.Has(inputsAddrs) || k.owners != c.owners:
		storeMap(&next.Addrs, addrs(c, k.policy), &keys, nodestate.TableAddrs)
	case bound:
		storeMap(&next.Addrs, isolated(next.Addrs, k.policy), &keys, nodestate.TableAddrs)
	}
	if dirty.Has(inputsClients) {
		storeMap(&next.Clients, clients(c), &keys, nodestate.TableClients)
	}
	k.services.update(c, &dirty)
	if over := slices.Concat(k.policy.overdrawnAll(), k.services.quota.overdrawn); !slices.Equal(next.Overdrawn, over) {
		next.Overdrawn, keys.Tables = over, keys.Tables|nodestate.TableStaged
	}
	if k.announce.update(c, &dirty, k.services) {
		announced, watched := k.announce.tables()
		storeMap(&next.Announced, announced, &keys, nodestate.TableAnnounced)
		storeMap(&next.Watched, watched, &keys, nodestate.TableAnnounced)
	}
	k.services.reconsider(k.announce.concerned)
	storeTable(&k.services.frontends, &next.Frontends, &keys, nodestate.TableServices)
	storeTable(&k.services.backends, &next.Backends, &keys, nodestate.TableServices)
	storeTable(&k.services.health, &next.HealthChecks, &keys, nodestate.TableServices)
	storeTable(&k.services.refused, &next.Refused, &keys, nodestate.TableServices)
	storeTable(&k.services.ranges, &next.SourceRanges, &keys, nodestate.TableServices)
	storeTable(&k.rules, &next.Rules, &keys, nodestate.TableRules)
	if first {
		keys = nodestate.All()
	}
	if keys.Tables != 0 {
		k.state = &next
	}
	return k.state, keys
}

// updatePolicy brings the policy tables, and the rules of policies, up to date. It reports whether
// the isolation of endpoints may have changed.
func (k *Calculator) updatePolicy(c *cluster, dirty *Dirty, next *nodestate.State, keys *nodestate.Keys) bool {
	if dirty.Has(model.KindPods) {
		k.policy.ruleIDs.clear()
		room, apart := k.policy.capacity, k.policy.classQuota
		k.policy, k.unlimited = newPolicyTables(k.policy.digest, &k.rules), nil
		k.policy.capacity, k.policy.classQuota = room, apart
	}
	isolated := k.policy.update(c, dirty)
	isolated = k.updateClassBudget(c, dirty) || isolated
	k.policy.policy = storeChanges(&next.Policy, k.policy.policy, keys, nodestate.TablePolicy)
	k.policy.peers = storeChanges(&next.Peers, k.policy.peers, keys, nodestate.TablePolicy)
	if k.policy.classes != nil {
		k.policy.classes.peersOut = k.policy.peers
	}
	storeMap(&next.HostEndpoints, k.policy.hosts, keys, nodestate.TablePolicy)
	storeMap(&next.PeerCIDRs, k.policy.peerCIDRs, keys, nodestate.TablePolicy)
	storeMap(&next.Staged, k.policy.staged, keys, nodestate.TableStaged)
	storeMap(&next.HostStaged, k.policy.hostsStaged, keys, nodestate.TableStaged)
	if !slices.Equal(next.Unfit, k.policy.unfit) {
		next.Unfit, keys.Tables = k.policy.unfit, keys.Tables|nodestate.TableStaged
	}
	return isolated
}

// storeMap puts a table into a state when it differs from the one there.
func storeMap[K, V comparable](have *map[K]V, want map[K]V, keys *nodestate.Keys, t nodestate.Table) {
	if nodestate.SameMap(*have, want) || maps.Equal(*have, want) {
		return
	}
	*have = want
	keys.Tables |= t
}

// storeTable puts a table into a state when something was written to it. What was written may be
// what was there before all the same: numbers of rules that one source gives back and another
// takes, for one.
func storeTable[K comparable, V any](from *table[K, V], have *nodestate.Map[K, V], keys *nodestate.Keys, t nodestate.Table) {
	if !from.Changed() {
		return
	}
	if now := from.Map(); !nodestate.EqualMapsFunc(*have, now, from.equal) {
		*have = now
		keys.Tables |= t
	}
}

// storeChanges changes a table of a state to the contents of want, and returns it: what is equal
// stays shared with the states before.
func storeChanges[K, V comparable](have *nodestate.Map[K, V], want nodestate.Map[K, V], keys *nodestate.Keys, t nodestate.Table) nodestate.Map[K, V] {
	e := have.Edit()
	for k, c := range nodestate.Changes(*have, want, func(a, b V) bool { return a == b }) {
		if c.Is {
			e.Set(k, c.After)
		} else {
			e.Delete(k)
		}
	}
	if e.Changed() {
		*have = e.Map()
		keys.Tables |= t
	}
	return *have
}
