// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
)

// Index follows a cluster, and knows of each node that asks which part of it is the node's. It is
// for one goroutine.
type Index struct {
	c       *model.Cluster
	view    *cluster.View // of it, to evaluate selectors
	inForce *subject.Index
	would   *subject.Index // with the staged policies in force
	shared  model.Shared

	asks map[*model.Policy]*asks // of the policies of the cluster, and the staged ones
	// accounts are how many of them look at labels of service accounts, now and before this update.
	accounts, accountsWere int

	keys      map[string]int // labels of other pods at which they look
	rekeyed   bool           // in this update these became others
	replacing map[model.PolicyID]map[model.PolicyID]struct{}

	questions   map[string]*question
	exact       map[string]map[*question]struct{} // those about one namespace
	wide        map[*question]struct{}            // the others
	asking      map[string]map[*question]struct{} // those that can be about the pods of a namespace; see askedIn
	groups      map[string]*group
	groupAt     []*group // by slot; nil where none is
	freeGroups  []int    // these slots
	lastGroup   int      // the number that a group got last
	byNamespace map[string]map[*group]struct{}

	pods   map[model.Name]*entry
	claims map[netip.Addr]map[model.Name]struct{} // the pods that claim an address, rightly or not
	on     map[string]map[model.Name]struct{}     // pods by the nodes that the API places them on
	against
	everyones       map[model.Name]struct{} // pods that every node needs
	parts           parts
	accountsChanged bool // whether rules look at labels of service accounts, in this update

	nodes    []*Node // by slot; nil where none is
	byName   map[string]*Node
	holders  map[model.Name]map[*Node]struct{} // nodes that have an endpoint of a pod
	holding  map[netip.Addr]map[*Node]struct{} // or of an address
	localsIn map[string]map[*Node]locals       // nodes with pods of a namespace, which are these
	headless map[model.Name]map[model.Name]struct{}
}

// entry is a pod as the index knows it.
type entry struct {
	pod   *model.Pod
	peer  *model.Pod // as others see it
	group *group     // nil: it is nobody's peer
	// everyone says that each node needs it: more than the block of its node decides on what its
	// address is, or Services may be refused something because of it.
	everyone bool
}

// NewIndex returns the index of an empty cluster.
func NewIndex() *Index {
	x := &Index{
		c: model.NewCluster(), asks: map[*model.Policy]*asks{}, keys: map[string]int{}, replacing: map[model.PolicyID]map[model.PolicyID]struct{}{},
		questions: map[string]*question{}, exact: map[string]map[*question]struct{}{}, wide: map[*question]struct{}{}, asking: map[string]map[*question]struct{}{},
		groups: map[string]*group{}, byNamespace: map[string]map[*group]struct{}{},
		pods: map[model.Name]*entry{}, claims: map[netip.Addr]map[model.Name]struct{}{}, on: map[string]map[model.Name]struct{}{},
		byName: map[string]*Node{}, holders: map[model.Name]map[*Node]struct{}{}, holding: map[netip.Addr]map[*Node]struct{}{},
		localsIn: map[string]map[*Node]locals{}, headless: map[model.Name]map[model.Name]struct{}{},
	}
	x.c.Pods = nil // the index has them by itself
	x.view = &cluster.View{Cluster: x.c}
	x.inForce = subject.NewIndex(nil, nil)
	x.would = x.inForce
	x.against, x.everyones, x.parts = newAgainst(x.c), map[model.Name]struct{}{}, newParts()
	return x
}

// Of returns the view of the node c.Local.Node. Of what the machine itself says, Local, it looks at
// the endpoints alone. Values are shared with the cluster.
func Of(c *model.Cluster) *model.Cluster {
	x := NewIndex()
	x.Update(c.Everything())
	n := x.Add(c.Local.Node)
	n.SetEndpoints(EndpointsOf(&c.Local))
	out := model.NewCluster()
	n.Take().Apply(out)
	out.Settings, out.Local = c.Settings, c.Local
	return out
}

