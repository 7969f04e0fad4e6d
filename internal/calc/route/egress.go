// SPDX-License-Identifier: Apache-2.0

package route

import (
	"crypto/sha256"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/selector"
)

// InputsGateways are the kinds that the gateways of pods are made from, apart from namespaces and
// single pods.
const InputsGateways = model.KindPods | model.KindLocal | model.KindSettings | model.KindNodes

// ChangesGateways reports whether something else that changed may change who leaves by gateways, or
// by which.
func ChangesGateways(c *cluster.View, dirty *model.Dirty) bool {
	if c.Settings.Egress == model.EgressDisabled {
		return false
	}
	if dirty.Has(model.KindNamespaces) {
		return true
	}
	for name, was := range dirty.Pods {
		if was != nil && (was.Egress != nil || was.Gateway != nil) {
			return true
		}
		if n := c.Namespaces[name.Namespace]; n == nil || n.Egress != nil {
			return true
		}
		now := c.Pods.Get(name)
		// A pod of this node that comes to be known was held until then.
		if now == nil || now.Egress != nil || now.Gateway != nil || was == nil && now.Node == c.Local.Node {
			return true
		}
	}
	return false
}

// egressOf returns what is said of the gateways of a pod; nil = it needs none.
func egressOf(c *cluster.View, p *model.Pod) *model.EgressClient {
	switch c.Settings.Egress {
	case model.EgressDisabled:
		return nil
	case model.EgressPerNamespaceOrPerPod:
		if p.Egress != nil {
			return p.Egress
		}
	}
	if n := c.Namespaces[p.Name.Namespace]; n != nil {
		return n.Egress
	}
	return nil
}

// mustLeaveByGateway reports whether nothing that a pod of this node sends may leave the cluster
// but by a gateway: also while the pod, or its namespace, is not known yet.
func mustLeaveByGateway(c *cluster.View, name model.Name) bool {
	if c.Settings.Egress == model.EgressDisabled {
		return false
	}
	p := c.Pods.Get(name)
	return p == nil || c.Namespaces[name.Namespace] == nil || egressOf(c, p) != nil
}

// Gateways returns State.Gateways and State.Probed of package nodestate.
func Gateways(c *cluster.View) (out map[netip.Addr][]netip.Addr, probed map[netip.Addr]bool) {
	out, probed = map[netip.Addr][]netip.Addr{}, map[netip.Addr]bool{}
	if c.Settings.Egress == model.EgressDisabled {
		return out, probed
	}
	f := finder{c: c, selected: map[chosenBy][]*model.Pod{}, probed: probed}
	for p := range c.Pods.Egress() {
		if p.Gateway != nil && p.Gateway.Ready && !p.HostNetwork && !p.Finished && leadsOut(c, p.Node) {
			f.gateways = append(f.gateways, p)
		}
	}
	if len(f.gateways) == 0 {
		return out, probed
	}
	for a, ep := range c.Local.Endpoints {
		if p := c.Pods.Get(ep.Pod); p != nil && c.Carried(a) {
			f.add(out, a, p, false)
		}
	}
	for p := range clientsElsewhere(c) {
		for _, a := range p.Addrs {
			if _, own := c.Local.Endpoints[a]; !own && c.Carried(a) {
				f.add(out, a, p, true)
			}
		}
	}
	return out, probed
}

// leadsOut reports whether a node leads pods out by the gateways on it. What is sent to one that
// does not would be routed on there with the client's own address.
func leadsOut(c *cluster.View, node string) bool {
	if node == c.Local.Node {
		return true
	}
	n := c.Nodes[node]
	return n != nil && n.Gateways
}

// clientsElsewhere yields the pods of other nodes that may be clients of gateways.
func clientsElsewhere(c *cluster.View) func(func(*model.Pod) bool) {
	return func(yield func(*model.Pod) bool) {
		use := func(p *model.Pod) bool {
			return p.Node == c.Local.Node || p.HostNetwork || p.Finished || yield(p)
		}
		for p := range c.Pods.Egress() {
			if p.Egress != nil && !use(p) {
				return
			}
		}
		for ns, groups := range c.Pods.GroupsByNamespace() {
			if n := c.Namespaces[ns]; n == nil || n.Egress == nil {
				continue
			}
			for g := range groups {
				for r := range g.Refs() {
					if p := r.Pod(); p.Egress == nil && !use(p) {
						return
					}
				}
			}
		}
	}
}

// chosenBy is what decides on a pod's gateways.
type chosenBy struct {
	namespace string
	model.EgressClient
}

