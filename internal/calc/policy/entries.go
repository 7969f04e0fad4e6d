// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/nodestate"
)

// setEntries is what of a set is in look-up 2.
type setEntries struct {
	set       *set
	zero      *decision
	silent    bool                       // class 0 has no entries
	decisions map[*peer.Class]evaluation // of the classes that it distinguishes from class 0
	size      int                        // entries; those of class 0 too when it has any
}

// evaluation is a decision about a class that had a number then; nil: decided as class 0.
type evaluation struct {
	id nodestate.Class
	*decision
}

// writeEntries puts the entries of the sets that are admitted into look-up 2. What is there already
// stays.
func (s *sets) writeEntries(p *tables) {
	all := slices.SortedFunc(maps.Values(s.byKey), func(a, b *set) int {
		return cmp.Or(last(!a.vital, !b.vital), last(!s.forHosts(a), !s.forHosts(b)), last(!s.inForce(a), !s.inForce(b)), strings.Compare(a.name, b.name))
	})
	w := &entryWriter{entries: p.policy.Edit(), ports: s.portAtoms(), classes: p.classes, measured: p.measured, measuredNow: map[nodestate.SetID]measure{},
		anew: p.ruleIDs.renumbered || p.classes.Renumbered}
	before, cut := p.written, map[string]nodestate.Rule{}
	p.refused, s.unfit, s.cutOff = nil, nil, false
	offers, offered := make([]*offer, 0, len(all)), make(map[nodestate.SetID]*set, len(all))
	for _, t := range all {
		if offered[t.id] != nil {
			continue
		}
		offered[t.id] = t
		was := before[t.id]
		if was != nil && w.anew {
			w.remove(t.id, was)
			was = nil
		}
		delete(before, t.id)
		offers = append(offers, &offer{set: t, was: was})
	}
	s.admit(p, w, offers)
	p.written, p.measured = make(map[nodestate.SetID]*setEntries, len(offers)), w.measuredNow
	for _, o := range offers {
		t, put := o.set, o.put
		o.put = nil // which holds what it would write
		if t.tooLarge = !o.ok; t.tooLarge {
			w.remove(t.id, o.was)
			p.refused = append(p.refused, t.id)
			if s.inForce(t) {
				s.cutOff = true
				s.isolate(t, nodestate.Isolation{Set: t.refusedSet, Rule: t.refusedID}, p)
				cut[t.refusedText] = t.refused
				s.unfit = append(s.unfit, t.refused)
			}
			continue
		}
		s.isolate(t, nodestate.Isolation{Set: t.id, Rule: t.denyID}, p)
		p.written[t.id] = put()
		delete(p.measured, t.id)
	}
	for _, t := range all {
		t.tooLarge = offered[t.id].tooLarge
	}
	for id, was := range before {
		w.remove(id, was)
	}
	p.names = s.nameTables()
	p.ruleIDs.setRefused(cut)
	p.ruleIDs.renumbered, p.classes.Renumbered = false, false
	p.classes.Added, p.classes.Removed = nil, nil
	p.policy = w.entries.Map()
}

// last orders what is true after what is not.
func last(a, b bool) int {
	if a == b {
		return 0
	}
	if a {
		return 1
	}
	return -1
}

// portAtoms returns the atoms in use by the names of ports that they are about.
func (s *sets) portAtoms() map[port.Name][]*peer.Atom {
	if len(s.named) == 0 {
		return nil
	}
	return s.atoms.ByPort()
}

// needsNetworks reports whether a rule of the set is about networks.
func (s *set) needsNetworks() bool {
	for a := range s.atoms() {
		for p := range a.Each() {
			if len(p.CIDRs) > 0 {
				return true
			}
		}
	}
	return false
}

// entryWriter is one change of look-up 2.
type entryWriter struct {
	entries nodestate.Editor[nodestate.PolicyKey, nodestate.PolicyValue]
	ports   map[port.Name][]*peer.Atom
	classes *peer.Classes
	anew    bool // ruleIDs of rules or classes became others

	measured, measuredNow map[nodestate.SetID]measure // of sets that are not written: before, and from now on
}

// plan prepares to write a set, of which something is written already or, where was is nil,
// nothing. It returns how many entries it has then, and what writes them and returns what is
// written; no such function when it takes more than most entries.
func (w *entryWriter) plan(t *set, was *setEntries, most int) (size int, put func() *setEntries) {
	if was != nil && was.set == t {
		return w.renew(t, was, map[*peer.Class]struct{}{}, most)
	}
	if was != nil {
		if before, after, ok := t.changedRules(was.set); ok {
			if concerned, ok := t.affectedClasses(slices.Concat(before, after)); ok {
				t.reuseIndex(was.set, len(before) == len(after))
				return w.renew(t, was, concerned, most)
			}
		}
	}
	now := t.decisions(w.ports, most)
	if now == nil {
		return 0, nil
	}
	return now.size, func() *setEntries { return w.put(t, was, now) }
}