// EndpointsOf returns whose endpoints a machine has, by address.
func EndpointsOf(l *model.Local) map[netip.Addr]model.Name {
	out := make(map[netip.Addr]model.Name, len(l.Endpoints))
	for a, ep := range l.Endpoints {
		out[a] = ep.Pod
	}
	return out
}

// Update takes over what changed of the cluster.
func (x *Index) Update(ch *model.Changes) {
	x.noteServices(ch)
	swapped, gone := x.askAnew(ch)
	moved := x.movedPods(ch)
	relabelled, everybodys := x.relabelled(ch), x.carried(ch)
	x.markOthers(ch)
	ch.Apply(x.c)
	x.markOthers(ch)
	x.broadcast(ch, everybodys)
	x.forget(ch, everybodys)
	for name, now := range ch.Slices {
		if now != nil && now.NotCarried {
			put(x.headless, now.Service, name)
		}
	}
	for _, s := range swapped {
		x.inForce.Replace(s.was, s.now)
	}
	if len(ch.Policies)+len(ch.Staged) > 0 {
		x.would = x.inForce
		if len(x.c.Staged) > 0 {
			x.would = subject.NewIndex(subject.WithStaged(x.c.Policies, x.c.Staged), x.would)
		}
	}
	x.relabel(relabelled, ch.ServiceAccounts)
	for name := range moved {
		now, changed := ch.Pods[name]
		if !changed {
			now = x.pods[name].pod
		}
		x.put(name, now)
	}
	x.updateAgainst(ch)
	x.rebind(ch, relabelled, swapped, gone)
	for _, p := range gone {
		x.release(p)
	}
}

// swap is a policy that takes the place of another one; either may be nil.
type swap struct{ was, now *model.Policy }

// askAnew reads the policies that come, and returns those that are in force with what they take the
// place of, and all that go, staged ones too: what these ask is released when no node has them any
// more.
func (x *Index) askAnew(ch *model.Changes) (swapped []swap, gone []*model.Policy) {
	x.rekeyed, x.accountsWere = false, x.accounts
	take := func(was, now *model.Policy) {
		if now != nil {
			a := x.asksOf(now)
			x.asks[now] = a
			x.count(a, 1)
		}
		if was != nil {
			x.count(x.asks[was], -1)
			gone = append(gone, was)
		}
	}
	for id, now := range ch.Policies {
		if was := x.c.Policies[id]; was != now {
			take(was, now)
			swapped = append(swapped, swap{was, now})
		}
	}
	for id, now := range ch.Staged {
		var before, after *model.Policy
		if was := x.c.Staged[id]; was != nil {
			before = &was.Policy
			drop(x.replacing, was.Replaces(), id)
		}
		if now != nil {
			after = &now.Policy
			put(x.replacing, now.Replaces(), id)
		}
		if before != after {
			take(before, after)
		}
	}
	return swapped, gone
}

// count adds what a policy looks at, or takes it off.
func (x *Index) count(a *asks, by int) {
	for key := range a.keys {
		x.keys[key] += by
		switch x.keys[key] {
		case 0:
			delete(x.keys, key)
			x.rekeyed = true
		case by:
			x.rekeyed = true
		}
	}
	if !a.accounts {
		return
	}
	before := x.accounts > 0
	if x.accounts += by; before != (x.accounts > 0) {
		x.accountsChanged = true
		for n := range x.all() {
			mark(&n.pending.ServiceAccounts, x.c.ServiceAccounts)
		}
	}
}

// movedPods returns the pods that others may see otherwise: those that changed or, when rules look
// at other labels than before, all.
func (x *Index) movedPods(ch *model.Changes) map[model.Name]struct{} {
	out := make(map[model.Name]struct{}, len(ch.Pods))
	for name := range ch.Pods {
		out[name] = struct{}{}
	}
	for namespace, now := range ch.Namespaces { // its pods come to be every node's, or are so no more
		if x.leaves(namespace) != (now != nil && now.Egress != nil) || x.floats(namespace) != (now != nil && len(now.FloatingGrants) > 0) {
			for name := range x.pods {
				if name.Namespace == namespace {
					out[name] = struct{}{}
				}
			}
		}
	}
	if x.rekeyed {
		for name, e := range x.pods {
			if len(e.pod.Labels) > 0 && !maps.Equal(x.asPeer(e.pod).Labels, e.peer.Labels) {
				out[name] = struct{}{}
			}
		}
	}
	return out
}

