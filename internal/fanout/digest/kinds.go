// SPDX-License-Identifier: Apache-2.0

package digest

import (
	"iter"
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// kindOf is how the objects of a kind are named and written.
type kindOf[K comparable, V any] struct {
	kind  Kind
	key   func(K) (namespace, name string)
	write func(*writer, *V)
}

func byText(name string) (string, string)      { return "", name }
func byName(n model.Name) (string, string)     { return n.Namespace, n.Name }
func byPrefix(p netip.Prefix) (string, string) { return "", p.String() }
func byID(id model.PolicyID) (string, string)  { return id.Name.Namespace, id.Kind + "/" + id.Name.Name }

var (
	namespaces      = kindOf[string, model.Namespace]{Namespaces, byText, (*writer).namespace}
	pods            = kindOf[model.Name, model.Pod]{Pods, byName, (*writer).pod}
	nodes           = kindOf[string, model.Node]{Nodes, byText, (*writer).node}
	services        = kindOf[model.Name, model.Service]{Services, byName, (*writer).service}
	endpointSlices  = kindOf[model.Name, model.EndpointSlice]{Slices, byName, (*writer).slice}
	policies        = kindOf[model.PolicyID, model.Policy]{Policies, byID, (*writer).policy}
	staged          = kindOf[model.PolicyID, model.StagedPolicy]{Staged, byID, (*writer).staged}
	tiers           = kindOf[string, model.Tier]{Tiers, byText, (*writer).tier}
	networkSets     = kindOf[model.Name, model.NetworkSet]{NetworkSets, byName, (*writer).networkSet}
	serviceAccounts = kindOf[model.Name, model.ServiceAccount]{ServiceAccounts, byName, (*writer).serviceAccount}
	hostEndpoints   = kindOf[string, model.HostEndpoint]{HostEndpoints, byText, (*writer).hostEndpoint}
	pools           = kindOf[string, model.Pool]{Pools, byText, (*writer).pool}
	blocks          = kindOf[netip.Prefix, model.Block]{Blocks, byPrefix, (*writer).block}
	bgpConfigs      = kindOf[string, model.BGPConfig]{BGPConfigs, byText, (*writer).bgpConfig}
	bgpPeers        = kindOf[string, model.BGPPeer]{BGPPeers, byText, (*writer).bgpPeer}
)

func (k kindOf[K, V]) scope(key K) (Scope, string) {
	namespace, name := k.key(key)
	return Scope{k.kind, namespace}, name
}

func (k kindOf[K, V]) sum(w *writer, v *V) Sum {
	*w = (*w)[:0]
	k.write(w, v)
	return sumOf(*w)
}

// list adds objects to lists.
func (k kindOf[K, V]) list(out Lists, w *writer, of map[K]*V) {
	k.listBy(out, maps.All(of), func(v *V) Sum { return k.sum(w, v) })
}

func (k kindOf[K, V]) listBy(out Lists, of iter.Seq2[K, *V], sum func(*V) Sum) {
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
func (k kindOf[K, V]) pick(into *map[K]*V, of map[K]*V, from Buckets) {
	if !from.of(k.kind) {
		return
	}
	for key, v := range of {
		if s, name := k.scope(key); from.Has(s, name) {
			if *into == nil {
				*into = map[K]*V{}
			}
			(*into)[key] = v
		}
	}
}

// settle makes what came in the place of buckets of what is held the changes of it: objects that
// did not come are gone, and those that are as they were have not changed.
func (k kindOf[K, V]) settle(ch *map[K]*V, held iter.Seq2[K, *V], replaced Buckets) {
	var w writer
	for key, have := range held {
		now, came := (*ch)[key]
		s, name := k.scope(key)
		switch {
		case came && now != nil && k.sum(&w, now) == k.sum(&w, have):
			delete(*ch, key)
		case !came && replaced.Has(s, name):
			if *ch == nil {
				*ch = map[K]*V{}
			}
			(*ch)[key] = nil
		}
	}
}

// Pick returns the objects that are to be sent of changes.
func (d *Difference) Pick(ch *model.Changes) *model.Changes {
	out := &model.Changes{}
	namespaces.pick(&out.Namespaces, ch.Namespaces, d.send)
	pods.pick(&out.Pods, ch.Pods, d.send)
	nodes.pick(&out.Nodes, ch.Nodes, d.send)
	services.pick(&out.Services, ch.Services, d.send)
	endpointSlices.pick(&out.Slices, ch.Slices, d.send)
	policies.pick(&out.Policies, ch.Policies, d.send)
	staged.pick(&out.Staged, ch.Staged, d.send)
	tiers.pick(&out.Tiers, ch.Tiers, d.send)
	networkSets.pick(&out.NetworkSets, ch.NetworkSets, d.send)
	serviceAccounts.pick(&out.ServiceAccounts, ch.ServiceAccounts, d.send)
	hostEndpoints.pick(&out.HostEndpoints, ch.HostEndpoints, d.send)
	pools.pick(&out.Pools, ch.Pools, d.send)
	blocks.pick(&out.Blocks, ch.Blocks, d.send)
	bgpConfigs.pick(&out.BGPConfigs, ch.BGPConfigs, d.send)
	bgpPeers.pick(&out.BGPPeers, ch.BGPPeers, d.send)
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
	namespaces.settle(&ch.Namespaces, maps.All(c.Namespaces), replaced)
	pods.settle(&ch.Pods, c.Pods.Entries(), replaced)
	nodes.settle(&ch.Nodes, maps.All(c.Nodes), replaced)
	services.settle(&ch.Services, maps.All(c.Services), replaced)
	endpointSlices.settle(&ch.Slices, maps.All(c.Slices), replaced)
	policies.settle(&ch.Policies, maps.All(c.Policies), replaced)
	staged.settle(&ch.Staged, maps.All(c.Staged), replaced)
	tiers.settle(&ch.Tiers, maps.All(c.Tiers), replaced)
	networkSets.settle(&ch.NetworkSets, maps.All(c.NetworkSets), replaced)
	serviceAccounts.settle(&ch.ServiceAccounts, maps.All(c.ServiceAccounts), replaced)
	hostEndpoints.settle(&ch.HostEndpoints, maps.All(c.HostEndpoints), replaced)
	pools.settle(&ch.Pools, maps.All(c.Pools), replaced)
	blocks.settle(&ch.Blocks, maps.All(c.Blocks), replaced)
	bgpConfigs.settle(&ch.BGPConfigs, maps.All(c.BGPConfigs), replaced)
	bgpPeers.settle(&ch.BGPPeers, maps.All(c.BGPPeers), replaced)
	ch.ServiceCIDRsChanged = ch.ServiceCIDRsChanged && prefixesSum(ch.ServiceCIDRs) != prefixesSum(c.ServiceCIDRs)
	ch.ReservedChanged = ch.ReservedChanged && prefixesSum(ch.Reserved) != prefixesSum(c.Reservations)
}