// finder finds the gateways of pods.
type finder struct {
	c        *cluster.View
	gateways []*model.Pod // that are ready
	selected map[chosenBy][]*model.Pod
	probed   map[netip.Addr]bool // State.Probed
}

func (f *finder) of(p *model.Pod) []*model.Pod {
	e := egressOf(f.c, p)
	if e == nil {
		return nil
	}
	by := chosenBy{p.Name.Namespace, *e}
	list, known := f.selected[by]
	if !known {
		list = f.find(by)
		f.selected[by] = list
	}
	return list
}

func (f *finder) find(by chosenBy) (out []*model.Pod) {
	if by.Policy != "" {
		return nil
	}
	pods, err := selector.Parse(by.Selector)
	if err != nil {
		return nil
	}
	namespaces, err := selector.Parse(by.EgressClient.Namespaces)
	if err != nil {
		return nil
	}
	usable := map[string]bool{} // by namespace: it is selected, and grants it
	for _, g := range f.gateways {
		ns := g.Name.Namespace
		ok, known := usable[ns]
		if !known {
			selected := ns == by.namespace
			if by.EgressClient.Namespaces != "" {
				selected = namespaces.MatchesFunc(peer.NamespaceLabels(f.c, ns))
			}
			ok = selected && f.grants(ns, by.namespace)
			usable[ns] = ok
		}
		if ok && pods.MatchesFunc(gatewayLabels(g)) {
			out = append(out, g)
		}
	}
	return out
}

// grants reports whether the pods of a namespace may leave by the gateways of another one.
func (f *finder) grants(of, to string) bool {
	n := f.c.Namespaces[of]
	if n == nil || n.EgressClients == "" || f.c.Namespaces[to] == nil {
		return false
	}
	s, err := selector.Parse(n.EgressClients)
	return err == nil && s.MatchesFunc(peer.NamespaceLabels(f.c, to))
}

func gatewayLabels(p *model.Pod) peer.Labels {
	return func(key string) (string, bool) {
		if key == model.LabelNamespace {
			return p.Name.Namespace, true
		}
		v, ok := p.Gateway.Labels[key]
		return v, ok
	}
}

// add enters the gateways of a pod, for one of its addresses; with here those on this node alone.
// Those on nodes that are down count where there are no others: a firewall that begins to drop
// what nodes are probed with must not end all.
func (f *finder) add(out map[netip.Addr][]netip.Addr, a netip.Addr, p *model.Pod, here bool) {
	var list, down []netip.Addr
	for _, g := range f.of(p) {
		for _, at := range g.Addrs {
			if at.Is4() != a.Is4() || at == a || !f.owns(g, at) {
				continue
			}
			_, own := f.c.Local.Endpoints[at]
			switch {
			case here && !own:
			case !own && f.isDown(g.Node, a):
				down = append(down, at)
			default:
				list = append(list, at)
			}
			break
		}
	}
	if len(list) == 0 {
		list = down
	}
	if len(list) > nodestate.GatewaysMost {
		// Those that suit the client's address most, so that one that goes moves few.
		slices.SortFunc(list, func(x, y netip.Addr) int {
			i, j := suits(a, x), suits(a, y)
			return slices.Compare(j[:], i[:])
		})
		list = list[:nodestate.GatewaysMost]
	}
	if slices.SortFunc(list, netip.Addr.Compare); len(list) > 0 {
		out[a] = list
	}
}

// isDown reports whether a node is taken as down, which it is probed for from now on.
func (f *finder) isDown(node string, like netip.Addr) bool {
	n := f.c.Nodes[node]
	if n == nil {
		return false
	}
	a := n.AddrLike(like)
	if !a.IsValid() {
		a = n.NodeAddr() // that of IPv4, to which what is sent to it goes
	}
	if !a.IsValid() {
		return false
	}
	f.probed[a] = f.c.Local.Down[a]
	return f.probed[a]
}

func suits(client, gateway netip.Addr) [sha256.Size]byte {
	return sha256.Sum256(append(client.AsSlice(), gateway.AsSlice()...))
}

// owns reports whether an address is where the gateway is: a node that says of its pods that they
// have addresses of others gets no packets by it.
func (f *finder) owns(g *model.Pod, a netip.Addr) bool {
	if ep, here := f.c.Local.Endpoints[a]; here {
		return ep.Pod == g.Name
	}
	if node, held := f.c.Owners.ByAddr.Lookup(a); held && node == g.Node {
		return true
	}
	return f.c.Owners.Pods[a] == g.Name
}
