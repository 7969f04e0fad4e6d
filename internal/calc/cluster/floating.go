// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
)

// FloatingIP is whom packets to a floating address are for.
type FloatingIP struct {
	Pod  model.Name
	Node string
	To   netip.Addr // an address that is the pod's own
}

// Floating are the floating addresses that count, and why pods of this node do not have others that
// they ask for. Nil is none.
type Floating struct {
	By      map[netip.Addr]FloatingIP
	refused []Refusal
}

// InputsFloating are the kinds that it is made from, apart from single pods and Services.
const InputsFloating = model.KindPods | model.KindLocal | model.KindSettings | model.KindNamespaces | model.KindPools | model.KindBlocks | model.KindNodes | model.KindReservations | model.KindServiceCIDRs | model.KindServices

// ChangesFloating reports whether a change of single objects may change who has which floating
// address: of pods, which are given as they were, one that asks or did, and of Services any, as
// long as there are such addresses.
func ChangesFloating(c *View, f *Floating, dirty *model.Dirty) bool {
	if len(dirty.Services) > 0 && f.any() {
		return true
	}
	for name, was := range dirty.Pods {
		if was != nil && len(was.Floating) > 0 || len(c.Pods.Floating(name)) > 0 {
			return true
		}
	}
	return false
}

func (f *Floating) any() bool { return f != nil && len(f.By)+len(f.refused) > 0 }

// Same reports whether the same addresses count for the same pods.
func (f *Floating) Same(o *Floating) bool {
	var a, b map[netip.Addr]FloatingIP
	if f != nil {
		a = f.By
	}
	if o != nil {
		b = o.By
	}
	return maps.Equal(a, b)
}

// Refusals returns why pods of this node do not have addresses that they ask for.
func (f *Floating) Refusals() []Refusal {
	if f == nil {
		return nil
	}
	return f.refused
}

// floatingClaims decides who has which address.
type floatingClaims struct {
	c     *View
	pools *Prefixes[*model.Pool]
	taken map[netip.Addr]string // what nodes and API servers have
	// services are the addresses that Services ask for, by when the oldest was made. Who makes one
	// later takes no address from a pod.
	services map[netip.Addr]int64
	local    map[model.Name][]netip.Addr // addresses of this node's pods
}

// FloatingOf decides who has which floating address: of the pods that ask, whose namespaces grant
// it, and that have an address of its family, the oldest. It lies in a pool and is nobody else's:
// no node's, Service's or pod's, nor in a block, from which a pod may get it, unless an
// IPReservation keeps it from pods.
func FloatingOf(c *View) *Floating {
	pods := slices.SortedFunc(c.Pods.FloatingPods(), func(a, b *model.Pod) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.UID, b.UID), table.CompareNames(a.Name, b.Name))
	})
	if len(pods) == 0 {
		return nil
	}
	x := floatingClaims{c: c, pools: PoolIndex(c), taken: takenAddrs(c), services: serviceAddrs(c), local: map[model.Name][]netip.Addr{}}
	for a, ep := range c.Local.Endpoints {
		x.local[ep.Pod] = append(x.local[ep.Pod], a)
	}
	out := &Floating{By: map[netip.Addr]FloatingIP{}}
	for _, p := range pods {
		for _, a := range p.Floating {
			to, why := x.claim(p, a)
			if have, has := out.By[a]; why == "" && has {
				why = "pod " + have.Pod.String() + ", which is older, has it"
			}
			if why == "" {
				out.By[a] = FloatingIP{Pod: p.Name, Node: p.Node, To: to}
			} else if p.Node == c.Local.Node && p.Node != "" {
				out.refused = append(out.refused, Refusal{Object: "Pod " + p.Name.String(), Field: model.AnnotationFloating, Value: a.String(), Why: why, Node: p.Node})
			}
		}
	}
	return out
}

