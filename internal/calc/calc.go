// SPDX-License-Identifier: Apache-2.0

// Package calc turns a cluster into the desired state of one node. It is pure: it reads no clock,
// no kernel and no API server, and equal clusters give equal states, whatever was computed before.
//
// Its stages, each of which imports only those before it (test/rules):
//
//	model.Cluster
//	     │
//	cluster   which claims of nodes, blocks and pods count: a View
//	     ├──────────────┬────────────────┐
//	   peer           route           service
//	classes of      settings,       frontends, backends,
//	addresses       routes,         refusals, which node
//	     │          addresses       answers for an address
//	  subject           │                │
//	which policies      │                │
//	select what         │                │
//	     │              │                │
//	  policy            │                │
//	sets, entries,      │                │
//	rules               │                │
//	     └──────────────┴────────────────┘     bgp: sessions and prefixes of the BGP process
//	 Calculator    stores what differs: nodestate.State and its Keys
//
// Package table has the tables under work that all of them write, package port what rules ask of
// ports.
//
// Calc does it at once. A Calculator does the same for a cluster that changes: it computes again
// only the tables whose inputs changed, and of the services only those that did.
package calc

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/weir-net/weir/internal/calc/bgp"
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/calc/route"
	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Dirty says what of a cluster changed; see model.Dirty.
type Dirty = model.Dirty

// What the first stage reports of claims and pools.
type (
	Refusal     = cluster.Refusal
	PoolOverlap = cluster.PoolOverlap
)

// WhyNotFloating says why pods of a namespace do not have a floating address, whoever has it; "" =
// the settings and the namespace let them.
func WhyNotFloating(s *model.Settings, n *model.Namespace, namespace string, a netip.Addr) string {
	return cluster.WhyNotFloating(s, n, namespace, a)
}

// PoolOverlaps returns the pools of a cluster that cover what nodes need.
func PoolOverlaps(all *model.Cluster) []PoolOverlap { return cluster.PoolOverlaps(all) }

// Calc returns the desired state of the node c.Local.Node.
func Calc(c *model.Cluster) *nodestate.State {
	s, _ := New().Update(c, model.AllDirty())
	return s
}

// Calculator computes the states of one node one after the other. It is for one goroutine.
type Calculator struct {
	state     *nodestate.State // handed out last, never changed
	services  *service.Services
	policy    *policy.Compiler
	rules     table.Table[nodestate.RuleID, nodestate.Rule]
	node      string             // Local.Node of the last state
	ipv6      bool               // it carried IPv6
	owners    *cluster.Ownership // of the last state
	ownership cluster.OwnershipIndex
	covered   *cluster.Covered      // what no pool may cover
	overlaps  []cluster.PoolOverlap // pools that do
	floating  *cluster.Floating
}

// New returns a calculator that has computed nothing yet: its first Update computes everything.
func New() *Calculator {
	k := &Calculator{rules: table.New[nodestate.RuleID](func(a, b nodestate.Rule) bool { return a == b })}
	k.policy, k.services = policy.New(&k.rules, policy.NodeLimits()), service.New(&k.rules)
	return k
}

// The kinds that each part of a state is made from.
const (
	inputsSettings = model.KindBGP | model.KindSettings | model.KindBlocks | model.KindPools | model.KindNodes | model.KindLocal | model.KindServiceCIDRs
	inputsRoutes   = model.KindBGP | model.KindSettings | model.KindPools | model.KindBlocks | model.KindNodes | model.KindLocal
	inputsAddrs    = model.KindBGP | model.KindSettings | model.KindNodes | model.KindPods | model.KindPools | model.KindBlocks | model.KindLocal
	inputsClients  = model.KindLocal | model.KindSettings
	inputsCrypto   = model.KindSettings | model.KindNodes | model.KindPools | model.KindLocal | model.KindSlices
)

// Refused returns the claims of nodes that do not count in the last state, in an order of its own.
func (k *Calculator) Refused() []cluster.Refusal {
	if k.owners == nil {
		return nil
	}
	return k.owners.Refusals()
}

// FloatingRefused returns why pods of the node do not have floating addresses that they ask for, in
// the last state.
func (k *Calculator) FloatingRefused() []cluster.Refusal { return k.floating.Refusals() }

