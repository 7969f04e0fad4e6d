// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/model"
)

// against is what makes pods matter to every node: whose addresses are disputed, and which Services
// may be refused something because of a pod.
type against struct {
	owners    *cluster.Ownership            // by blocks alone
	hostAddrs map[netip.Addr]struct{}       // of Nodes
	external  map[netip.Addr]int            // Services that ask for an address outside of their ranges
	endpoints map[netip.Addr]map[string]int // EndpointSlices that name an address, by the Service's namespace
	contested map[string]struct{}           // nodes at whose addresses Services ask for ports
	again     map[netip.Addr]struct{}       // claims to look at again
}

func newAgainst(c *model.Cluster) against {
	return against{owners: cluster.ByBlocks(c), hostAddrs: map[netip.Addr]struct{}{}, external: map[netip.Addr]int{}, endpoints: map[netip.Addr]map[string]int{},
		contested: map[string]struct{}{}, again: map[netip.Addr]struct{}{}}
}

// needed reports whether every node needs a pod.
func (x *Index) needed(p *model.Pod) bool {
	if p.Finished {
		return false
	}
	if _, is := x.contested[p.Node]; is && (p.HostNetwork && len(p.Ports) > 0 || service.HasHostPort(p)) {
		return true
	}
	if p.HostNetwork {
		return false
	}
	if p.Egress != nil || p.Gateway != nil || x.leaves(p.Name.Namespace) || len(p.Floating) > 0 && x.floats(p.Name.Namespace) {
		return true // the nodes of its gateways and of its clients need it
	}
	return slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool {
		return !x.owners.ByBlock(p.Node, a) || x.external[a] > 0 || x.foreign(a)
	})
}

// leaves reports whether the pods of a namespace are to leave by egress gateways.
func (x *Index) leaves(namespace string) bool {
	n := x.c.Namespaces[namespace]
	return n != nil && n.Egress != nil
}

// floats reports whether pods of a namespace may have floating addresses, which every node leads to
// them.
func (x *Index) floats(namespace string) bool {
	n := x.c.Namespaces[namespace]
	return n != nil && len(n.FloatingGrants) > 0
}

// foreign reports whether EndpointSlices name an address that a pod of another namespace claims:
// then whose it is decides whether they may.
func (x *Index) foreign(a netip.Addr) bool {
	for namespace := range x.endpoints[a] {
		for name := range x.claims[a] {
			if name.Namespace != namespace {
				return true
			}
		}
	}
	return false
}

// noteServices counts what Services and EndpointSlices name, before they are changed.
func (x *Index) noteServices(ch *model.Changes) {
	for name, now := range ch.Services {
		x.countExternal(x.c.Services[name], -1)
		x.countExternal(now, 1)
	}
	for name, now := range ch.Slices {
		if was := x.c.Slices[name]; was != nil && was.NotCarried {
			drop(x.headless, was.Service, name)
		}
		x.countEndpoints(x.c.Slices[name], -1)
		x.countEndpoints(now, 1)
	}
}

func (x *Index) countExternal(s *model.Service, by int) {
	if s == nil {
		return
	}
	for _, list := range [][]netip.Addr{s.ExternalIPs, s.LBIPs} {
		for _, a := range list {
			if x.external[a] += by; x.external[a] == 0 {
				delete(x.external, a)
			}
			x.again[a] = struct{}{}
		}
	}
}

func (x *Index) countEndpoints(s *model.EndpointSlice, by int) {
	if s == nil {
		return
	}
	namespace := s.Service.Namespace
	for i := range s.Endpoints {
		for _, a := range s.Endpoints[i].Addrs {
			of := x.endpoints[a]
			if of == nil {
				of = map[string]int{}
				x.endpoints[a] = of
			}
			if of[namespace] += by; of[namespace] == 0 {
				delete(of, namespace)
			}
			if len(of) == 0 {
				delete(x.endpoints, a)
			}
			x.again[a] = struct{}{}
		}
	}
}

// updateAgainst looks again at the pods that other changes may have made everybody's.
func (x *Index) updateAgainst(ch *model.Changes) {
	names := map[model.Name]struct{}{}
	if len(ch.Blocks)+len(ch.Pools)+len(ch.Nodes) > 0 || ch.ReservedChanged {
		x.updateOwners(ch, names)
	}
	if len(ch.Nodes)+len(ch.Services) > 0 {
		x.updateContested(names)
	}
	for a := range x.again {
		maps.Copy(names, x.claims[a])
	}
	clear(x.again)
	for name := range names {
		e := x.pods[name]
		if e == nil {
			continue
		}
		if needed := x.needed(e.pod); needed != e.everyone {
			x.setEveryone(e, needed)
			x.note(name, nil, true, true)
		}
	}
}

// updateOwners finds which blocks count, and adds the pods for whose addresses that matters.
func (x *Index) updateOwners(ch *model.Changes, names map[model.Name]struct{}) {
	before := x.owners
	x.owners = cluster.ByBlocks(x.c)
	if ch.ReservedChanged {
		for name := range x.pods {
			names[name] = struct{}{}
		}
	}
	if len(ch.Nodes) > 0 {
		now := map[netip.Addr]struct{}{}
		for _, n := range x.c.Nodes {
			for _, a := range n.Addrs {
				now[a] = struct{}{}
				if _, had := x.hostAddrs[a]; !had {
					x.again[a] = struct{}{}
				}
			}
		}
		for a := range x.hostAddrs {
			if _, has := now[a]; !has {
				x.again[a] = struct{}{}
			}
		}
		x.hostAddrs = now
	}
	before.EachChange(x.owners, func(p netip.Prefix) {
		claimed := func(a netip.Addr) bool { return x.claims[a] != nil }
		for a := range model.AddrsIn(p, len(x.claims), maps.Keys(x.claims), claimed) {
			x.again[a] = struct{}{}
		}
	})
}

// updateContested finds the nodes at whose addresses Services ask for ports, and adds the pods
// whose ports of these nodes come to matter or no longer do.
func (x *Index) updateContested(names map[model.Name]struct{}) {
	now := map[string]struct{}{}
	if len(x.external) > 0 {
		for _, n := range x.c.Nodes {
			if slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return x.external[a] > 0 }) {
				now[n.Name] = struct{}{}
			}
		}
	}
	for _, of := range []map[string]struct{}{x.contested, now} {
		for node := range of {
			_, was := x.contested[node]
			if _, is := now[node]; was != is {
				maps.Copy(names, x.on[node])
			}
		}
	}
	x.contested = now
}
