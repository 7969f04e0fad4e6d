// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// verdicts are what is stored in look-up 2 under a set and a class, by keys without these two. One
// without a head says nothing.
type verdicts map[abi.WeirPolicyKey]abi.WeirPolicyValue

type policyEntry struct {
	key   abi.WeirPolicyKey
	value abi.WeirPolicyValue
}

var headKey = abi.WeirPolicyKey{Head: 1}

// denyAll is what denies everything by a rule.
func denyAll(rule uint32) verdicts { return verdicts{headKey: {Rule: rule}} }

// find returns the entry with the longest prefix that a key's prefix lies in, else the head.
func (v verdicts) find(k abi.WeirPolicyKey) abi.WeirPolicyValue {
	for n := int(k.Len); n >= 0; n-- {
		k.Len, k.Port = uint8(n), nodestate.MaskPort(k.Port, uint8(n))
		if e, ok := v[k]; ok {
			return e
		}
	}
	return v[abi.WeirPolicyKey{Head: 1, Sources: k.Sources}]
}

// under adds the entries as they are written for a set and a class.
func (v verdicts) under(out []policyEntry, set, class uint64) []policyEntry {
	for k, e := range v {
		k.Set, k.Peer = set, class
		out = append(out, policyEntry{k, e})
	}
	return out
}

// intersection makes the verdicts that allow what two others both allow.
type intersection struct {
	a, b, out verdicts
	tables    map[[2]uint16]uint16              // of source ports: that of each, 0 = allows all; and the number here
	bySources [2]map[uint16][]abi.WeirPolicyKey // of a and b
}

// intersect returns what both allow. A denial bears the rule of the one that denies. Where it would
// take more tables of source ports than have numbers, what is left is denied by no rule.
func intersect(a, b verdicts) verdicts {
	m := &intersection{a: a, b: b, out: verdicts{}, tables: map[[2]uint16]uint16{}, bySources: [2]map[uint16][]abi.WeirPolicyKey{a.bySources(), b.bySources()}}
	x, y := a[headKey], b[headKey]
	head := m.value(x, y)
	head.Protos, head.Lens = x.Protos|y.Protos, x.Lens|y.Lens
	m.out[headKey] = head
	for _, of := range []verdicts{a, b} {
		for k := range of {
			if k.Head == 0 && k.Sources == 0 {
				m.out[k] = m.value(a.find(k), b.find(k))
			}
		}
	}
	return m.out
}

// bySources returns the keys of the entries of each table of source ports.
func (v verdicts) bySources() map[uint16][]abi.WeirPolicyKey {
	var out map[uint16][]abi.WeirPolicyKey
	for k := range v {
		if k.Sources != 0 && k.Head == 0 {
			if out == nil {
				out = map[uint16][]abi.WeirPolicyKey{}
			}
			out[k.Sources] = append(out[k.Sources], k)
		}
	}
	return out
}

// value is what two verdicts on the same packets allow. It is logged where one of them is; a denial
// of all source ports does not ask the other's table of them.
func (m *intersection) value(x, y abi.WeirPolicyValue) abi.WeirPolicyValue {
	switch {
	case x.Sources == 0 && x.Verdict&abi.PolicyAllow == 0:
		return logged(x, y)
	case y.Sources == 0 && y.Verdict&abi.PolicyUndecided != 0 && x.Sources == 0:
		return logged(x, y) // an allowance of a packet by itself is one, before the change or after it
	case y.Sources == 0 && (y.Verdict&abi.PolicyAllow == 0 || x.Sources == 0):
		return logged(y, x)
	}
	key := [2]uint16{x.Sources, y.Sources}
	n, ok := m.tables[key]
	if !ok && len(m.tables) == sourceBase-1 {
		return abi.WeirPolicyValue{}
	}
	if !ok {
		n = uint16(len(m.tables) + 1)
		m.tables[key] = n
		m.table(n, x, y)
	}
	return abi.WeirPolicyValue{Sources: n}
}

// table makes a table of source ports.
func (m *intersection) table(n uint16, x, y abi.WeirPolicyValue) {
	side := func(v verdicts, of abi.WeirPolicyValue, k abi.WeirPolicyKey) abi.WeirPolicyValue {
		if of.Sources == 0 {
			return of
		}
		if k.Sources = of.Sources; k.Head != 0 {
			return v[k]
		}
		return v.find(k)
	}
	k := abi.WeirPolicyKey{Head: 1, Sources: n}
	hx, hy := side(m.a, x, k), side(m.b, y, k)
	head := m.value(plain(hx), plain(hy))
	if x.Sources != 0 {
		head.Lens |= hx.Lens
	}
	if y.Sources != 0 {
		head.Lens |= hy.Lens
	}
	m.out[k] = head
	for i, sources := range []uint16{x.Sources, y.Sources} {
		for _, k := range m.bySources[i][sources] {
			vx, vy := plain(side(m.a, x, k)), plain(side(m.b, y, k))
			k.Sources = n
			m.out[k] = m.value(vx, vy)
		}
	}
}

