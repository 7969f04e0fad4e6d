// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
)

// Of returns the view of the node c.Local.Node. Of what the machine itself says, Local, it looks at
// the endpoints alone. The values of the view are shared with the cluster; pods of other nodes may
// be shortened to what rules of the cluster ask of others' pods.
func Of(c *model.Cluster) *model.Cluster {
	b := &builder{View: cluster.ViewOf(c), out: *c, asks: newAsks(), claims: claimsOf(c.Pods), policies: map[*model.Policy]struct{}{}}
	all := newAsks()
	for _, p := range c.Policies {
		all.add(p)
	}
	for _, p := range c.Staged {
		all.add(&p.Policy)
	}
	b.keys = labelKeysOf(all)
	b.addPolicies()
	b.addPods()
	b.addHostEndpoints()
	b.addNetworkSets()
	b.addSlices()
	b.addAround()
	return &b.out
}

// builder is a view under work.
type builder struct {
	*cluster.View // the whole
	out           model.Cluster
	asks          *asks
	keys          labelKeys
	claims        map[netip.Addr][]*model.Pod
	policies      map[*model.Policy]struct{} // that select something of the node
}

// claimsOf returns the pods that claim an address, rightly or not.
func claimsOf(pods map[model.Name]*model.Pod) map[netip.Addr][]*model.Pod {
	out := make(map[netip.Addr][]*model.Pod, len(pods))
	for _, p := range pods {
		if p.HostNetwork || p.Finished {
			continue
		}
		for i, a := range p.Addrs {
			if !slices.Contains(p.Addrs[:i], a) {
				out[a] = append(out[a], p)
			}
		}
	}
	return out
}

// ours yields the names of the node's pods: those that the API places on it, and those that have an
// endpoint on it.
func (b *builder) ours() map[model.Name]struct{} {
	out := map[model.Name]struct{}{}
	for name, p := range b.Pods {
		if p.Node == b.Local.Node && p.Node != "" {
			out[name] = struct{}{}
		}
	}
	for _, ep := range b.Local.Endpoints {
		out[ep.Pod] = struct{}{}
	}
	return out
}

// addPolicies takes the policies that select pods or host endpoints of the node, those that would
// with the staged ones in force, and the staged ones by which the two differ.
func (b *builder) addPolicies() {
	inForce := subject.NewIndex(b.Policies, nil)
	would := inForce
	if len(b.Staged) > 0 {
		would = subject.NewIndex(subject.WithStaged(b.Policies, b.Staged), inForce)
	}
	take := func(list []*model.Policy) {
		for _, p := range list {
			if _, have := b.policies[p]; !have {
				b.policies[p] = struct{}{}
				b.asks.add(p)
			}
		}
	}
	for name := range b.ours() {
		for _, x := range []*subject.Index{inForce, would} {
			list, _ := x.OfPod(b.View, name)
			take(list)
		}
	}
	for _, h := range b.HostEndpoints {
		if h.Node == b.Local.Node {
			take(inForce.OfHost(b.View, h))
			take(would.OfHost(b.View, h))
		}
	}
	b.out.Policies = map[model.PolicyID]*model.Policy{}
	for id, p := range b.Policies {
		if _, is := b.policies[p]; is {
			b.out.Policies[id] = p
		}
	}
	b.out.Staged = map[model.PolicyID]*model.StagedPolicy{}
	for id, s := range b.Staged {
		_, selects := b.policies[&s.Policy]
		if _, replaces := b.out.Policies[s.Replaces()]; selects || replaces {
			b.out.Staged[id] = s
		}
	}
}

// addPods takes the pods of the node, those that rules may be about, and those whose addresses or
// ports decide what Services and nodes get.
func (b *builder) addPods() {
	b.out.Pods = map[model.Name]*model.Pod{}
	for name := range b.ours() {
		if p := b.Pods[name]; p != nil {
			b.out.Pods[name] = p
		}
	}
	take := func(p *model.Pod) {
		if _, have := b.out.Pods[p.Name]; !have {
			b.out.Pods[p.Name] = b.keys.asPeer(p)
		}
	}
	for _, p := range b.Pods {
		if !p.Finished && (!p.HostNetwork && (b.disputed(p) || b.mayBePeer(p))) {
			take(p)
		}
	}
	takeAt := func(a netip.Addr) {
		for _, p := range b.claims[a] {
			take(p)
		}
	}
	for a := range b.Local.Endpoints {
		takeAt(a)
	}
	for _, sl := range b.Slices {
		for i := range sl.Endpoints {
			for _, a := range sl.Endpoints[i].Addrs {
				if b.foreign(sl.Service.Namespace, a) {
					takeAt(a)
				}
			}
		}
	}
	b.addPodsAgainst(take, takeAt)
}

