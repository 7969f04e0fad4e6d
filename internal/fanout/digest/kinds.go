// SPDX-License-Identifier: Apache-2.0

package digest

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// kindOf is how the objects of a kind are named and written, and where they are.
type kindOf[K comparable, V any] struct {
	kind    Kind
	key     func(K) (namespace, name string)
	write   func(*writer, *V)
	changed func(*model.Changes) *map[K]*V
	// held yields those of a cluster; nil = as in Cluster.Everything.
	held func(*model.Cluster) iter.Seq2[K, *V]
	// cached keeps digests of long objects that many nodes have; nil = they are made each time.
	cached func(*Cache, *V, func() Sum) Sum
}

func byText(name string) (string, string)      { return "", name }
func byName(n model.Name) (string, string)     { return n.Namespace, n.Name }
func byPrefix(p netip.Prefix) (string, string) { return "", p.String() }
func byID(id model.PolicyID) (string, string)  { return id.Name.Namespace, id.Kind + "/" + id.Name.Name }

var (
	namespaces = kindOf[string, model.Namespace]{Namespaces, byText, (*writer).namespace, func(ch *model.Changes) *map[string]*model.Namespace { return &ch.Namespaces }, nil, nil}
	pods       = kindOf[model.Name, model.Pod]{Pods, byName, (*writer).pod, func(ch *model.Changes) *map[model.Name]*model.Pod { return &ch.Pods },
		func(c *model.Cluster) iter.Seq2[model.Name, *model.Pod] { return c.Pods.Entries() }, nil}
	nodes           = kindOf[string, model.Node]{Nodes, byText, (*writer).node, func(ch *model.Changes) *map[string]*model.Node { return &ch.Nodes }, nil, nil}
	services        = kindOf[model.Name, model.Service]{Services, byName, (*writer).service, func(ch *model.Changes) *map[model.Name]*model.Service { return &ch.Services }, nil, nil}
	endpointSlices  = kindOf[model.Name, model.EndpointSlice]{Slices, byName, (*writer).slice, func(ch *model.Changes) *map[model.Name]*model.EndpointSlice { return &ch.Slices }, nil, nil}
	policies        = kindOf[model.PolicyID, model.Policy]{Policies, byID, (*writer).policy, func(ch *model.Changes) *map[model.PolicyID]*model.Policy { return &ch.Policies }, nil, (*Cache).get}
	staged          = kindOf[model.PolicyID, model.StagedPolicy]{Staged, byID, (*writer).staged, func(ch *model.Changes) *map[model.PolicyID]*model.StagedPolicy { return &ch.Staged }, nil, nil}
	tiers           = kindOf[string, model.Tier]{Tiers, byText, (*writer).tier, func(ch *model.Changes) *map[string]*model.Tier { return &ch.Tiers }, nil, nil}
	networkSets     = kindOf[model.Name, model.NetworkSet]{NetworkSets, byName, (*writer).networkSet, func(ch *model.Changes) *map[model.Name]*model.NetworkSet { return &ch.NetworkSets }, nil, nil}
	serviceAccounts = kindOf[model.Name, model.ServiceAccount]{ServiceAccounts, byName, (*writer).serviceAccount, func(ch *model.Changes) *map[model.Name]*model.ServiceAccount { return &ch.ServiceAccounts }, nil, nil}
	hostEndpoints   = kindOf[string, model.HostEndpoint]{HostEndpoints, byText, (*writer).hostEndpoint, func(ch *model.Changes) *map[string]*model.HostEndpoint { return &ch.HostEndpoints }, nil, nil}
	pools           = kindOf[string, model.Pool]{Pools, byText, (*writer).pool, func(ch *model.Changes) *map[string]*model.Pool { return &ch.Pools }, nil, nil}
	blocks          = kindOf[netip.Prefix, model.Block]{Blocks, byPrefix, (*writer).block, func(ch *model.Changes) *map[netip.Prefix]*model.Block { return &ch.Blocks }, nil, nil}
	bgpConfigs      = kindOf[string, model.BGPConfig]{BGPConfigs, byText, (*writer).bgpConfig, func(ch *model.Changes) *map[string]*model.BGPConfig { return &ch.BGPConfigs }, nil, nil}
	bgpPeers        = kindOf[string, model.BGPPeer]{BGPPeers, byText, (*writer).bgpPeer, func(ch *model.Changes) *map[string]*model.BGPPeer { return &ch.BGPPeers }, nil, nil}
	bgpFilters      = kindOf[string, model.BGPFilter]{BGPFilters, byText, (*writer).bgpFilter, func(ch *model.Changes) *map[string]*model.BGPFilter { return &ch.BGPFilters }, nil, nil}
	egressPolicies  = kindOf[string, model.EgressPolicy]{EgressPolicies, byText, (*writer).egressPolicy, func(ch *model.Changes) *map[string]*model.EgressPolicy { return &ch.EgressPolicies }, nil, nil}
)