// plain is a verdict alone.
func plain(v abi.WeirPolicyValue) abi.WeirPolicyValue {
	return abi.WeirPolicyValue{Rule: v.Rule, Verdict: v.Verdict}
}

// logged is a verdict alone that is logged where another one is, too.
func logged(v, other abi.WeirPolicyValue) abi.WeirPolicyValue {
	v = plain(v)
	v.Verdict |= other.Verdict & abi.PolicyLog
	return v
}

// setClass names verdicts.
type setClass struct{ set, class uint64 }

// policyDiff are the verdicts that the sets have before and after, as far as a transition needs
// them.
type policyDiff struct {
	before, after setVerdicts
	rules         map[uint64]uint32
}

// setVerdicts are the verdicts of sets at one time.
type setVerdicts struct {
	by    map[setClass]verdicts
	heads map[uint64][]uint64 // by set: the classes with verdicts of their own
}

// policyDiff reads what the map has and is to get: for the sets and classes of a transition, and
// for more.
func (t *Node) policyDiff(s *survey, b *transition, more map[setClass]bool) *policyDiff {
	whole, classes := map[uint64]bool{}, map[uint64]bool{0: true}
	for c := range b.sets {
		whole[c.was], whole[c.is] = true, true
	}
	for c := range b.classes {
		classes[c.was], classes[c.is] = true, true
	}
	if len(b.classes) == 0 {
		clear(classes)
	}
	wanted := func(k abi.WeirPolicyKey) bool {
		return whole[k.Set] || classes[k.Peer] && (s.old[k.Set] || s.new[k.Set]) || len(more) > 0 && more[setClass{k.Set, k.Peer}]
	}
	h := &policyDiff{before: newSetVerdicts(), after: newSetVerdicts(), rules: s.rules}
	for k, v := range t.policy.Tracker.All() {
		if !wanted(k) {
			continue
		}
		h.before.note(k, v)
		if is, stays := t.policy.Tracker.Desired(k); stays {
			h.after.note(k, is)
		}
	}
	for k, v := range t.policy.Tracker.Writes() {
		if wanted(k) {
			h.after.note(k, v)
		}
	}
	h.before.complete()
	h.after.complete()
	return h
}

func newSetVerdicts() setVerdicts {
	return setVerdicts{by: map[setClass]verdicts{}, heads: map[uint64][]uint64{}}
}

func (y *setVerdicts) note(k abi.WeirPolicyKey, v abi.WeirPolicyValue) {
	at := setClass{k.Set, k.Peer}
	if y.by[at] == nil {
		y.by[at] = verdicts{}
	}
	k.Set, k.Peer = 0, 0
	y.by[at][k] = v
}

// FoundAll leaves out what has no head: it counts for nothing.
func (y *setVerdicts) complete() {
	for at, v := range y.by {
		if _, ok := v[headKey]; !ok {
			delete(y.by, at)
			continue
		}
		y.heads[at.set] = append(y.heads[at.set], at.class)
	}
}

// of returns what a set says of a class. No set allows everything.
func (y *setVerdicts) of(set, class uint64, rules map[uint64]uint32) verdicts {
	if set == 0 {
		return verdicts{headKey: {Verdict: abi.PolicyAllow}}
	}
	for _, c := range []uint64{class, 0} {
		if v := y.by[setClass{set, c}]; v != nil {
			return v
		}
	}
	return denyAll(rules[set])
}

// was and is are what a set says of a class before and after.
func (h *policyDiff) was(set, class uint64) verdicts { return h.before.of(set, class, h.rules) }
func (h *policyDiff) is(set, class uint64) verdicts  { return h.after.of(set, class, h.rules) }

// ownedWas and ownedIs report whether a set has verdicts on a class that are not those of everybody
// else.
func (h *policyDiff) ownedWas(set, class uint64) bool {
	return len(h.before.by[setClass{set, class}]) > 0
}
func (h *policyDiff) ownedIs(set, class uint64) bool {
	return len(h.after.by[setClass{set, class}]) > 0
}

// classes returns those on which a set before or one after has verdicts, and that of everybody
// else.
func (h *policyDiff) classes(c change) []uint64 {
	all := map[uint64]bool{0: true}
	for _, class := range h.before.heads[c.was] {
		all[class] = true
	}
	for _, class := range h.after.heads[c.is] {
		all[class] = true
	}
	return slices.Collect(maps.Keys(all))
}

func union(a, b map[uint64]bool) []uint64 {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Collect(maps.Keys(all))
}
