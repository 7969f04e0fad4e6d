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
const InputsGateways = model.KindPods | model.KindLocal | model.KindSettings | model.KindNodes | model.KindEgressPolicies

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

// Led is by which gateways pods leave the cluster: the fields of nodestate.State of these names.
type Led struct {
	Gateways map[nodestate.GatewayKey][]netip.Addr
	Egress   nodestate.Egress
	Probed   map[netip.Addr]bool
}

// Gateways returns who leaves by which gateways.
func Gateways(c *cluster.View) Led {
	out := Led{Gateways: map[nodestate.GatewayKey][]netip.Addr{}, Egress: nodestate.NewEgress(), Probed: map[netip.Addr]bool{}}
	if c.Settings.Egress == model.EgressDisabled {
		return out
	}
	f := finder{c: c, selected: map[chosenBy][]*model.Pod{}, policies: map[string]*policyRules{}, out: &out}
	for p := range c.Pods.Egress() {
		if p.Gateway != nil && p.Gateway.Ready && !p.HostNetwork && !p.Finished && leadsOut(c, p.Node) {
			f.gateways = append(f.gateways, p)
		}
	}
	for a, ep := range c.Local.Endpoints {
		if p := c.Pods.Get(ep.Pod); p != nil && c.Carried(a) {
			f.client(a, p, false)
		}
	}
	slices.Sort(out.Egress.Missing)
	out.Egress.Missing = slices.Compact(out.Egress.Missing)
	if !slices.ContainsFunc(f.gateways, func(g *model.Pod) bool { return slices.ContainsFunc(g.Addrs, f.isHere) }) {
		return out
	}
	for p := range clientsElsewhere(c) {
		for _, a := range p.Addrs {
			if _, own := c.Local.Endpoints[a]; !own && c.Carried(a) {
				f.client(a, p, true)
			}
		}
	}
	return out
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

// chosenBy is what decides which gateways pods may use.
type chosenBy struct{ namespace, selector, namespaces string }

// finder finds the gateways of pods.
type finder struct {
	c        *cluster.View
	gateways []*model.Pod // that are ready
	selected map[chosenBy][]*model.Pod
	policies map[string]*policyRules
	out      *Led
}

// client enters the gateways of a pod, for one of its addresses; with here those on this node
// alone.
func (f *finder) client(a netip.Addr, p *model.Pod, here bool) {
	switch e := egressOf(f.c, p); {
	case e == nil:
	case e.Policy != "":
		f.addPolicy(e.Policy, a, p, here)
	default:
		f.add(nodestate.GatewayKey{Client: a}, annotated(e), p, here)
	}
}

// of returns the gateways that the pods of a namespace may use by a choice.
func (f *finder) of(namespace string, by choice) []*model.Pod {
	key := chosenBy{namespace, by.selector, by.namespaces}
	list, known := f.selected[key]
	if !known {
		list = f.find(key)
		f.selected[key] = list
	}
	return list
}

func (f *finder) find(by chosenBy) (out []*model.Pod) {
	pods, err := selector.Parse(by.selector)
	if err != nil {
		return nil
	}
	namespaces, err := selector.Parse(by.namespaces)
	if err != nil {
		return nil
	}
	usable := map[string]bool{} // by namespace: it is selected, and grants it
	for _, g := range f.gateways {
		ns := g.Name.Namespace
		ok, known := usable[ns]
		if !known {
			selected := ns == by.namespace
			if by.namespaces != "" {
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

// candidate is a gateway that a client may use, by the address that it has of the client's family.
type candidate struct {
	addr  netip.Addr
	node  string
	suits [sha256.Size]byte
}

// candidates are the gateways that a client may use.
func (f *finder) candidates(a netip.Addr, by choice, p *model.Pod) (out []candidate) {
	for _, g := range f.of(p.Name.Namespace, by) {
		for _, at := range g.Addrs {
			if at.Is4() == a.Is4() && at != a && f.owns(g, at) {
				out = append(out, candidate{addr: at, node: g.Node})
				break
			}
		}
	}
	return out
}

// add enters the gateways of a pod, for one of its addresses, and reports whether there are any;
// with here those on this node alone.
func (f *finder) add(key nodestate.GatewayKey, by choice, p *model.Pod, here bool) bool {
	all := f.candidates(key.Client, by, p)
	elsewhere := func(g candidate) bool { return !f.isHere(g.addr) }
	if own := slices.DeleteFunc(slices.Clone(all), elsewhere); by.preferLocal && !here && len(own) > 0 {
		all = own
	}
	var list []netip.Addr
	switch {
	case here && by.preferLocal:
		// The client's node has none that it prefers, or has just lost it, when it sends here.
		list = f.here(key.Client, slices.DeleteFunc(all, func(g candidate) bool { return g.node == p.Node }), by.most)
	case here:
		list = f.here(key.Client, all, by.most)
	default:
		list = f.answering(key.Client, all, by.most)
	}
	if len(list) > 0 {
		f.out.Gateways[key] = list
	}
	return len(list) > 0
}

// answering returns the gateways that a client uses: those on nodes that are down where there are
// no others. A firewall that begins to drop what nodes are probed with must not end all.
func (f *finder) answering(client netip.Addr, all []candidate, most int) []netip.Addr {
	up := slices.DeleteFunc(slices.Clone(all), func(g candidate) bool { return !f.isHere(g.addr) && f.isDown(g.node, client) })
	if len(up) == 0 {
		up = all
	}
	return addrsOf(first(client, up, most))
}

// here returns the gateways of this node by which a client of another node leaves. Where the
// first ones are all on others, that is the first one here: it has the place of one whose node does
// not answer the client's any more.
func (f *finder) here(client netip.Addr, all []candidate, most int) []netip.Addr {
	elsewhere := func(g candidate) bool { return !f.isHere(g.addr) }
	list := slices.DeleteFunc(first(client, slices.Clone(all), most), elsewhere)
	if len(list) == 0 {
		list = first(client, slices.DeleteFunc(all, elsewhere), 1)
	}
	return addrsOf(list)
}

// isHere reports whether an address is of a pod of this node.
func (f *finder) isHere(a netip.Addr) bool {
	_, own := f.c.Local.Endpoints[a]
	return own
}

// first returns the gateways that suit a client most, so that one that comes or goes changes the
// gateways of few clients, and clients differ in them.
func first(client netip.Addr, list []candidate, most int) []candidate {
	if len(list) <= most {
		return list
	}
	for i := range list {
		list[i].suits = suits(client, list[i].addr)
	}
	slices.SortFunc(list, func(x, y candidate) int { return slices.Compare(y.suits[:], x.suits[:]) })
	return list[:most]
}

func addrsOf(list []candidate) (out []netip.Addr) {
	for _, g := range list {
		out = append(out, g.addr)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
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
	f.out.Probed[a] = f.c.Local.Down[a]
	return f.out.Probed[a]
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