// kinds are those that have objects with names.
var kinds = []interface {
	listChanged(Lists, *writer, *model.Changes, *Cache)
	listHeld(Lists, *writer, *model.Cluster)
	pick(into, of *model.Changes, from Buckets)
	settle(*model.Changes, *model.Cluster, Buckets)
}{namespaces, pods, nodes, services, endpointSlices, policies, staged, tiers, networkSets, serviceAccounts, hostEndpoints, pools, blocks, bgpConfigs, bgpPeers, bgpFilters, egressPolicies}

func (k kindOf[K, V]) scope(key K) (Scope, string) {
	namespace, name := k.key(key)
	return Scope{k.kind, namespace}, name
}

func (k kindOf[K, V]) sum(w *writer, v *V) Sum {
	*w = (*w)[:0]
	k.write(w, v)
	return sumOf(*w)
}

// of yields the objects of a cluster.
func (k kindOf[K, V]) of(c *model.Cluster) iter.Seq2[K, *V] {
	if k.held != nil {
		return k.held(c)
	}
	others := *c
	others.Pods = nil // which it would make for nobody
	return maps.All(*k.changed(others.Everything()))
}

// listChanged and listHeld add objects to lists.
func (k kindOf[K, V]) listChanged(out Lists, w *writer, ch *model.Changes, cache *Cache) {
	k.list(out, maps.All(*k.changed(ch)), func(v *V) Sum {
		sum := func() Sum { return k.sum(w, v) }
		if k.cached == nil {
			return sum()
		}
		return k.cached(cache, v, sum)
	})
}

func (k kindOf[K, V]) listHeld(out Lists, w *writer, c *model.Cluster) {
	k.list(out, k.of(c), func(v *V) Sum { return k.sum(w, v) })
}

func (k kindOf[K, V]) list(out Lists, of iter.Seq2[K, *V], sum func(*V) Sum) {
	sizes := map[string]int{} // lists that grow would take twice the memory for a moment
	for key := range of {
		namespace, _ := k.key(key)
		sizes[namespace]++
	}
	for namespace, n := range sizes {
		out[Scope{k.kind, namespace}] = &List{entries: make([]Entry, 0, n)}
	}
	for key, v := range of {
		s, name := k.scope(key)
		e := Entry{Name: name, place: placeOf(name)}
		if v != nil {
			e.Sum = sum(v)
		}
		out[s].entries = append(out[s].entries, e)
	}
}

// pick takes the objects that are in buckets.
func (k kindOf[K, V]) pick(into, of *model.Changes, from Buckets) {
	if !from.of(k.kind) {
		return
	}
	for key, v := range *k.changed(of) {
		if s, name := k.scope(key); from.Has(s, name) {
			put(k.changed(into), key, v)
		}
	}
}

func put[K comparable, V any](into *map[K]*V, key K, v *V) {
	if *into == nil {
		*into = map[K]*V{}
	}
	(*into)[key] = v
}

// settle makes what came in the place of buckets of what is held the changes of it: objects that
// did not come are gone, and those that are as they were have not changed.
func (k kindOf[K, V]) settle(changes *model.Changes, c *model.Cluster, replaced Buckets) {
	ch := k.changed(changes)
	var w writer
	for key, have := range k.of(c) {
		now, came := (*ch)[key]
		s, name := k.scope(key)
		switch {
		case came && now != nil && k.sum(&w, now) == k.sum(&w, have):
			delete(*ch, key)
		case !came && replaced.Has(s, name):
			put(ch, key, nil)
		}
	}
}

// Pick returns the objects that are to be sent of changes.
func (d *Difference) Pick(ch *model.Changes) *model.Changes {
	out := &model.Changes{}
	for _, k := range kinds {
		k.pick(out, ch, d.send)
	}
	if ch.ServiceCIDRsChanged && d.send.Has(Scope{Kind: ServiceCIDRs}, "") {
		out.ServiceCIDRs, out.ServiceCIDRsChanged = ch.ServiceCIDRs, true
	}
	if ch.ReservedChanged && d.send.Has(Scope{Kind: Reserved}, "") {
		out.Reserved, out.ReservedChanged = ch.Reserved, true
	}
	return out
}

// Settle makes of what came in the place of some buckets of a cluster's objects the changes of the
// cluster.
func Settle(ch *model.Changes, c *model.Cluster, replaced Buckets) {
	for _, k := range kinds {
		k.settle(ch, c, replaced)
	}
	ch.ServiceCIDRsChanged = ch.ServiceCIDRsChanged && prefixesSum(ch.ServiceCIDRs) != prefixesSum(c.ServiceCIDRs)
	ch.ReservedChanged = ch.ReservedChanged && prefixesSum(ch.Reserved) != prefixesSum(c.Reservations)
}