// Update returns the state of the node c.Local.Node and the tables that differ from the state that
// was returned before. Whatever changed in c since then must be marked in dirty; what is marked and
// did not change costs time only. When nothing differs the earlier state is returned again.
// Tables that do not differ are shared between the states.
func (k *Calculator) Update(all *model.Cluster, dirty model.Dirty) (*nodestate.State, nodestate.Keys) {
	first := k.state == nil
	if first {
		k.state, dirty = nodestate.New(), model.AllDirty()
	}
	c := cluster.NewView(all, k.ownership.Update(all, &dirty))
	if k.node != c.Local.Node || k.ipv6 != c.Ipv6 {
		dirty = model.AllDirty() // which backends are local, which addresses count: everything turns on them
	}
	k.node, k.ipv6 = c.Local.Node, c.Ipv6
	defer func() { k.owners = c.Owners }()

	_, servers := dirty.Slices[cluster.APIServerSlice]
	if servers || k.owners != c.Owners || dirty.Has(cluster.InputsCovered) {
		if by := cluster.CoveredBy(c); first || !by.Equal(k.covered) {
			k.covered = by
			dirty.Add(model.KindPools) // which of them count
		}
	}
	c.Covered = k.covered
	floats := false // another pod has a floating address
	if servers || k.owners != c.Owners || dirty.Has(cluster.InputsFloating) || cluster.ChangesFloating(c, k.floating, &dirty) {
		now := cluster.FloatingOf(c)
		floats = !now.Same(k.floating)
		k.floating = now
	}
	c.Floating = k.floating

	next, keys := *k.state, nodestate.Keys{}
	if dirty.Has(inputsSettings) {
		k.overlaps = cluster.PoolOverlapsIn(c)
		if v := route.Settings(c); !reflect.DeepEqual(v, next.Settings) {
			next.Settings, keys.Tables = v, keys.Tables|nodestate.TableSettings
		}
	}
	if dirty.Has(inputsRoutes) {
		table.StoreMap(&next.Routes, route.Routes(c), &keys, nodestate.TableRoutes)
	}
	if servers || dirty.Has(inputsCrypto) {
		four, six := route.WireGuard(c, false), route.WireGuard(c, true)
		if !four.Equal(&next.WireGuard4) || !six.Equal(&next.WireGuard6) {
			next.WireGuard4, next.WireGuard6, keys.Tables = four, six, keys.Tables|nodestate.TableWireGuard
		}
	}
	bound := k.policy.Update(c, &dirty, &next, &keys)
	if keys.Has(nodestate.TableNames) || len(next.Names.Sets) > 0 && route.ChangesNames(c, &dirty) {
		var servers []netip.Addr
		var extra uint32
		if len(next.Names.Sets) > 0 {
			servers, extra = route.NameServers(c), uint32(c.Settings.DNS.ExtraTTL.Seconds())
		}
		if !slices.Equal(servers, next.Names.Servers) || extra != next.Names.ExtraTTL {
			next.Names.Servers, next.Names.ExtraTTL, keys.Tables = servers, extra, keys.Tables|nodestate.TableNames
		}
	}
	ingress, egress := k.policy.Isolation()
	gateways := route.ChangesGateways(c, &dirty)
	switch {
	case dirty.Has(inputsAddrs) || gateways || floats || k.owners != c.Owners:
		table.StoreMap(&next.Addrs, route.Addrs(c, ingress, egress), &keys, nodestate.TableAddrs)
	case bound:
		table.StoreMap(&next.Addrs, route.Isolate(next.Addrs, ingress, egress), &keys, nodestate.TableAddrs)
	}
	if dirty.Has(inputsClients) {
		table.StoreMap(&next.Clients, route.Clients(c), &keys, nodestate.TableClients)
		table.StoreMap(&next.Held, route.Held(c), &keys, nodestate.TableAddrs)
	}
	if dirty.Has(route.InputsQoS) || route.ChangesQoS(c, dirty.Pods) {
		table.StoreMap(&next.QoS, route.QoS(c), &keys, nodestate.TableQoS)
	}
	if dirty.Has(route.InputsGateways) || gateways || k.owners != c.Owners {
		led := route.Gateways(c)
		table.StoreMapFunc(&next.Gateways, led.Gateways, slices.Equal, &keys, nodestate.TableGateways)
		table.StoreMap(&next.Probed, led.Probed, &keys, nodestate.TableGateways)
		if !next.Egress.Equal(&led.Egress) {
			next.Egress, keys.Tables = led.Egress, keys.Tables|nodestate.TableGateways
		}
	}
	if dirty.Has(route.InputsSources) || route.ChangesSources(c, dirty.Pods) {
		table.StoreMapFunc(&next.Sources, route.Sources(c), slices.Equal, &keys, nodestate.TableSources)
	}
	if floats || first {
		table.StoreMap(&next.Floating, route.Floating(c), &keys, nodestate.TableFloating)
	}
	k.services.UpdateAll(c, &dirty, &next, &keys)
	services := bgp.OfServices(c) && (dirty.Has(model.KindServices|model.KindSlices) || len(dirty.Services)+len(dirty.Slices) > 0 || keys.Tables&nodestate.TableServices != 0)
	if dirty.Has(bgp.Inputs) || floats || k.owners != c.Owners || services {
		if v := bgp.State(c, k.services.Reachable(c, next.Frontends)); !reflect.DeepEqual(v, next.BGP) {
			next.BGP, keys.Tables = v, keys.Tables|nodestate.TableBGP
		}
	}
	if over := slices.Concat(k.policy.Overdrawn(), k.services.Overdrawn()); !slices.Equal(next.Overdrawn, over) {
		next.Overdrawn, keys.Tables = over, keys.Tables|nodestate.TableStaged
	}
	table.Store(&k.rules, &next.Rules, &keys, nodestate.TableRules)
	if first {
		keys = nodestate.All()
	}
	if keys.Tables != 0 {
		k.state = &next
	}
	return k.state, keys
}

// PoolOverlaps returns them, sorted by name, as of the last Update. Nothing of such a pool is
// routed but its blocks, and no node takes blocks of it unless Gives.
func (k *Calculator) PoolOverlaps() []cluster.PoolOverlap { return k.overlaps }

// Refusals returns what of Services and host ports is not in force, as every agent finds it: of a
// cluster of which no node's view is asked for.
func Refusals(all *model.Cluster) nodestate.Map[nodestate.Object, []nodestate.Refusal] {
	s, _ := New().Update(all, model.AllDirty())
	return s.Refused
}
