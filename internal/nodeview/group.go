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
		g = &group{key: key, number: x.lastGroup, like: p, pods: map[model.Name]*model.Pod{}, questions: map[*question]struct{}{}}
		x.groups[key] = g
		put(x.byNamespace, p.Name.Namespace, g)
		for q := range x.askedIn(p.Name.Namespace) {
			x.evaluate(q, g)
		}
	}
	g.pods[p.Name] = p
	delete(x.parts.pods, p.Name.Namespace)
	return g
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
	if drop(x.byNamespace, g.like.Name.Namespace, g); len(x.byNamespace[g.like.Name.Namespace]) == 0 {
		delete(x.asking, g.like.Name.Namespace)
	}
	for q := range g.questions {
		delete(q.groups, g)
	}
}

// evaluate asks a question of a group.
func (x *Index) evaluate(q *question, g *group) {
	if q.isTrueOf(x.view, g.like) {
		q.groups[g], g.questions[q] = struct{}{}, struct{}{}
	} else if _, was := g.questions[q]; was {
		delete(q.groups, g)
		delete(g.questions, q)
	}
}

// nodes returns the nodes with rules that can be about pods of the group.
func (g *group) nodes() (out nodeSet) {
	for q := range g.questions {
		out.merge(q.nodes)
	}
	return out
}

// concerns reports whether a node has a rule that can be about pods of the group.
func (g *group) concerns(slot int) bool {
	for q := range g.questions {
		if q.nodes.has(slot) {
			return true
		}
	}
	return false
}