// broadcast marks for every node what is everybody's.
func (x *Index) broadcast(ch *model.Changes, everybodys map[model.Name]*model.EndpointSlice) {
	for n := range x.all() {
		p := &n.pending
		mark(&p.Namespaces, ch.Namespaces)
		mark(&p.Nodes, ch.Nodes)
		mark(&p.Services, ch.Services)
		mark(&p.Slices, everybodys)
		mark(&p.Tiers, ch.Tiers)
		mark(&p.NetworkSets, ch.NetworkSets)
		mark(&p.ServiceAccounts, ch.ServiceAccounts)
		mark(&p.HostEndpoints, ch.HostEndpoints)
		mark(&p.Pools, ch.Pools)
		mark(&p.Blocks, ch.Blocks)
		mark(&p.BGPConfigs, ch.BGPConfigs)
		mark(&p.BGPPeers, ch.BGPPeers)
		mark(&p.BGPFilters, ch.BGPFilters)
		mark(&p.EgressPolicies, ch.EgressPolicies)
		p.ServiceCIDRsChanged = p.ServiceCIDRsChanged || ch.ServiceCIDRsChanged
		p.ReservedChanged = p.ReservedChanged || ch.ReservedChanged
		if len(ch.Namespaces) > 0 { // whose labels those of network sets are, too
			mark(&p.NetworkSets, x.c.NetworkSets)
		}
	}
}

// carried returns those of some EndpointSlices that were, before the change, or will be every
// node's.
func (x *Index) carried(ch *model.Changes) map[model.Name]*model.EndpointSlice {
	out := map[model.Name]*model.EndpointSlice{}
	for name, now := range ch.Slices {
		was := x.c.Slices[name]
		if name == cluster.APIServerSlice || was != nil && !was.NotCarried || now != nil && !now.NotCarried {
			out[name] = now
		}
	}
	return out
}

// ofEverybody reports whether every node has an EndpointSlice.
func (x *Index) ofEverybody(name model.Name) bool {
	sl := x.c.Slices[name]
	return sl != nil && (!sl.NotCarried || name == cluster.APIServerSlice)
}

// markOthers marks what is of some nodes only, for the nodes that have it or come to: before the
// change, and after it.
func (x *Index) markOthers(ch *model.Changes) {
	x.markStaged(ch)
	for name := range ch.Slices {
		sl := x.c.Slices[name]
		if sl == nil || !sl.NotCarried {
			continue
		}
		for n := range x.all() {
			if n.services[sl.Service] > 0 {
				markKey(&n.pending.Slices, name)
			}
		}
	}
}

// markStaged marks staged policies for the nodes that have what they would replace.
func (x *Index) markStaged(ch *model.Changes) {
	for id := range ch.Staged {
		s := x.c.Staged[id]
		if s == nil {
			continue
		}
		for n := range x.all() {
			if n.policies[x.c.Policies[s.Replaces()]] > 0 {
				markKey(&n.pending.Staged, id)
			}
		}
	}
}

// mark notes the keys of objects; what becomes of them is looked up when a node takes them.
func mark[K comparable, V, W any](into *map[K]*V, of map[K]W) {
	for k := range of {
		markKey(into, k)
	}
}

func markKey[K comparable, V any](into *map[K]*V, k K) {
	if *into == nil {
		*into = map[K]*V{}
	}
	(*into)[k] = nil
}

// relabelled returns the namespaces that come, go, or have other labels than before.
func (x *Index) relabelled(ch *model.Changes) map[string]struct{} {
	out := map[string]struct{}{}
	for name, now := range ch.Namespaces {
		if was := x.c.Namespaces[name]; was == nil || now == nil || !maps.Equal(was.Labels, now.Labels) {
			out[name] = struct{}{}
		}
	}
	return out
}