// put writes a set's decisions in the place of what is written of it.
func (w *entryWriter) put(t *set, was, now *setEntries) *setEntries {
	if was == nil {
		now.each(t.id, w.entries.Set)
		return now
	}
	if !was.silent && (now.silent || !now.zero.equal(was.zero)) {
		was.zero.each(t.id, 0, func(k nodestate.PolicyKey, _ nodestate.PolicyValue) { w.entries.Delete(k) })
	}
	if !now.silent {
		now.zero.each(t.id, 0, w.set)
	}
	for c, j := range was.decisions {
		if is, still := now.decisions[c]; !still || !is.same(j) {
			w.replace(t.id, j, evaluation{})
		}
	}
	for c, j := range now.decisions {
		if had, was := was.decisions[c]; !was || !had.same(j) {
			w.replace(t.id, evaluation{}, j)
		}
	}
	return now
}

// renew decides anew what rules say of the concerned classes, and of those that came, and forgets
// those that went: see plan.
func (w *entryWriter) renew(t *set, was *setEntries, concerned map[*peer.Class]struct{}, most int) (total int, put func() *setEntries) {
	for _, c := range w.classes.Added {
		if t.distinguishes(c) {
			concerned[c] = struct{}{}
		}
	}
	changed, size := make(map[*peer.Class]evaluation, len(concerned)), was.size
	note := func(c *peer.Class, j evaluation) {
		if had := was.decisions[c]; had.decision != nil {
			size -= had.size
		}
		if changed[c] = j; j.decision != nil {
			size += j.size
		}
	}
	if was.zero.size > most {
		return 0, nil
	}
	for c := range concerned {
		d, ok := t.decide(c, most)
		if !ok {
			return 0, nil
		}
		j := evaluation{id: c.ID, decision: d}
		if d.equal(was.zero) {
			j.decision = nil
		}
		if had, known := was.decisions[c]; !known || !had.same(j) {
			note(c, j)
		}
	}
	for _, c := range w.classes.Removed {
		if _, known := was.decisions[c]; known {
			note(c, evaluation{})
		}
	}
	if size > most {
		return 0, nil
	}
	return size, func() *setEntries {
		for c, j := range changed { // first what goes: one that comes may have its number
			if j.id == 0 {
				w.replace(t.id, was.decisions[c], j)
				delete(was.decisions, c)
			}
		}
		for c, j := range changed {
			if j.id != 0 {
				w.replace(t.id, was.decisions[c], j)
				was.decisions[c] = j
			}
		}
		was.set, was.size = t, size
		return was
	}
}

// same reports whether two decisions have the same entries.
func (j evaluation) same(o evaluation) bool {
	if j.decision == nil || o.decision == nil {
		return j.decision == nil && o.decision == nil
	}
	return j.id == o.id && j.equal(o.decision)
}

// set writes an entry unless it is there.
func (w *entryWriter) set(k nodestate.PolicyKey, v nodestate.PolicyValue) {
	if have, ok := w.entries.Get(k); !ok || have != v {
		w.entries.Set(k, v)
	}
}

// replace makes the entries of a decision those of another.
func (w *entryWriter) replace(id nodestate.SetID, was, is evaluation) {
	now := map[nodestate.PolicyKey]struct{}{}
	if is.decision != nil {
		is.each(id, is.id, func(k nodestate.PolicyKey, v nodestate.PolicyValue) {
			w.set(k, v)
			now[k] = struct{}{}
		})
	}
	if was.decision != nil {
		was.each(id, was.id, func(k nodestate.PolicyKey, _ nodestate.PolicyValue) {
			if _, stays := now[k]; !stays {
				w.entries.Delete(k)
			}
		})
	}
}

// remove takes all entries of a set out.
func (w *entryWriter) remove(id nodestate.SetID, was *setEntries) {
	was.each(id, func(k nodestate.PolicyKey, _ nodestate.PolicyValue) { w.entries.Delete(k) })
}

// decisions returns what is to be written for which classes; nil when it is more than most entries.
// Class 0 has a head when rules without peers decide something; another class has one when it is
// decided otherwise than class 0.
func (s *set) decisions(ports map[port.Name][]*peer.Atom, most int) *setEntries {
	zero, ok := s.decide(nil, most)
	if !ok {
		return nil
	}
	now := &setEntries{set: s, zero: zero, decisions: map[*peer.Class]evaluation{}}
	nothing := decision{head: verdict{rule: s.denyID}}
	if now.silent = zero.equal(&nothing); !now.silent {
		now.size = zero.size
	}
	for c := range s.classes(ports) {
		j := evaluation{id: c.ID}
		if j.decision, ok = s.decide(c, most); !ok {
			return nil
		}
		if j.equal(zero) {
			j.decision = nil
		}
		now.decisions[c] = j
		if j.decision != nil {
			now.size += j.decision.size
		}
		if now.size > most {
			return nil
		}
	}
	return now
}

// each calls f for every entry.
func (w *setEntries) each(id nodestate.SetID, f func(nodestate.PolicyKey, nodestate.PolicyValue)) {
	if w == nil {
		return
	}
	if !w.silent {
		w.zero.each(id, 0, f)
	}
	for _, j := range w.decisions {
		if j.decision != nil {
			j.each(id, j.id, f)
		}
	}
}
