// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// Node is one node's part of an Index.
type Node struct {
	x         *Index
	name      string
	slot      int
	endpoints map[netip.Addr]model.Name
	// pods are those of the node, by the API or by an endpoint, with the policies that select them
	// now or would with the staged ones in force.
	pods map[model.Name]*bound
	in   map[string]locals // the same by namespace
	// hosts are the policies of its host endpoints.
	hosts    []*model.Policy
	policies map[*model.Policy]int // how many pods, or host endpoints, have them
	groups   slotSet               // that these policies' rules can be about
	services map[model.Name]int
	sets     map[string]*setUse      // expressions about network sets
	has      map[model.Name]struct{} // network sets that were taken

	stale   map[model.Name]struct{} // pods whose policies are to be found again
	pending model.Changes           // keys of what changed since the last Take
	whole   bool                    // nothing was taken yet
}

// locals are pods of one node and namespace.
type locals map[model.Name]*bound

// bound is one of a node's pods.
type bound struct {
	entry    *entry // nil: the pod is not known
	policies []*model.Policy
}

// setUse is an expression about network sets, and how many policies have it.
type setUse struct {
	expr  *selector.Selector
	users int
}

// Add begins to follow the part of a node. Of one name there is one at a time.
func (x *Index) Add(node string) *Node {
	n := &Node{x: x, name: node, slot: slices.Index(x.nodes, nil), endpoints: map[netip.Addr]model.Name{}, pods: map[model.Name]*bound{},
		in: map[string]locals{}, policies: map[*model.Policy]int{}, services: map[model.Name]int{},
		sets: map[string]*setUse{}, has: map[model.Name]struct{}{}, stale: map[model.Name]struct{}{}, whole: true}
	if n.slot < 0 {
		n.slot = len(x.nodes)
		x.nodes = append(x.nodes, nil)
	}
	x.nodes[n.slot] = n
	x.byName[node] = n
	for name := range x.on[node] {
		n.bind(name)
	}
	n.bindHosts()
	return n
}

// Remove ends it. Nobody takes anything of the node any more.
func (x *Index) Remove(n *Node) {
	for a, name := range n.endpoints {
		drop(x.holding, a, n)
		drop(x.holders, name, n)
	}
	for namespace := range n.in {
		drop(x.localsIn, namespace, n)
	}
	for p := range n.policies {
		for _, q := range x.asks[p].questions {
			q.nodes.remove(n.slot)
		}
	}
	delete(x.byName, n.name)
	x.nodes[n.slot] = nil
}

// all yields the nodes.
func (x *Index) all() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for _, n := range x.nodes {
			if n != nil && !yield(n) {
				return
			}
		}
	}
}

// SetEndpoints says whose interfaces the node has, by address: they may be there before the API
// places the pod on the node, and for longer.
func (n *Node) SetEndpoints(now map[netip.Addr]model.Name) {
	names := map[model.Name]struct{}{}
	change := func(a netip.Addr, name model.Name) {
		names[name] = struct{}{}
		markPods(n, n.x.claims[a])
	}
	for a, name := range n.endpoints {
		if now[a] != name {
			change(a, name)
			drop(n.x.holding, a, n)
		}
	}
	for a, name := range now {
		if n.endpoints[a] != name {
			change(a, name)
		}
		put(n.x.holding, a, n)
		names[name] = struct{}{}
	}
	for _, name := range n.endpoints {
		drop(n.x.holders, name, n)
	}
	n.endpoints = now
	for _, name := range now {
		put(n.x.holders, name, n)
	}
	for name := range names {
		n.bind(name)
	}
}

// bindLater has the policies of a pod found again at the end of an update.
func (n *Node) bindLater(name model.Name) { n.stale[name] = struct{}{} }