// disputed reports whether more than the block of its node decides on an address of a pod: other
// claims, reservations, and what each node sees by itself.
func (b *builder) disputed(p *model.Pod) bool {
	return slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return !b.Owners.ByBlock(p, a) })
}

// mayBePeer reports whether a rule may be about a pod.
func (b *builder) mayBePeer(p *model.Pod) bool {
	if len(p.Addrs) == 0 {
		return false
	}
	for _, s := range b.asks.pods {
		if peer.Selects(b.View, s, p) {
			return true
		}
	}
	for _, e := range b.asks.exprs {
		if e.MatchesFunc(peer.PodLabels(b.View, p)) {
			return true
		}
	}
	return b.asks.asksPort(p)
}

// foreign reports whether an address may be a pod's of another namespace: then its owner decides
// whether EndpointSlices of this one may name it.
func (b *builder) foreign(namespace string, a netip.Addr) bool {
	return slices.ContainsFunc(b.claims[a], func(p *model.Pod) bool { return p.Name.Namespace != namespace })
}

// addPodsAgainst takes the pods by which Services may be refused what they ask for: an external
// address, or a port at the address of a node.
func (b *builder) addPodsAgainst(take func(*model.Pod), takeAt func(netip.Addr)) {
	asked := map[netip.Addr]struct{}{}
	for _, svc := range b.Services {
		for _, list := range [][]netip.Addr{svc.ExternalIPs, svc.LBIPs} {
			for _, a := range list {
				asked[a] = struct{}{}
				takeAt(a)
			}
		}
	}
	nodes := map[string]struct{}{}
	for _, n := range b.Cluster.Nodes {
		for _, a := range n.Addrs {
			if _, is := asked[a]; is {
				nodes[n.Name] = struct{}{}
			}
		}
	}
	if len(nodes) == 0 {
		return
	}
	for _, p := range b.Pods {
		if _, is := nodes[p.Node]; is && !p.Finished && (p.HostNetwork && len(p.Ports) > 0 || service.HasHostPort(p)) {
			take(p)
		}
	}
}

// addHostEndpoints takes those of the node and those that expressions pick.
func (b *builder) addHostEndpoints() {
	b.out.HostEndpoints = map[string]*model.HostEndpoint{}
	for name, h := range b.HostEndpoints {
		if h.Node == b.Local.Node || b.asks.picks(peer.HostLabels(h)) {
			b.out.HostEndpoints[name] = h
		}
	}
}

// addNetworkSets takes those that expressions pick.
func (b *builder) addNetworkSets() {
	b.out.NetworkSets = map[model.Name]*model.NetworkSet{}
	for name, s := range b.NetworkSets {
		if b.asks.picks(peer.SetLabels(b.View, s)) {
			b.out.NetworkSets[name] = s
		}
	}
}

// addSlices takes those that are carried, the API servers', and those of Services that rules name.
func (b *builder) addSlices() {
	b.out.Slices = map[model.Name]*model.EndpointSlice{}
	for name, sl := range b.Slices {
		_, asked := b.asks.services[sl.Service]
		if !sl.NotCarried || asked || name == cluster.APIServerSlice {
			b.out.Slices[name] = sl
		}
	}
}

// addAround takes the namespaces and service accounts whose labels are looked at: those around pods
// and network sets of the view, and namespaces that say whom their EndpointSlices may name.
func (b *builder) addAround() {
	b.out.Namespaces = map[string]*model.Namespace{}
	b.out.ServiceAccounts = map[model.Name]*model.ServiceAccount{}
	namespace := func(name string) {
		if ns := b.Namespaces[name]; ns != nil {
			b.out.Namespaces[name] = ns
		}
	}
	ours := b.ours()
	for name := range ours {
		namespace(name.Namespace)
	}
	for name, p := range b.out.Pods {
		namespace(name.Namespace)
		_, local := ours[name]
		account := model.Name{Namespace: name.Namespace, Name: p.ServiceAccount}
		if a := b.ServiceAccounts[account]; a != nil && (local || b.asks.accounts) {
			b.out.ServiceAccounts[account] = a
		}
	}
	for name := range b.out.NetworkSets {
		namespace(name.Namespace)
	}
	for name, ns := range b.Namespaces {
		if ns.Labels[service.LabelBackends] != "" {
			namespace(name)
		}
	}
}
