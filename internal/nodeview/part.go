// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"maps"
	"slices"
	"sync"

	"github.com/weir-net/weir/internal/model"
)

// Part is a piece of the first view of several nodes, which is made once for all of them. It is
// never changed, and safe for concurrent use.
type Part struct {
	changes *model.Changes

	once    sync.Once
	encoded [][]byte
	err     error

	derive  sync.Once
	derived any

	mu     sync.Mutex
	pieces map[string]*piece
}

// piece is what becomes of some of a part's objects.
type piece struct {
	once    sync.Once
	encoded [][]byte
	err     error
}

// mostPieces is how many of a part are kept. Nodes that come from elsewhere together lack the same,
// and one that says it lacks something else each time takes no more memory.
const mostPieces = 8

// Piece returns what encode makes of some of the part's objects, which have a name. It is called
// once for most of those who ask for the same.
func (p *Part) Piece(name string, encode func() ([][]byte, error)) ([][]byte, error) {
	p.mu.Lock()
	of := p.pieces[name]
	if of == nil {
		of = &piece{}
		if p.pieces == nil || len(p.pieces) >= mostPieces {
			p.pieces = map[string]*piece{}
		}
		p.pieces[name] = of
	}
	p.mu.Unlock()
	of.once.Do(func() { of.encoded, of.err = encode() })
	return of.encoded, of.err
}

// Changes returns what the part has of the cluster.
func (p *Part) Changes() *model.Changes { return p.changes }

// Encoded returns what encode makes of the changes. It is called once, whoever asks.
func (p *Part) Encoded(encode func(*model.Changes) ([][]byte, error)) ([][]byte, error) {
	p.once.Do(func() { p.encoded, p.err = encode(p.changes) })
	return p.encoded, p.err
}

// Derived returns something else that of makes of the changes. It is called once, whoever asks, and
// has to be the same function each time.
func (p *Part) Derived(of func(*model.Changes) any) any {
	p.derive.Do(func() { p.derived = of(p.changes) })
	return p.derived
}

// parts are those that were made and are as the cluster is now.
type parts struct {
	nodes, blocks, other *Part
	services             map[string]*Part            // Services and their EndpointSlices, by namespace
	pods                 map[string]map[string]*Part // by namespace, and by which of its groups
	groups               map[string][]*group         // of a namespace, by their numbers
	serviceNames         map[string]*namesIn
}

// namesIn are the names of Services and of EndpointSlices that are every node's in a namespace.
type namesIn struct{ services, slices map[model.Name]struct{} }

func newParts() parts {
	return parts{services: map[string]*Part{}, pods: map[string]map[string]*Part{}, groups: map[string][]*group{}, serviceNames: map[string]*namesIn{}}
}

// forget drops the parts that a change makes outdated. everybodys are the EndpointSlices of ch that
// are every node's.
func (x *Index) forget(ch *model.Changes, everybodys map[model.Name]*model.EndpointSlice) {
	p := &x.parts
	if len(ch.Nodes) > 0 {
		p.nodes = nil
	}
	if len(ch.Blocks) > 0 {
		p.blocks = nil
	}
	if len(ch.Namespaces)+len(ch.Tiers)+len(ch.ServiceAccounts)+len(ch.HostEndpoints)+len(ch.Pools)+len(ch.BGPConfigs)+len(ch.BGPPeers)+len(ch.BGPFilters)+len(ch.EgressPolicies) > 0 || ch.ServiceCIDRsChanged || ch.ReservedChanged || x.accountsChanged {
		p.other, x.accountsChanged = nil, false
	}
	in := func(namespace string) *namesIn {
		delete(p.services, namespace)
		n := p.serviceNames[namespace]
		if n == nil {
			n = &namesIn{services: map[model.Name]struct{}{}, slices: map[model.Name]struct{}{}}
			p.serviceNames[namespace] = n
		}
		return n
	}
	for name := range ch.Services {
		of := in(name.Namespace)
		if delete(of.services, name); x.c.Services[name] != nil {
			of.services[name] = struct{}{}
		}
	}
	for name := range everybodys {
		of := in(name.Namespace)
		if delete(of.slices, name); x.ofEverybody(name) {
			of.slices[name] = struct{}{}
		}
	}
}

