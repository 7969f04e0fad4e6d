// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// peerPod is a pod with the addresses by which others see it.
type peerPod struct {
	pod   *model.Pod
	addrs []netip.Addr // may be the pod's own list
}

// claims calls f for the addresses of a pod, and for those that another pod's endpoint has.
func (p *peerPod) claims(c *cluster.View, f func(netip.Addr)) {
	for _, a := range p.addrs {
		f(a)
	}
	for i, a := range p.pod.Addrs {
		if c.Carried(a) && !slices.Contains(p.addrs, a) && !slices.Contains(p.pod.Addrs[:i], a) {
			f(a)
		}
	}
}

type podSet map[*peerPod]struct{}

// PodIndex finds the pods that selectors pick without trying every pod for every selector. It holds
// those that have an address of their own, and follows them. What the node knows of its own
// endpoints comes before what the API says, which shows a new pod's address late and an old pod's
// for too long.
type PodIndex struct {
	c       *cluster.View
	byName  map[model.Name]*peerPod
	byClaim map[netip.Addr]*peerPod   // one of those that claim an address
	claimed map[netip.Addr][]*peerPod // the others, where there are several
	byNS    map[string]podSet
	byLabel map[string]map[string]podSet      // key, value; keys are indexed when first asked for
	numbers map[port.Name]map[port.Number]int // Pods with such a port; names are counted when first asked for
	local   map[netip.Addr]model.Name         // whose endpoints here have an address
	ours    map[model.Name][]netip.Addr       // the same the other way, carried addresses only

	// What pods' labels are looked up in alongside the pods, as it was looked at last.
	namespaces map[string]*model.Namespace
	accounts   map[model.Name]*model.ServiceAccount
	around     relabelled // since the classes followed
}

// NewPodIndex returns an index of the pods of a cluster.
func NewPodIndex(c *cluster.View) *PodIndex {
	x := &PodIndex{c: c, byName: make(map[model.Name]*peerPod, len(c.Pods)), byClaim: make(map[netip.Addr]*peerPod, len(c.Pods)), claimed: map[netip.Addr][]*peerPod{},
		byNS: map[string]podSet{}, byLabel: map[string]map[string]podSet{}, numbers: map[port.Name]map[port.Number]int{}}
	x.local, x.ours = localPods(c)
	x.namespaces, x.accounts = maps.Clone(c.Namespaces), maps.Clone(c.ServiceAccounts)
	for name := range c.Pods {
		x.put(name)
	}
	return x
}

// relabelled are the addresses of pods whose namespace or service account has other labels than
// before.
type relabelled struct{ byNamespace, byAccount map[netip.Addr]struct{} }

// relabel finds the pods around which labels changed.
func (x *PodIndex) relabel(c *cluster.View, dirty *model.Dirty) (out relabelled) {
	collect := func(into *map[netip.Addr]struct{}, of *peerPod) {
		if *into == nil {
			*into = map[netip.Addr]struct{}{}
		}
		for _, a := range of.addrs {
			(*into)[a] = struct{}{}
		}
	}
	if dirty.Has(model.KindNamespaces) {
		labels := func(n *model.Namespace) map[string]string { return n.Labels }
		for name := range relabels(x.namespaces, c.Namespaces, labels) {
			for p := range x.byNS[name] {
				collect(&out.byNamespace, p)
			}
		}
		x.namespaces = maps.Clone(c.Namespaces)
	}
	if dirty.Has(model.KindServiceAccounts) {
		labels := func(a *model.ServiceAccount) map[string]string { return a.Labels }
		for name := range relabels(x.accounts, c.ServiceAccounts, labels) {
			for p := range x.byNS[name.Namespace] {
				if p.pod.ServiceAccount == name.Name {
					collect(&out.byAccount, p)
				}
			}
		}
		x.accounts = maps.Clone(c.ServiceAccounts)
	}
	return out
}

// relabels returns the names of what came, went, or has other labels than before.
func relabels[K comparable, V any](before, now map[K]*V, labels func(*V) map[string]string) map[K]struct{} {
	out := map[K]struct{}{}
	for k, v := range now {
		if was := before[k]; was != v && (was == nil || !maps.Equal(labels(was), labels(v))) {
			out[k] = struct{}{}
		}
	}
	for k := range before {
		if now[k] == nil {
			out[k] = struct{}{}
		}
	}
	return out
}

func localPods(c *cluster.View) (map[netip.Addr]model.Name, map[model.Name][]netip.Addr) {
	local, ours := make(map[netip.Addr]model.Name, len(c.Local.Endpoints)), map[model.Name][]netip.Addr{}
	for a, ep := range c.Local.Endpoints {
		local[a] = ep.Pod
		if c.Carried(a) {
			ours[ep.Pod] = append(ours[ep.Pod], a)
		}
	}
	return local, ours
}

