// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// group are the pods that no rule of the cluster tells apart: of one namespace and service account,
// with the same values of the labels at which rules look, and the same named ports.
type group struct {
	key       string
	number    int                       // no other one has it, nor had
	slot      int                       // no other one has it now
	like      *model.Pod                // one of them, as others see it
	pods      map[model.Name]*model.Pod // as others see them
	questions map[*question]struct{}    // that are true of it
}

// asPeer returns of a pod what others' states may depend on: the pod itself where that is all.
func (x *Index) asPeer(p *model.Pod) *model.Pod {
	looked := func(key string) bool { return x.keys[key] > 0 }
	unused := func(pp model.PodPort) bool { return pp.Name == "" && pp.HostPort == 0 && !p.HostNetwork }
	kept := 0
	for key := range p.Labels {
		if looked(key) {
			kept++
		}
	}
	if kept == len(p.Labels) && !slices.ContainsFunc(p.Ports, unused) {
		return p
	}
	out := *p
	out.Labels = nil
	if kept > 0 {
		out.Labels = make(map[string]string, kept)
		for key, v := range p.Labels {
			if looked(key) {
				out.Labels[key] = v
			}
		}
	}
	out.Ports = slices.DeleteFunc(slices.Clone(p.Ports), unused)
	x.shared.Pod(&out)
	return &out
}

// groupKey says what rules can tell of a pod as others see it.
func groupKey(p *model.Pod) string {
	var b strings.Builder
	b.WriteString(p.Name.Namespace + "/" + p.ServiceAccount)
	for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
		b.WriteString(" " + strconv.Quote(k) + "=" + strconv.Quote(p.Labels[k]))
	}
	for _, pp := range p.Ports {
		if pp.Name != "" {
			b.WriteString(" " + pp.Protocol.String() + strconv.Itoa(int(pp.Port)) + strconv.Quote(pp.Name))
		}
	}
	return b.String()
}

// join puts a pod into its group. A pod without an address of its own is no peer, and in none.
func (x *Index) join(p *model.Pod) *group {
	if p.HostNetwork || p.Finished || len(p.Addrs) == 0 {
		return nil
	}
	key := groupKey(p)
	g := x.groups[key]
	if g == nil {
		x.lastGroup++
		g = &group{key: key, number: x.lastGroup, slot: x.groupSlot(), like: p, pods: map[model.Name]*model.Pod{}, questions: map[*question]struct{}{}}
		x.groups[key], x.groupAt[g.slot] = g, g
		put(x.byNamespace, p.Name.Namespace, g)
		delete(x.parts.groups, p.Name.Namespace)
		for q := range x.askedIn(p.Name.Namespace) {
			x.evaluate(q, g)
		}
		x.reach(g)
	}
	g.pods[p.Name] = p
	delete(x.parts.pods, p.Name.Namespace)
	return g
}

// groupSlot returns a slot that no group has.
func (x *Index) groupSlot() int {
	if last := len(x.freeGroups) - 1; last >= 0 {
		slot := x.freeGroups[last]
		x.freeGroups = x.freeGroups[:last]
		return slot
	}
	x.groupAt = append(x.groupAt, nil)
	return len(x.groupAt) - 1
}

// leave takes a pod out of its group, which may be nil.
func (x *Index) leave(g *group, name model.Name) {
	if g == nil {
		return
	}
	delete(x.parts.pods, name.Namespace)
	if delete(g.pods, name); len(g.pods) > 0 {
		return
	}
	delete(x.groups, g.key)
	delete(x.parts.groups, name.Namespace)
	if drop(x.byNamespace, g.like.Name.Namespace, g); len(x.byNamespace[g.like.Name.Namespace]) == 0 {
		delete(x.asking, g.like.Name.Namespace)
	}
	for q := range g.questions {
		q.groups.remove(g.slot)
	}
	for n := range x.all() {
		n.groups.remove(g.slot)
	}
	x.groupAt[g.slot] = nil
	x.freeGroups = append(x.freeGroups, g.slot)
}

// evaluate asks a question of a group. Where some node has the question, reach has to follow.
func (x *Index) evaluate(q *question, g *group) {
	if q.isTrueOf(x.view, g.like) {
		q.groups.add(g.slot)
		g.questions[q] = struct{}{}
	} else if _, was := g.questions[q]; was {
		q.groups.remove(g.slot)
		delete(g.questions, q)
	}
}

// reach finds again which nodes have rules that can be about pods of a group, and returns those of
// which that has changed.
func (x *Index) reach(g *group) (changed slotSet) {
	var now slotSet
	for q := range g.questions {
		now.merge(q.nodes)
	}
	for n := range x.all() {
		is, was := now.has(n.slot), n.groups.has(g.slot)
		if is && !was {
			n.groups.add(g.slot)
		} else if was && !is {
			n.groups.remove(g.slot)
		}
		if is != was {
			changed.add(n.slot)
		}
	}
	return changed
}

// nodesOf returns the nodes with rules that can be about pods of a group.
func (x *Index) nodesOf(g *group) (out slotSet) {
	for n := range x.all() {
		if n.groups.has(g.slot) {
			out.add(n.slot)
		}
	}
	return out
}

// asked reports whether a node has a question that is true of the group.
func (g *group) asked(slot int) bool {
	for q := range g.questions {
		if q.nodes.has(slot) {
			return true
		}
	}
	return false
}
