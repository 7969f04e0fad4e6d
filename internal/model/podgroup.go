// SPDX-License-Identifier: Apache-2.0

package model

import (
	"hash/maphash"
	"iter"
)

// PodGroup is pods that differ in nothing but their names, nodes, addresses, ages and UIDs: what
// rules ask about pods they ask about groups.
type PodGroup struct {
	// Like has what the pods have in common: namespace, service account, labels, ports,
	// HostNetwork, Finished.
	Like *Pod

	t      *PodTable
	number uint32 // its place in podGroups.all
	place  uint64 // hash of Like
	first  uint32 // one of its rows, and one more
	n      int
}

// Len returns how many pods are in the group.
func (g *PodGroup) Len() int { return g.n }

// Refs yields the group's pods for a look.
func (g *PodGroup) Refs() iter.Seq[PodRef] {
	return func(yield func(PodRef) bool) {
		for next := g.first; next > 0; {
			if !yield(PodRef{g.t, next - 1}) {
				return
			}
			next = g.t.rows.at(next - 1).next
		}
	}
}

// podGroups are the groups of a table.
type podGroups struct {
	all     []*PodGroup // 0 is none
	free    []uint32
	byPlace map[uint64][]*PodGroup
	byNS    groupSets
	byLabel map[string]groupSets // by key, then by value; of the keys that were asked for
}

// groupSets are groups by something that they have.
type groupSets map[string]map[*PodGroup]struct{}

func (s groupSets) add(key string, g *PodGroup) {
	if s[key] == nil {
		s[key] = map[*PodGroup]struct{}{}
	}
	s[key][g] = struct{}{}
}

// join returns the number of a pod's group, made where there is none.
func (x *podGroups) join(t *PodTable, p *Pod) uint32 {
	if x.all == nil {
		x.all, x.byPlace, x.byNS = []*PodGroup{nil}, map[uint64][]*PodGroup{}, groupSets{}
	}
	place := maphash.Comparable(sharedSeed, [2]string{p.Name.Namespace, p.ServiceAccount})
	for k, v := range p.Labels {
		place += maphash.Comparable(sharedSeed, [2]string{k, v}) // in no order
	}
	for i := range p.Ports {
		place = place*31 + maphash.Comparable(sharedSeed, p.Ports[i])
	}
	for _, g := range x.byPlace[place] {
		if g.Like.alike(p) {
			return g.number
		}
	}
	g := &PodGroup{t: t, place: place,
		Like: &Pod{Name: Name{Namespace: p.Name.Namespace}, ServiceAccount: p.ServiceAccount, Labels: p.Labels, Ports: p.Ports, HostNetwork: p.HostNetwork, Finished: p.Finished}}
	if n := len(x.free); n > 0 {
		g.number, x.free = x.free[n-1], x.free[:n-1]
		x.all[g.number] = g
	} else {
		g.number = uint32(len(x.all))
		x.all = append(x.all, g)
	}
	x.byPlace[place] = append(x.byPlace[place], g)
	x.index(g, func(of groupSets, key string) { of.add(key, g) })
	return g.number
}

// leave forgets a group that is empty.
func (x *podGroups) leave(g *PodGroup) {
	x.all[g.number] = nil
	x.free = append(x.free, g.number)
	left := x.byPlace[g.place][:0]
	for _, o := range x.byPlace[g.place] {
		if o != g {
			left = append(left, o)
		}
	}
	if x.byPlace[g.place] = left; len(left) == 0 {
		delete(x.byPlace, g.place)
	}
	x.index(g, func(of groupSets, key string) {
		if delete(of[key], g); len(of[key]) == 0 {
			delete(of, key)
		}
	})
}

// index calls f for the sets that a group belongs into.
func (x *podGroups) index(g *PodGroup, f func(of groupSets, key string)) {
	f(x.byNS, g.Like.Name.Namespace)
	for key, of := range x.byLabel {
		if v, has := g.Like.Labels[key]; has {
			f(of, v)
		}
	}
}

// Groups yields the groups.
func (t *PodTable) Groups() iter.Seq[*PodGroup] {
	return func(yield func(*PodGroup) bool) {
		if t == nil {
			return
		}
		for _, g := range t.groups.all {
			if g != nil && !yield(g) {
				return
			}
		}
	}
}

// GroupsByNamespace returns the groups by their namespaces. It is the table's own map.
func (t *PodTable) GroupsByNamespace() map[string]map[*PodGroup]struct{} {
	if t == nil {
		return nil
	}
	return t.groups.byNS
}

// GroupsByLabel returns the groups that have a label, by its values. It is the table's own map,
// which the table keeps from the first time that it is asked for.
func (t *PodTable) GroupsByLabel(key string) map[string]map[*PodGroup]struct{} {
	if t == nil {
		return nil
	}
	x := &t.groups
	of, ok := x.byLabel[key]
	if !ok {
		of = groupSets{}
		for g := range t.Groups() {
			if v, has := g.Like.Labels[key]; has {
				of.add(v, g)
			}
		}
		if x.byLabel == nil {
			x.byLabel = map[string]groupSets{}
		}
		x.byLabel[key] = of
	}
	return of
}

// interned numbers texts that many rows have.
type interned struct {
	byText map[string]uint32
	all    []internedText
	free   []uint32
}

type internedText struct {
	text  string
	users int
}

func (x *interned) text(number uint32) string { return x.all[number].text }

func (x *interned) add(text string) uint32 {
	number, ok := x.byText[text]
	if !ok {
		if n := len(x.free); n > 0 {
			number, x.free = x.free[n-1], x.free[:n-1]
		} else {
			number = uint32(len(x.all))
			x.all = append(x.all, internedText{})
		}
		if x.byText == nil {
			x.byText = map[string]uint32{}
		}
		x.byText[text] = number
		x.all[number].text = text
	}
	x.all[number].users++
	return number
}

func (x *interned) drop(number uint32) {
	of := &x.all[number]
	if of.users--; of.users == 0 {
		delete(x.byText, of.text)
		*of = internedText{}
		x.free = append(x.free, number)
	}
}