// relabel asks again what depends on labels around pods. A node whose rules could be about a pod
// before, and can still be, has it as it is.
func (x *Index) relabel(namespaces map[string]struct{}, accounts map[model.Name]*model.ServiceAccount) {
	again := map[*group]struct{}{}
	for name := range namespaces {
		maps.Copy(again, x.byNamespace[name])
	}
	for name := range accounts {
		for g := range x.byNamespace[name.Namespace] {
			if g.like.ServiceAccount == name.Name {
				again[g] = struct{}{}
			}
		}
	}
	asked := map[string]map[*question]struct{}{} // before
	for name := range namespaces {
		asked[name] = x.asking[name]
		delete(x.asking, name)
	}
	for g := range again {
		for _, of := range []map[*question]struct{}{asked[g.like.Name.Namespace], x.askedIn(g.like.Name.Namespace)} {
			for q := range of {
				x.evaluate(q, g)
			}
		}
		for slot := range x.reach(g).all() {
			markPods(x.nodes[slot], g.pods)
		}
	}
}

// markPods is mark for pods; a node that takes everything next needs no marks.
func markPods[V any](n *Node, pods map[model.Name]V) {
	if !n.whole {
		mark(&n.pending.Pods, pods)
	}
}

// put makes the index know a pod as it is now; nil = it is gone.
func (x *Index) put(name model.Name, p *model.Pod) {
	was := x.pods[name]
	affected, all := x.wanting(was)
	if was != nil {
		x.claim(was.pod, drop)
		x.leave(was.group, name)
		drop(x.on, was.pod.Node, name)
		delete(x.pods, name)
		delete(x.everyones, name)
	}
	if p != nil {
		e := &entry{pod: p, peer: x.asPeer(p)}
		e.group = x.join(e.peer)
		x.pods[name] = e
		put(x.on, p.Node, name)
		x.claim(p, put)
		x.setEveryone(e, x.needed(e.pod))
	}
	after, allNow := x.wanting(x.pods[name])
	affected.merge(after)
	x.note(name, affected, all || allNow, was != nil && was.pod == p)
	for _, e := range []*entry{was, x.pods[name]} {
		if e == nil {
			continue
		}
		for _, a := range e.pod.Addrs {
			if len(x.claims[a]) > 0 {
				x.again[a] = struct{}{} // others may be needed by it
			}
		}
		if n := x.byName[e.pod.Node]; n != nil {
			n.bindLater(name)
		}
	}
	for n := range x.holders[name] {
		n.bindLater(name)
	}
}

// setEveryone notes whether every node needs a pod.
func (x *Index) setEveryone(e *entry, is bool) {
	if e.everyone = is; is {
		x.everyones[e.pod.Name] = struct{}{}
	} else {
		delete(x.everyones, e.pod.Name)
	}
}

// claim enters the addresses of a pod, or takes them out.
func (x *Index) claim(p *model.Pod, do func(map[netip.Addr]map[model.Name]struct{}, netip.Addr, model.Name)) {
	if p.HostNetwork || p.Finished {
		return
	}
	for _, a := range p.Addrs {
		do(x.claims, a, p.Name)
	}
}

// wanting returns the nodes whose view a pod is in.
func (x *Index) wanting(e *entry) (of slotSet, all bool) {
	if e == nil {
		return nil, false
	}
	if e.everyone {
		return nil, true
	}
	if e.group != nil {
		of = x.nodesOf(e.group)
	}
	if n := x.byName[e.pod.Node]; n != nil {
		of.add(n.slot)
	}
	for n := range x.holders[e.pod.Name] {
		of.add(n.slot)
	}
	if !e.pod.HostNetwork && !e.pod.Finished {
		for _, a := range e.pod.Addrs {
			for n := range x.holding[a] {
				of.add(n.slot)
			}
		}
	}
	return of, false
}

// note marks a pod for some nodes, or for all; peers leaves out those that have it whole.
func (x *Index) note(name model.Name, of slotSet, all, peers bool) {
	only := map[model.Name]struct{}{name: {}}
	for n := range x.all() {
		if !all && !of.has(n.slot) {
			continue
		}
		if _, own := n.pods[name]; !own || !peers {
			markPods(n, only)
		}
	}
}