// claim returns the own address of a pod to which a floating one leads, or why it leads nowhere.
func (x *floatingClaims) claim(p *model.Pod, a netip.Addr) (to netip.Addr, why string) {
	c := x.c
	if why := WhyNotFloating(&c.Settings, c.Namespaces[p.Name.Namespace], p.Name.Namespace, a); why != "" {
		return to, why
	}
	pool, _ := x.pools.Lookup(a)
	_, inBlock := c.Owners.ByAddr.Lookup(a)
	switch {
	case p.HostNetwork || p.Finished || p.Node == "":
		return to, "the pod has no network of its own"
	case !c.Carried(a):
		return to, "the node carries no IPv6"
	case x.taken[a] != "":
		return to, x.taken[a] + " has it"
	case x.services[a] != 0 && x.services[a] <= max(p.Created, 1):
		return to, "a Service, which is older, has it"
	case pool == nil || !pool.Workload || pool.Deleted != 0 || c.Covered != nil && c.Covered.Forbids(netip.PrefixFrom(a, a.BitLen())):
		return to, "no IPPool for pods has it"
	case ofService(c.Cluster, a):
		return to, "it is in a range of cluster IPs"
	case inBlock && !model.Within(c.Reservations, a):
		return to, "pods may get it: it is in a block of a node, and no IPReservation has it"
	}
	if owner, is := c.Owners.Pods[a]; is {
		return to, "it is the address of pod " + owner.String()
	}
	if ep := c.Local.Endpoints[a]; ep != nil {
		return to, "it is the address of pod " + ep.Pod.String()
	}
	if to = x.own(p, a); !to.IsValid() {
		return to, "the pod has no address of its family"
	}
	return to, ""
}

// own is the pod's address in the family of another: here that of its interface, which the API
// shows late, elsewhere one that its node's claims make its own.
func (x *floatingClaims) own(p *model.Pod, like netip.Addr) netip.Addr {
	all := x.local[p.Name]
	if p.Node != x.c.Local.Node {
		all = slices.DeleteFunc(slices.Clone(p.Addrs), func(a netip.Addr) bool {
			name, is := x.c.Owners.Pods[a]
			return !x.c.Owners.ByBlock(p.Node, a) && !(is && name == p.Name)
		})
	}
	var out netip.Addr
	for _, a := range all {
		if a.Is4() == like.Is4() && x.c.Carried(a) && (!out.IsValid() || a.Less(out)) {
			out = a
		}
	}
	return out
}

// WhyNotFloating says why pods of a namespace, which may not be known, do not have a floating
// address, whatever else has it; "" = the settings and the namespace let them.
func WhyNotFloating(s *model.Settings, n *model.Namespace, namespace string, a netip.Addr) string {
	switch {
	case s.Chained:
		return "another CNI plugin connects the pod"
	case !s.FloatingIPs:
		return "floatingIPs is not Enabled"
	case !n.GrantsFloating(a):
		return "the annotation " + model.AnnotationFloatingGrants + " of namespace " + namespace + " does not grant it"
	}
	return ""
}

func serviceAddrs(c *View) map[netip.Addr]int64 {
	out := map[netip.Addr]int64{}
	for _, s := range c.Services {
		for _, list := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LBIPs} {
			for _, a := range list {
				if made := max(s.Created, 1); out[a] == 0 || made < out[a] {
					out[a] = made
				}
			}
		}
	}
	return out
}

// takenAddrs are the addresses that nodes, and what is around them, have.
func takenAddrs(c *View) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, a := range c.Local.Gateways {
		out[a] = "a gateway of node " + c.Local.Node
	}
	for _, at := range c.Local.APIServers {
		out[at.Addr().Unmap()] = "an API server"
	}
	if sl := APIServersOf(c.Cluster); sl != nil {
		for _, e := range sl.Endpoints {
			for _, a := range e.Addrs {
				out[a] = "an API server"
			}
		}
	}
	for _, n := range c.Nodes {
		for _, a := range n.Addrs {
			out[a] = "node " + n.Name
		}
	}
	for _, a := range c.Local.HostAddrs {
		out[a] = "node " + c.Local.Node
	}
	return out
}
