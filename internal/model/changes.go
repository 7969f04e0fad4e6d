// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
)

// Changes are what changed of a cluster. In every map a nil value says that the object is gone.
// Values are never changed after they were handed on.
type Changes struct {
	Namespaces      map[string]*Namespace
	Pods            map[Name]*Pod
	Nodes           map[string]*Node
	Services        map[Name]*Service
	Slices          map[Name]*EndpointSlice
	Policies        map[PolicyID]*Policy
	Staged          map[PolicyID]*StagedPolicy
	Tiers           map[string]*Tier
	NetworkSets     map[Name]*NetworkSet
	ServiceAccounts map[Name]*ServiceAccount
	HostEndpoints   map[string]*HostEndpoint
	Pools           map[string]*Pool
	Blocks          map[netip.Prefix]*Block
	BGPConfigs      map[string]*BGPConfig
	BGPPeers        map[string]*BGPPeer
	BGPFilters      map[string]*BGPFilter
	EgressPolicies  map[string]*EgressPolicy

	// ServiceCIDRs are the ranges of cluster IPs, all of them, sorted, when ServiceCIDRsChanged.
	ServiceCIDRs        []netip.Prefix
	ServiceCIDRsChanged bool
	// Reserved are the ranges of all IPReservations, sorted, when ReservedChanged.
	Reserved        []netip.Prefix
	ReservedChanged bool
}

// Everything returns a cluster as what changes an empty one into it; settings and what the machine
// says are no changes. It shares the cluster's maps.
func (c *Cluster) Everything() *Changes {
	return &Changes{
		Namespaces: c.Namespaces, Pods: c.Pods.ByName(), Nodes: c.Nodes, Services: c.Services, Slices: c.Slices, Policies: c.Policies, Staged: c.Staged,
		Tiers: c.Tiers, NetworkSets: c.NetworkSets, ServiceAccounts: c.ServiceAccounts, HostEndpoints: c.HostEndpoints, Pools: c.Pools, Blocks: c.Blocks, BGPConfigs: c.BGPConfigs, BGPPeers: c.BGPPeers, BGPFilters: c.BGPFilters, EgressPolicies: c.EgressPolicies,
		ServiceCIDRs: c.ServiceCIDRs, ServiceCIDRsChanged: true, Reserved: c.Reservations, ReservedChanged: true,
	}
}

// Empty reports whether nothing changed.
func (x *Changes) Empty() bool {
	return len(x.Namespaces)+len(x.Pods)+len(x.Nodes)+len(x.Services)+len(x.Slices)+len(x.Policies)+len(x.Staged)+len(x.Tiers)+
		len(x.NetworkSets)+len(x.ServiceAccounts)+len(x.HostEndpoints)+len(x.Pools)+len(x.Blocks)+len(x.BGPConfigs)+len(x.BGPPeers)+len(x.BGPFilters)+len(x.EgressPolicies) == 0 && !x.ServiceCIDRsChanged && !x.ReservedChanged
}

// Merge adds later changes: of one object only the last one is kept.
func (x *Changes) Merge(later *Changes) {
	Overlay(&x.Namespaces, later.Namespaces)
	Overlay(&x.Pods, later.Pods)
	Overlay(&x.Nodes, later.Nodes)
	Overlay(&x.Services, later.Services)
	Overlay(&x.Slices, later.Slices)
	Overlay(&x.Policies, later.Policies)
	Overlay(&x.Staged, later.Staged)
	Overlay(&x.Tiers, later.Tiers)
	Overlay(&x.NetworkSets, later.NetworkSets)
	Overlay(&x.ServiceAccounts, later.ServiceAccounts)
	Overlay(&x.HostEndpoints, later.HostEndpoints)
	Overlay(&x.Pools, later.Pools)
	Overlay(&x.Blocks, later.Blocks)
	Overlay(&x.BGPConfigs, later.BGPConfigs)
	Overlay(&x.BGPPeers, later.BGPPeers)
	Overlay(&x.BGPFilters, later.BGPFilters)
	Overlay(&x.EgressPolicies, later.EgressPolicies)
	if later.ServiceCIDRsChanged {
		x.ServiceCIDRs, x.ServiceCIDRsChanged = later.ServiceCIDRs, true
	}
	if later.ReservedChanged {
		x.Reserved, x.ReservedChanged = later.Reserved, true
	}
}