// Update takes over what changed, and returns the addresses that may have changed hands or whose
// pods changed.
func (x *PodIndex) Update(c *cluster.View, dirty *model.Dirty) []netip.Addr {
	names := map[model.Name]struct{}{}
	maps.Copy(names, dirty.Pods)
	if was := x.c.Owners; was != c.Owners {
		c.Owners.EachChange(was, func(p netip.Prefix) {
			x.claimantsIn(p, func(of *peerPod) { names[of.pod.Name] = struct{}{} })
		})
	}
	x.c = c
	if dirty.Has(model.KindLocal) {
		before := x.local
		x.local, x.ours = localPods(c)
		for _, of := range []map[netip.Addr]model.Name{before, x.local} {
			for a := range of {
				was, had := before[a]
				is, has := x.local[a]
				if was == is && had == has {
					continue
				}
				names[was], names[is] = struct{}{}, struct{}{}
				x.claimants(a, func(p *peerPod) { names[p.pod.Name] = struct{}{} })
			}
		}
	}
	var affected []netip.Addr
	for name := range names {
		affected = append(affected, x.put(name)...)
	}
	x.around = x.relabel(c, dirty)
	return affected
}

// put makes the index know a pod as it is now, and returns the addresses that it had and has.
func (x *PodIndex) put(name model.Name) []netip.Addr {
	var affected []netip.Addr
	if old := x.byName[name]; old != nil {
		affected = append(affected, old.addrs...)
		x.each(old, podSet.remove, -1)
		delete(x.byName, name)
		old.claims(x.c, func(a netip.Addr) { x.disclaim(old, a) })
	}
	pod := x.c.Pods[name]
	if pod == nil || pod.HostNetwork || pod.Finished {
		return affected
	}
	p := &peerPod{pod: pod, addrs: peerAddrs(x.c, pod, x.ours[name])}
	claims := false
	p.claims(x.c, func(a netip.Addr) { claims = true; x.claim(p, a) })
	if !claims {
		return affected
	}
	x.byName[name] = p
	x.each(p, podSet.add, 1)
	return append(affected, p.addrs...)
}

func (x *PodIndex) claim(p *peerPod, a netip.Addr) {
	if x.byClaim[a] == nil {
		x.byClaim[a] = p
	} else {
		x.claimed[a] = append(x.claimed[a], p)
	}
}

func (x *PodIndex) disclaim(p *peerPod, a netip.Addr) {
	others := x.claimed[a]
	switch {
	case x.byClaim[a] != p:
		others = slices.DeleteFunc(others, func(o *peerPod) bool { return o == p })
	case len(others) > 0:
		x.byClaim[a], others = others[0], others[1:]
	default:
		delete(x.byClaim, a)
	}
	if len(others) > 0 {
		x.claimed[a] = others
	} else {
		delete(x.claimed, a)
	}
}

// claimants calls f for the pods that claim an address.
func (x *PodIndex) claimants(a netip.Addr, f func(*peerPod)) {
	if p := x.byClaim[a]; p != nil {
		f(p)
	}
	for _, p := range x.claimed[a] {
		f(p)
	}
}

// claimantsIn calls f for the pods that claim an address of a prefix.
func (x *PodIndex) claimantsIn(p netip.Prefix, f func(*peerPod)) {
	for a := range cluster.AddrsIn(x.byClaim, p) {
		x.claimants(a, f)
	}
}

func (s podSet) add(p *peerPod)    { s[p] = struct{}{} }
func (s podSet) remove(p *peerPod) { delete(s, p) }

// each does something to every set that a pod belongs into, and counts its ports. A pod without an
// address belongs into none.
func (x *PodIndex) each(p *peerPod, do func(podSet, *peerPod), count int) {
	if len(p.addrs) == 0 {
		return
	}
	in := func(index map[string]podSet, key string) {
		if do(setOf(index, key), p); len(index[key]) == 0 {
			delete(index, key)
		}
	}
	in(x.byNS, p.pod.Name.Namespace)
	for key, index := range x.byLabel {
		if v, has := p.pod.Labels[key]; has {
			in(index, v)
		}
	}
	for n, counts := range x.numbers {
		x.count(p, n, counts, count)
	}
}

func (x *PodIndex) count(p *peerPod, n port.Name, counts map[port.Number]int, by int) {
	for _, number := range port.OfPod(p.pod, n) {
		if counts[number] += by; counts[number] == 0 {
			delete(counts, number)
		}
	}
}

// setOf returns the set of a key, made when there is none.
func setOf(index map[string]podSet, key string) podSet {
	s := index[key]
	if s == nil {
		s = podSet{}
		index[key] = s
	}
	return s
}