// bind finds the policies of one of the node's pods, or forgets a pod that is not the node's.
func (n *Node) bind(name model.Name) {
	x := n.x
	b, had := n.pods[name]
	_, held := x.holders[name][n]
	e := x.pods[name]
	if has := held || e != nil && e.pod.Node == n.name && x.byName[n.name] == n; !has {
		if had {
			delete(n.pods, name)
			if delete(n.in[name.Namespace], name); len(n.in[name.Namespace]) == 0 {
				delete(n.in, name.Namespace)
				drop(x.localsIn, name.Namespace, n)
			}
			n.swap(b.policies, nil)
			markPods(n, map[model.Name]struct{}{name: {}})
		}
		return
	}
	var pod *model.Pod
	if e != nil {
		pod = e.pod
	}
	list, _ := x.inForce.OfPod(x.view, name, pod)
	if x.would != x.inForce {
		would, _ := x.would.OfPod(x.view, name, pod)
		for _, p := range would {
			if !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	if !had {
		b = &bound{}
		n.pods[name] = b
		if n.in[name.Namespace] == nil {
			n.in[name.Namespace] = locals{}
			if x.localsIn[name.Namespace] == nil {
				x.localsIn[name.Namespace] = map[*Node]locals{}
			}
			x.localsIn[name.Namespace][n] = n.in[name.Namespace]
		}
		n.in[name.Namespace][name] = b
		markPods(n, map[model.Name]struct{}{name: {}})
	}
	was := b.policies
	b.entry, b.policies = e, list
	n.swap(was, list)
}

// bindHosts finds the policies of the node's host endpoints.
func (n *Node) bindHosts() {
	var list []*model.Policy
	for _, h := range n.x.c.HostEndpoints {
		if h.Node == n.name {
			list = append(list, n.x.inForce.OfHost(n.x.view, h)...)
			list = append(list, n.x.would.OfHost(n.x.view, h)...)
		}
	}
	was := n.hosts
	n.hosts = list
	n.swap(was, list)
}

// swap makes the node have some policies in the place of others.
func (n *Node) swap(was, now []*model.Policy) {
	for _, p := range now {
		if n.policies[p]++; n.policies[p] == 1 {
			n.take(p)
		}
	}
	for _, p := range was {
		if n.policies[p]--; n.policies[p] == 0 {
			delete(n.policies, p)
			n.forget(p)
		}
	}
}

// take adds what a policy asks to the node's part.
func (n *Node) take(p *model.Policy) {
	a := n.x.asks[p]
	n.notePolicy(p)
	for _, q := range a.questions {
		if q.nodes.has(n.slot) {
			continue
		}
		q.nodes.add(n.slot)
		if !n.whole {
			for slot := range q.groups.less(n.groups) {
				markPods(n, n.x.groupAt[slot].pods)
			}
		}
		n.groups.merge(q.groups)
		n.useSets(q.text, q.expr, 1)
	}
	for text, expr := range a.own {
		n.useSets("own "+text, expr, 1)
	}
	for s := range a.services {
		if n.services[s]++; n.services[s] == 1 {
			n.noteHeadless(s)
		}
	}
}

// forget takes it away again.
func (n *Node) forget(p *model.Policy) {
	a := n.x.asks[p]
	n.notePolicy(p)
	for _, q := range a.questions {
		if slices.ContainsFunc(q.by, func(o *model.Policy) bool { return n.policies[o] > 0 }) {
			continue
		}
		q.nodes.remove(n.slot)
		for slot := range q.groups.all() {
			if g := n.x.groupAt[slot]; !g.asked(n.slot) {
				n.groups.remove(slot)
				markPods(n, g.pods)
			}
		}
		n.useSets(q.text, q.expr, -1)
	}
	for text, expr := range a.own {
		n.useSets("own "+text, expr, -1)
	}
	for s := range a.services {
		if n.services[s]--; n.services[s] == 0 {
			delete(n.services, s)
			n.noteHeadless(s)
		}
	}
}

// notePolicy marks a policy that comes or goes, with what stages another in its place.
func (n *Node) notePolicy(p *model.Policy) {
	id := p.ID()
	if model.KindInForce(p.Kind) != p.Kind {
		markKey(&n.pending.Staged, id)
		return
	}
	markKey(&n.pending.Policies, id)
	mark(&n.pending.Staged, n.x.replacing[id])
}

func (n *Node) noteHeadless(service model.Name) {
	mark(&n.pending.Slices, n.x.headless[service])
}

// useSets counts the users of an expression about network sets.
func (n *Node) useSets(text string, expr *selector.Selector, by int) {
	if expr == nil {
		return
	}
	u := n.sets[text]
	if u == nil {
		u = &setUse{expr: expr}
		n.sets[text] = u
	}
	if u.users += by; u.users == 0 {
		delete(n.sets, text)
	}
	mark(&n.pending.NetworkSets, n.x.c.NetworkSets)
}

// rebind finds again the policies of pods and host endpoints that a change may concern. Where
// policies alone have changed these alone are looked at.
func (x *Index) rebind(ch *model.Changes, namespaces map[string]struct{}, swapped []swap, gone []*model.Policy) {
	in := map[string]struct{}{}
	everywhere, hosts := len(ch.Tiers) > 0, len(ch.Tiers)+len(ch.HostEndpoints) > 0
	of := func(p *model.Policy) {
		if model.KindInForce(p.Kind) == model.KindGlobalNetworkPolicy {
			hosts = true
		}
		switch ns := p.Subject.Namespace; {
		case subject.ForHostsOnly(p):
		case ns != "":
			in[ns] = struct{}{}
		default:
			everywhere = true
		}
	}
	adjust := len(x.c.Staged)+len(ch.Staged)+len(ch.Tiers) == 0
	for _, s := range swapped {
		for _, p := range []*model.Policy{s.was, s.now} {
			switch {
			case p == nil:
			case !adjust:
				of(p)
			case model.KindInForce(p.Kind) == model.KindGlobalNetworkPolicy:
				hosts = true
			}
		}
	}
	if !adjust {
		for _, p := range gone {
			of(p)
		}
	}
	for id := range ch.Staged {
		if s := x.c.Staged[id]; s != nil {
			of(&s.Policy)
		}
	}
	for name := range namespaces {
		in[name] = struct{}{}
	}
	for name := range ch.ServiceAccounts {
		in[name.Namespace] = struct{}{}
	}
	for ns := range in {
		for n, pods := range x.localsIn[ns] {
			for name := range pods {
				n.bindLater(name)
			}
		}
	}
	if adjust {
		x.adjust(swapped)
	}
	for n := range x.all() {
		if everywhere {
			for name := range n.pods {
				n.bindLater(name)
			}
		}
		for name := range n.stale {
			n.bind(name)
		}
		clear(n.stale)
		if hosts {
			n.bindHosts()
		}
	}
}

// Take returns what changed of the node's part since the last call, and all of it the first time,
// unless that was Snapshot.
func (n *Node) Take() *model.Changes {
	if n.whole {
		return n.all()
	}
	c, p := n.x.c, n.pending
	n.pending = model.Changes{}
	fill(p.Namespaces, c.Namespaces)
	fill(p.Nodes, c.Nodes)
	fill(p.Services, c.Services)
	fill(p.Tiers, c.Tiers)
	fill(p.HostEndpoints, c.HostEndpoints)
	fill(p.Pools, c.Pools)
	fill(p.Blocks, c.Blocks)
	fill(p.BGPConfigs, c.BGPConfigs)
	fill(p.BGPPeers, c.BGPPeers)
	fill(p.BGPFilters, c.BGPFilters)
	fill(p.EgressPolicies, c.EgressPolicies)
	if p.ServiceCIDRsChanged {
		p.ServiceCIDRs = c.ServiceCIDRs
	}
	if p.ReservedChanged {
		p.Reserved = c.Reservations
	}
	if n.x.accounts > 0 {
		fill(p.ServiceAccounts, c.ServiceAccounts)
	}
	for name := range p.Pods {
		p.Pods[name] = n.pod(name)
	}
	n.fillOwn(&p)
	return &p
}

// Pending reports whether Take has something to return.
func (n *Node) Pending() bool { return n.whole || !n.pending.Empty() }

// all returns the whole of the node's part.
func (n *Node) all() *model.Changes {
	parts, own := n.Snapshot()
	c := model.NewCluster()
	for _, p := range parts {
		p.changes.Apply(c)
	}
	own.Apply(c)
	return c.Everything()
}

// fillOwn looks up what became of objects of which each node has its own.
func (n *Node) fillOwn(p *model.Changes) {
	c := n.x.c
	for id := range p.Policies {
		if v := c.Policies[id]; v != nil && n.policies[v] > 0 {
			p.Policies[id] = v
		}
	}
	for id := range p.Staged {
		if s := c.Staged[id]; s != nil && (n.policies[&s.Policy] > 0 || n.policies[c.Policies[s.Replaces()]] > 0) {
			p.Staged[id] = s
		}
	}
	for name := range p.Slices {
		if sl := c.Slices[name]; sl != nil && (n.x.ofEverybody(name) || n.services[sl.Service] > 0) {
			p.Slices[name] = sl
		}
	}
	for name := range p.NetworkSets {
		_, had := n.has[name]
		switch s := c.NetworkSets[name]; {
		case s != nil && n.picks(s):
			p.NetworkSets[name], n.has[name] = s, struct{}{}
		case had:
			delete(n.has, name)
		default:
			delete(p.NetworkSets, name)
		}
	}
}

// fill looks up what became of the objects of some keys.
func fill[K comparable, V any](into, from map[K]*V) {
	for k := range into {
		into[k] = from[k]
	}
}

// pod returns a pod as the node is to see it, nil where it is not in its part.
func (n *Node) pod(name model.Name) *model.Pod {
	e := n.x.pods[name]
	if e == nil {
		return nil
	}
	if _, own := n.pods[name]; own {
		return e.pod
	}
	if e.everyone || e.group != nil && n.groups.has(e.group.slot) {
		return e.peer
	}
	if !e.pod.HostNetwork && !e.pod.Finished && slices.ContainsFunc(e.pod.Addrs, func(a netip.Addr) bool { _, held := n.endpoints[a]; return held }) {
		return e.peer
	}
	return nil
}

// picks reports whether one of the node's rules may be about a network set.
func (n *Node) picks(s *model.NetworkSet) bool {
	labels := peer.SetLabels(n.x.view, s)
	for _, u := range n.sets {
		if u.expr.MatchesFunc(labels) {
			return true
		}
	}
	return false
}
