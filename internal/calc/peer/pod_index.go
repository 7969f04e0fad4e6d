// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// PodIndex finds the pods that selectors pick, and those at an address, without trying every pod:
// rules cannot tell pods of one group apart, so it tries groups (model.PodTable). It follows which
// addresses are a pod's: those that it claims, but for those that are not its own, and with what
// the node knows of its own endpoints. That comes before what the API says, which shows a new pod's
// address late and an old pod's for too long.
type PodIndex struct {
	c *cluster.View
	// others are the addresses of pods that have not exactly those that they claim.
	others  map[model.Name][]netip.Addr
	numbers map[port.Name]map[port.Number]int // pods with such a port; names are counted when first asked for
	local   map[netip.Addr]model.Name         // whose endpoints here have an address
	ours    map[model.Name][]netip.Addr       // the same the other way, carried addresses only

	// What pods' labels are looked up in alongside the pods, as it was looked at last.
	namespaces map[string]*model.Namespace
	accounts   map[model.Name]*model.ServiceAccount
	around     relabelled // since the classes followed
}

// NewPodIndex returns an index of the pods of a cluster.
func NewPodIndex(c *cluster.View) *PodIndex {
	x := &PodIndex{c: c, others: map[model.Name][]netip.Addr{}, numbers: map[port.Name]map[port.Number]int{}}
	x.local, x.ours = localPods(c)
	x.namespaces, x.accounts = maps.Clone(c.Namespaces), maps.Clone(c.ServiceAccounts)
	for r := range c.Pods.Refs() {
		if addrs, same := x.addrsOf(r); !same {
			x.others[r.Name()] = addrs
		}
	}
	return x
}

// owns reports whether an address that a pod claims is its own.
func (x *PodIndex) owns(r model.PodRef, a netip.Addr) bool {
	if !x.c.Carried(a) {
		return false
	}
	if ep := x.c.Local.Endpoints[a]; ep != nil {
		return r.Is(ep.Pod)
	}
	return x.c.Owners.OwnsAddr(x.c, r, a)
}

// addrs yields the addresses by which others see a pod.
func (x *PodIndex) addrs(r model.PodRef) iter.Seq[netip.Addr] {
	if addrs, other := x.otherAddrs(r); other {
		return slices.Values(addrs)
	}
	return r.Addrs()
}

// otherAddrs returns the addresses by which others see a pod where these are not what it claims.
func (x *PodIndex) otherAddrs(r model.PodRef) (addrs []netip.Addr, other bool) {
	if like := r.Like(); like.HostNetwork || like.Finished {
		return nil, true
	}
	if len(x.others) > 0 {
		return model.OfPod(x.others, r)
	}
	return nil, false
}

// has reports whether others see a pod by an address.
func (x *PodIndex) has(r model.PodRef, a netip.Addr) bool {
	if addrs, other := x.otherAddrs(r); other {
		return slices.Contains(addrs, a)
	}
	return r.Has(a)
}

// addrsIn yields the addresses of the pods of a group.
func (x *PodIndex) addrsIn(g *model.PodGroup) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for r := range g.Refs() {
			addrs, other := x.otherAddrs(r)
			for _, a := range addrs {
				if !yield(a) {
					return
				}
			}
			if other {
				continue
			}
			for a := range r.Addrs() { // all pods of a cluster come by here: it allocates nothing
				if !yield(a) {
					return
				}
			}
		}
	}
}

// relabelled are the groups of pods whose namespace or service account has other labels than
// before.
type relabelled struct{ byNamespace, byAccount map[*model.PodGroup]struct{} }