// Snapshot returns all of the node's part: what it shares with other nodes, and what comes after
// it, which takes the place of what has the same key. It is Take, the first time.
func (n *Node) Snapshot() ([]*Part, *model.Changes) {
	n.whole, n.pending = false, model.Changes{}
	out := n.x.commonParts()
	for namespace := range n.x.byNamespace {
		if p := n.podsOf(namespace); p != nil {
			out = append(out, p)
		}
	}
	return out, n.own()
}

// commonParts are what every node has.
func (x *Index) commonParts() []*Part {
	p, c := &x.parts, x.c
	if p.nodes == nil {
		p.nodes = &Part{changes: &model.Changes{Nodes: maps.Clone(c.Nodes)}}
	}
	if p.blocks == nil {
		p.blocks = &Part{changes: &model.Changes{Blocks: maps.Clone(c.Blocks)}}
	}
	if p.other == nil {
		ch := &model.Changes{Namespaces: maps.Clone(c.Namespaces), Tiers: maps.Clone(c.Tiers), HostEndpoints: maps.Clone(c.HostEndpoints),
			Pools: maps.Clone(c.Pools), BGPConfigs: maps.Clone(c.BGPConfigs), BGPPeers: maps.Clone(c.BGPPeers), BGPFilters: maps.Clone(c.BGPFilters), EgressPolicies: maps.Clone(c.EgressPolicies), ServiceCIDRs: c.ServiceCIDRs, ServiceCIDRsChanged: true, Reserved: c.Reservations, ReservedChanged: true}
		if x.accounts > 0 {
			ch.ServiceAccounts = maps.Clone(c.ServiceAccounts)
		}
		p.other = &Part{changes: ch}
	}
	out := []*Part{p.other, p.nodes, p.blocks}
	for namespace, names := range p.serviceNames {
		made := p.services[namespace]
		if made == nil {
			ch := &model.Changes{}
			mark(&ch.Services, names.services)
			mark(&ch.Slices, names.slices)
			fill(ch.Services, c.Services)
			fill(ch.Slices, c.Slices)
			if ch.Empty() {
				delete(p.serviceNames, namespace)
				continue
			}
			made = &Part{changes: ch}
			p.services[namespace] = made
		}
		out = append(out, made)
	}
	return out
}

// podsOf returns the pods of a namespace that rules of the node can be about, as others see them;
// nil = none.
func (n *Node) podsOf(namespace string) *Part {
	x := n.x
	groups := x.parts.groups[namespace]
	if groups == nil {
		groups = slices.SortedFunc(maps.Keys(x.byNamespace[namespace]), func(a, b *group) int { return a.number - b.number })
		x.parts.groups[namespace] = groups
	}
	var room [16]byte // a bit for each group
	key, size := room[:0], 0
	for i, g := range groups {
		if i%8 == 0 {
			key = append(key, 0)
		}
		if n.groups.has(g.slot) {
			key[i/8] |= 1 << (i % 8)
			size += len(g.pods)
		}
	}
	if size == 0 {
		return nil
	}
	made := x.parts.pods[namespace][string(key)]
	if made == nil {
		pods := make(map[model.Name]*model.Pod, size)
		for _, g := range groups {
			if n.groups.has(g.slot) {
				maps.Copy(pods, g.pods)
			}
		}
		made = &Part{changes: &model.Changes{Pods: pods}}
		if x.parts.pods[namespace] == nil {
			x.parts.pods[namespace] = map[string]*Part{}
		}
		x.parts.pods[namespace][string(key)] = made
	}
	return made
}

// own returns what of the node's part is in no Part.
func (n *Node) own() *model.Changes {
	x, c := n.x, n.x.c
	out := &model.Changes{Pods: map[model.Name]*model.Pod{}}
	for name := range x.everyones {
		out.Pods[name] = x.pods[name].peer
	}
	for a := range n.endpoints {
		for name := range x.claims[a] {
			out.Pods[name] = x.pods[name].peer
		}
	}
	for name := range n.pods {
		if e := x.pods[name]; e != nil {
			out.Pods[name] = e.pod
		}
	}
	for v := range n.policies {
		if model.KindInForce(v.Kind) == v.Kind {
			markKey(&out.Policies, v.ID())
		}
	}
	mark(&out.Staged, c.Staged)
	mark(&out.NetworkSets, c.NetworkSets)
	for s := range n.services {
		mark(&out.Slices, x.headless[s])
	}
	n.fillOwn(out)
	for id, s := range out.Staged {
		if s == nil {
			delete(out.Staged, id)
		}
	}
	return out
}