// at returns the pods that have an address.
func (x *PodIndex) at(a netip.Addr) []*model.Pod {
	var out []*model.Pod
	x.claimants(a, func(p *peerPod) {
		if slices.Contains(p.addrs, a) {
			out = append(out, p.pod)
		}
	})
	return out
}

// numbersOf returns the ports that pods call by a name.
func (x *PodIndex) numbersOf(n port.Name) map[port.Number]int {
	counts, ok := x.numbers[n]
	if !ok {
		counts = map[port.Number]int{}
		for _, p := range x.byName {
			if len(p.addrs) > 0 {
				x.count(p, n, counts, 1)
			}
		}
		x.numbers[n] = counts
	}
	return counts
}

// KeepNumbers forgets the names that are not asked for any more.
func (x *PodIndex) KeepNumbers(asked map[port.Name]bool) {
	maps.DeleteFunc(x.numbers, func(n port.Name, _ map[port.Number]int) bool { return !asked[n] })
}

// peerAddrs returns the addresses by which others see a pod, with those of its endpoints here.
func peerAddrs(c *cluster.View, p *model.Pod, local []netip.Addr) []netip.Addr {
	if p.HostNetwork || p.Finished {
		return nil
	}
	ours := func(i int, a netip.Addr) bool {
		ep := c.Local.Endpoints[a]
		return c.Carried(a) && (ep == nil && c.Owners.OwnsAddr(c, p, a) || ep != nil && ep.Pod == p.Name) && !slices.Contains(p.Addrs[:i], a)
	}
	same := len(local) == 0
	for i, a := range p.Addrs {
		same = same && ours(i, a)
	}
	if same {
		return p.Addrs // nothing of its own is kept
	}
	addrs := slices.Clip(local)
	for i, a := range p.Addrs {
		if ours(i, a) && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// matching calls f for every pod that sel picks.
func (x *PodIndex) matching(sel *model.Selector, f func(*peerPod)) {
	try := func(pods podSet) {
		for p := range pods {
			if labelsMatch(sel.Pods, p.pod.Labels) {
				f(p)
			}
		}
	}
	if sel.Namespace != "" {
		try(x.byNS[sel.Namespace])
		return
	}
	var in []podSet
	byNamespace := 0
	for ns, pods := range x.byNS {
		if NamespaceMatches(x.c, sel.Namespaces, ns) {
			in, byNamespace = append(in, pods), byNamespace+len(pods)
		}
	}
	if with, byLabel := x.withValue(sel.Pods); with != nil && byLabel < byNamespace {
		for _, pods := range with {
			for p := range pods {
				if labelsMatch(sel.Pods, p.pod.Labels) && NamespaceMatches(x.c, sel.Namespaces, p.pod.Name.Namespace) {
					f(p)
				}
			}
		}
		return
	}
	for _, pods := range in {
		try(pods)
	}
}

// withValue returns the pods with a value that sel asks for, and how many they are; nil when it
// asks for none. No pod is in two of the sets.
func (x *PodIndex) withValue(sel *model.LabelSelector) (with []podSet, n int) {
	i := asksForValue(sel)
	if i < 0 {
		return nil, 0
	}
	r := &sel.Requirements[i]
	index := x.labelIndex(r.Key)
	with = []podSet{}
	for j, v := range r.Values {
		if !slices.Contains(r.Values[:j], v) {
			with, n = append(with, index[v]), n+len(index[v])
		}
	}
	return with, n
}

// asksForValue returns the index of a requirement that names values, -1 when there is none.
func asksForValue(sel *model.LabelSelector) int {
	if sel == nil {
		return -1
	}
	return slices.IndexFunc(sel.Requirements, func(r model.Requirement) bool { return r.Op == model.In })
}

func (x *PodIndex) labelIndex(key string) map[string]podSet {
	index, ok := x.byLabel[key]
	if !ok {
		index = map[string]podSet{}
		x.byLabel[key] = index
		for _, p := range x.byName {
			if v, has := p.pod.Labels[key]; has && len(p.addrs) > 0 {
				setOf(index, v).add(p)
			}
		}
	}
	return index
}

// expressed calls f for the pods that an expression picks.
func (x *PodIndex) expressed(expr *selector.Selector, f func(*peerPod)) {
	try := func(pods podSet) {
		for p := range pods {
			if expr.MatchesFunc(PodLabels(x.c, p.pod)) {
				f(p)
			}
		}
	}
	label, value, ok := expr.Requires()
	switch {
	case ok && label == model.LabelNamespace:
		try(x.byNS[value])
	case ok && !strings.HasPrefix(label, "projectcalico.org/") && !strings.HasPrefix(label, model.PrefixNamespace) && !strings.HasPrefix(label, model.PrefixAccount):
		try(x.labelIndex(label)[value])
	default:
		for _, pods := range x.byNS {
			try(pods)
		}
	}
}