// Overlay puts later values over those of a map, which may be nil.
func Overlay[K comparable, V any](into *map[K]*V, later map[K]*V) {
	if *into == nil {
		*into = later
		return
	}
	maps.Copy(*into, later)
}

// Replace adds to changes that hold a whole cluster that everything else which c has is gone.
func (x *Changes) Replace(c *Cluster) {
	endOthers(&x.Namespaces, c.Namespaces)
	for r := range c.Pods.Refs() {
		if now, _ := OfPod(x.Pods, r); now == nil {
			markGone(&x.Pods, r.Name())
		}
	}
	endOthers(&x.Nodes, c.Nodes)
	endOthers(&x.Services, c.Services)
	endOthers(&x.Slices, c.Slices)
	endOthers(&x.Policies, c.Policies)
	endOthers(&x.Staged, c.Staged)
	endOthers(&x.Tiers, c.Tiers)
	endOthers(&x.NetworkSets, c.NetworkSets)
	endOthers(&x.ServiceAccounts, c.ServiceAccounts)
	endOthers(&x.HostEndpoints, c.HostEndpoints)
	endOthers(&x.Pools, c.Pools)
	endOthers(&x.Blocks, c.Blocks)
	endOthers(&x.BGPConfigs, c.BGPConfigs)
	endOthers(&x.BGPPeers, c.BGPPeers)
	endOthers(&x.BGPFilters, c.BGPFilters)
	endOthers(&x.EgressPolicies, c.EgressPolicies)
	x.ServiceCIDRsChanged, x.ReservedChanged = true, true
}

func endOthers[K comparable, V any](into *map[K]*V, have map[K]*V) {
	for k := range have {
		if (*into)[k] == nil {
			markGone(into, k)
		}
	}
}

func markGone[K comparable, V any](into *map[K]*V, k K) {
	if *into == nil {
		*into = map[K]*V{}
	}
	(*into)[k] = nil
}

// Apply changes the cluster, and says what of it is dirty.
func (x *Changes) Apply(c *Cluster) (d Dirty) {
	mark := func(k Kind, changed bool) {
		if changed {
			d.Add(k)
		}
	}
	mark(KindNamespaces, change(c.Namespaces, x.Namespaces))
	mark(KindNodes, change(c.Nodes, x.Nodes))
	mark(KindPolicies, change(c.Policies, x.Policies))
	mark(KindPolicies, change(c.Staged, x.Staged))
	mark(KindTiers, change(c.Tiers, x.Tiers))
	mark(KindNetworkSets, change(c.NetworkSets, x.NetworkSets))
	mark(KindServiceAccounts, change(c.ServiceAccounts, x.ServiceAccounts))
	mark(KindHostEndpoints, change(c.HostEndpoints, x.HostEndpoints))
	mark(KindPools, change(c.Pools, x.Pools))
	mark(KindBlocks, change(c.Blocks, x.Blocks))
	mark(KindBGP, change(c.BGPConfigs, x.BGPConfigs))
	mark(KindBGP, change(c.BGPPeers, x.BGPPeers))
	mark(KindBGP, change(c.BGPFilters, x.BGPFilters))
	mark(KindEgressPolicies, change(c.EgressPolicies, x.EgressPolicies))
	if x.ReservedChanged {
		c.Reservations = x.Reserved
		d.Add(KindReservations)
	}
	if x.ServiceCIDRsChanged {
		c.ServiceCIDRs = x.ServiceCIDRs
		d.Add(KindServiceCIDRs)
	}
	x.applyPods(c.Pods, &d)
	change(c.Services, x.Services)
	for n := range x.Services {
		d.AddService(n)
	}
	change(c.Slices, x.Slices)
	for n := range x.Slices {
		d.AddSlice(n)
	}
	return d
}

// change puts values into a map, or takes out what is nil, and reports whether there were any.
func change[K comparable, V any](into, changes map[K]*V) bool {
	for k, v := range changes {
		if v == nil {
			delete(into, k)
		} else {
			into[k] = v
		}
	}
	return len(changes) > 0
}

// applyPods changes the pods of a cluster, nil for one whose pods nobody looks at, and marks those
// that are others than before.
func (x *Changes) applyPods(t *PodTable, d *Dirty) {
	if t == nil {
		return
	}
	for n, now := range x.Pods {
		before := t.Get(n)
		switch {
		case before == nil && now == nil, before != nil && now != nil && before.Equal(now):
			continue
		case now == nil:
			t.Delete(n)
		default:
			t.Put(now)
		}
		d.AddPod(n, before)
	}
}