// relabel finds the pods around which labels changed.
func (x *PodIndex) relabel(c *cluster.View, dirty *model.Dirty) (out relabelled) {
	collect := func(into *map[*model.PodGroup]struct{}, g *model.PodGroup) {
		if *into == nil {
			*into = map[*model.PodGroup]struct{}{}
		}
		(*into)[g] = struct{}{}
	}
	if dirty.Has(model.KindNamespaces) {
		labels := func(n *model.Namespace) map[string]string { return n.Labels }
		for name := range relabels(x.namespaces, c.Namespaces, labels) {
			for g := range c.Pods.GroupsByNamespace()[name] {
				collect(&out.byNamespace, g)
			}
		}
		x.namespaces = maps.Clone(c.Namespaces)
	}
	if dirty.Has(model.KindServiceAccounts) {
		labels := func(a *model.ServiceAccount) map[string]string { return a.Labels }
		for name := range relabels(x.accounts, c.ServiceAccounts, labels) {
			for g := range c.Pods.GroupsByNamespace()[name.Namespace] {
				if g.Like.ServiceAccount == name.Name {
					collect(&out.byAccount, g)
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
	names := map[model.Name]*model.Pod{} // as they were
	mark := func(n model.Name) {
		if _, marked := names[n]; !marked {
			names[n] = c.Pods.Get(n)
		}
	}
	maps.Copy(names, dirty.Pods)
	was := x.c.Owners
	x.c = c
	before := x.local
	if dirty.Has(model.KindLocal) {
		x.local, x.ours = localPods(c)
		for _, of := range []map[netip.Addr]model.Name{before, x.local} {
			for a := range of {
				was, had := before[a]
				is, has := x.local[a]
				if was == is && had == has {
					continue
				}
				mark(was)
				mark(is)
				for r := range c.Pods.At(a) {
					mark(r.Name())
				}
			}
		}
	}
	if was != c.Owners {
		c.Owners.EachChange(was, func(p netip.Prefix) {
			for a := range c.Pods.AddrsIn(p) {
				for r := range c.Pods.At(a) {
					mark(r.Name())
				}
			}
		})
	}
	var affected []netip.Addr
	for name, before := range names {
		affected = append(affected, x.put(name, before)...)
	}
	x.around = x.relabel(c, dirty)
	return affected
}

// put makes the index know a pod as it is now, and returns the addresses that it had and has.
// Before is the pod as it was known; nil = it was not.
func (x *PodIndex) put(name model.Name, before *model.Pod) (affected []netip.Addr) {
	old, had := x.others[name]
	if !had && before != nil && !before.HostNetwork && !before.Finished {
		old = before.Addrs
	}
	delete(x.others, name)
	if len(old) > 0 && before != nil {
		x.countAll(before, -1)
	}
	r, ok := x.c.Pods.Ref(name)
	if !ok {
		return old
	}
	addrs, same := x.addrsOf(r)
	if !same {
		x.others[name] = addrs
	}
	has := slices.AppendSeq(slices.Clip(old), x.addrs(r))
	if len(has) > len(old) {
		x.countAll(r.Like(), 1)
	}
	return has
}

// countAll counts the ports of a pod, or takes them off.
func (x *PodIndex) countAll(p *model.Pod, by int) {
	for n, counts := range x.numbers {
		count(p, n, counts, by)
	}
}

func count(p *model.Pod, n port.Name, counts map[port.Number]int, by int) {
	for _, number := range port.OfPod(p, n) {
		if counts[number] += by; counts[number] == 0 {
			delete(counts, number)
		}
	}
}

// at yields the pods that have an address.
func (x *PodIndex) at(a netip.Addr) iter.Seq[model.PodRef] {
	return func(yield func(model.PodRef) bool) {
		for r := range x.c.Pods.At(a) {
			if x.has(r, a) && !yield(r) {
				return
			}
		}
		if name, here := x.local[a]; here { // the API may not say so yet
			if r, ok := x.c.Pods.Ref(name); ok && !r.Has(a) && x.has(r, a) {
				yield(r)
			}
		}
	}
}

// numbersOf returns the ports that pods call by a name.
func (x *PodIndex) numbersOf(n port.Name) map[port.Number]int {
	counts, ok := x.numbers[n]
	if !ok {
		counts = map[port.Number]int{}
		for g := range x.c.Pods.Groups() {
			if len(port.OfPod(g.Like, n)) == 0 {
				continue
			}
			for r := range g.Refs() {
				for range x.addrs(r) {
					count(g.Like, n, counts, 1)
					break
				}
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

// addrsOf returns the addresses by which others see a pod, with those of its endpoints here, unless
// they are the same as those that it claims.
func (x *PodIndex) addrsOf(r model.PodRef) (addrs []netip.Addr, same bool) {
	if like := r.Like(); like.HostNetwork || like.Finished {
		return nil, true
	}
	local, _ := model.OfPod(x.ours, r)
	same = len(local) == 0
	n := 0
	for a := range r.Addrs() {
		same = same && x.owns(r, a) && r.IndexOf(a) == n
		n++
	}
	if same {
		return nil, true
	}
	addrs = slices.Clone(local)
	for a := range r.Addrs() {
		if x.owns(r, a) && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs, false
}

// matching calls f for every group of pods that sel picks.
func (x *PodIndex) matching(sel *model.Selector, f func(*model.PodGroup)) {
	try := func(groups map[*model.PodGroup]struct{}) {
		for g := range groups {
			if labelsMatch(sel.Pods, g.Like.Labels) {
				f(g)
			}
		}
	}
	byNamespace := x.c.Pods.GroupsByNamespace()
	if sel.Namespace != "" {
		try(byNamespace[sel.Namespace])
		return
	}
	var in []map[*model.PodGroup]struct{}
	n := 0
	for ns, groups := range byNamespace {
		if NamespaceMatches(x.c, sel.Namespaces, ns) {
			in, n = append(in, groups), n+len(groups)
		}
	}
	if with, byLabel := x.withValue(sel.Pods); with != nil && byLabel < n {
		for _, groups := range with {
			for g := range groups {
				if labelsMatch(sel.Pods, g.Like.Labels) && NamespaceMatches(x.c, sel.Namespaces, g.Like.Name.Namespace) {
					f(g)
				}
			}
		}
		return
	}
	for _, groups := range in {
		try(groups)
	}
}

// withValue returns the groups with a value that sel asks for, and how many they are; nil when it
// asks for none. No group is in two of the sets.
func (x *PodIndex) withValue(sel *model.LabelSelector) (with []map[*model.PodGroup]struct{}, n int) {
	i := asksForValue(sel)
	if i < 0 {
		return nil, 0
	}
	r := &sel.Requirements[i]
	index := x.c.Pods.GroupsByLabel(r.Key)
	with = []map[*model.PodGroup]struct{}{}
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

// expressed calls f for the groups of pods that an expression picks.
func (x *PodIndex) expressed(expr *selector.Selector, f func(*model.PodGroup)) {
	try := func(groups map[*model.PodGroup]struct{}) {
		for g := range groups {
			if expr.MatchesFunc(PodLabels(x.c, g.Like)) {
				f(g)
			}
		}
	}
	label, value, ok := expr.Requires()
	switch {
	case ok && label == model.LabelNamespace:
		try(x.c.Pods.GroupsByNamespace()[value])
	case ok && !strings.HasPrefix(label, "projectcalico.org/") && !strings.HasPrefix(label, model.PrefixNamespace) && !strings.HasPrefix(label, model.PrefixAccount):
		try(x.c.Pods.GroupsByLabel(label)[value])
	default:
		for _, groups := range x.c.Pods.GroupsByNamespace() {
			try(groups)
		}
	}
}

// picked calls f for the groups of pods of which an atom is true, for some of them more than once.
func (x *PodIndex) picked(a *Atom, f func(*model.PodGroup)) {
	switch {
	case a.pods != nil:
		x.matching(a.pods, f)
	case a.expr != nil:
		x.expressed(a.expr, f)
	case a.named != nil:
		for g := range x.c.Pods.Groups() {
			if slices.Contains(port.OfPod(g.Like, *a.named), a.number) {
				f(g)
			}
		}
	default:
		for _, p := range a.parts {
			x.picked(p, f)
		}
	}
}
