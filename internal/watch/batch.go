// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// Batch is what changed since the batch before it, squashed: of several changes of one object only
// the last one is here. In every map a nil value says that the object is gone. Values are never
// changed after they were handed on.
type Batch struct {
	// Full is set in the first batch, which holds the whole cluster.
	Full bool

	Namespaces      map[string]*model.Namespace
	Pods            map[model.Name]*model.Pod
	Nodes           map[string]*model.Node
	Services        map[model.Name]*model.Service
	Slices          map[model.Name]*model.EndpointSlice
	Policies        map[model.PolicyID]*model.Policy
	Staged          map[model.PolicyID]*model.StagedPolicy
	Tiers           map[string]*model.Tier
	NetworkSets     map[model.Name]*model.NetworkSet
	ServiceAccounts map[model.Name]*model.ServiceAccount
	HostEndpoints   map[string]*model.HostEndpoint
	Pools           map[string]*model.Pool
	Blocks          map[netip.Prefix]*model.Block

	// ServiceCIDRs are the ranges of cluster IPs, all of them, sorted, when ServiceCIDRsChanged.
	ServiceCIDRs        []netip.Prefix
	ServiceCIDRsChanged bool
	// PoolOrder lists the names of all pools, the oldest first, when Pools is not empty.
	PoolOrder []string
	// Reservations are the CIDRs of IPReservations by object.
	Reservations map[string]*Reservation
	// Reserved are the ranges of all IPReservations, sorted, when Reservations is not empty.
	Reserved []netip.Prefix
	// IPAM is the IPAMConfiguration "default" when it changed; its zero value when it is gone.
	IPAM *IPAMConfig
	// Configs are the FelixConfigurations by name, for internal/config.
	Configs map[string]*FelixConfig

	// Problems are those of all objects, when the set of problems changed (ProblemsChanged).
	Problems        []weirv1.Problem
	ProblemsChanged bool
}

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR (KEP-1880).
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// Reservation is an IPReservation.
type Reservation struct {
	Name  string
	CIDRs []netip.Prefix
}

// IPAMConfig is an IPAMConfiguration.
type IPAMConfig struct {
	StrictAffinity bool
	MaxBlocks      int // per node, 0 = no limit
}

// FelixConfig is a FelixConfiguration as it was written: spec as decoded JSON.
type FelixConfig struct {
	Name string
	Spec map[string]any
}

// Empty reports whether nothing changed.
func (b *Batch) Empty() bool {
	return !b.Full && len(b.Namespaces) == 0 && len(b.Pods) == 0 && len(b.Nodes) == 0 && len(b.Services) == 0 &&
		len(b.Slices) == 0 && len(b.Policies)+len(b.Staged)+len(b.Tiers)+len(b.NetworkSets)+len(b.ServiceAccounts)+len(b.HostEndpoints) == 0 && len(b.Pools) == 0 && len(b.Blocks) == 0 && !b.ServiceCIDRsChanged &&
		len(b.Reservations) == 0 && b.IPAM == nil && len(b.Configs) == 0 && !b.ProblemsChanged
}

// Apply changes the cluster, and says what of it is dirty. Configs, IPAM and Problems are
// not part of a cluster: the caller looks at them itself.
func (b *Batch) Apply(c *model.Cluster) model.Dirty {
	var d model.Dirty
	if b.Full {
		d = model.AllDirty()
		d.Kinds &^= model.KindLocal | model.KindSettings
	}
	mark := func(k model.Kind, changed bool) {
		if changed {
			d.Add(k)
		}
	}
	mark(model.KindNamespaces, merge(c.Namespaces, b.Namespaces))
	mark(model.KindNodes, merge(c.Nodes, b.Nodes))
	mark(model.KindPolicies, merge(c.Policies, b.Policies))
	mark(model.KindPolicies, merge(c.Staged, b.Staged))
	mark(model.KindTiers, merge(c.Tiers, b.Tiers))
	mark(model.KindNetworkSets, merge(c.NetworkSets, b.NetworkSets))
	mark(model.KindServiceAccounts, merge(c.ServiceAccounts, b.ServiceAccounts))
	mark(model.KindHostEndpoints, merge(c.HostEndpoints, b.HostEndpoints))
	mark(model.KindPools, merge(c.Pools, b.Pools))
	mark(model.KindBlocks, merge(c.Blocks, b.Blocks))
	if len(b.Reservations) > 0 || b.Full {
		c.Reservations = b.Reserved
		d.Add(model.KindReservations)
	}
	if b.ServiceCIDRsChanged {
		c.ServiceCIDRs = b.ServiceCIDRs
		d.Add(model.KindServiceCIDRs)
	}
	merge(c.Pods, b.Pods)
	for n := range b.Pods {
		d.AddPod(n)
	}
	merge(c.Services, b.Services)
	for n := range b.Services {
		d.AddService(n)
	}
	merge(c.Slices, b.Slices)
	for n := range b.Slices {
		d.AddSlice(n)
	}
	return d
}

func merge[K comparable, V any](into, changes map[K]*V) bool {
	for k, v := range changes {
		if v == nil {
			delete(into, k)
		} else {
			into[k] = v
		}
	}
	return len(changes) > 0
}

// put records a change in one of a batch's maps.
func put[K comparable, V any](m *map[K]*V, k K, v *V) {
	if *m == nil {
		*m = map[K]*V{}
	}
	(*m)[k] = v
}

// problems holds what is wrong with each object.
type problems struct {
	byObject map[string][]weirv1.Problem
	changed  bool
}

func (p *problems) set(object string, list []weirv1.Problem) {
	if slices.Equal(p.byObject[object], list) {
		return
	}
	if len(list) == 0 {
		delete(p.byObject, object)
	} else {
		p.byObject[object] = list
	}
	p.changed = true
}

func (p *problems) all() []weirv1.Problem {
	var out []weirv1.Problem
	for _, o := range slices.Sorted(maps.Keys(p.byObject)) {
		out = append(out, p.byObject[o]...)
	}
	return out
}
