// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/peer"
)

// Two sets of one name have the same policies. Where a few of their rules differ, only what these
// rules are about has to be decided again.

// changedRules returns the rules of a set before, and of this one, between the first and the last
// that differ in each tier. ok is false where something else differs, so that everything may be
// decided otherwise.
func (s *set) changedRules(was *set) (before, after []*setRule, ok bool) {
	if s.dir != was.dir || s.six != was.six || s.denied != was.denied || s.denyID != was.denyID || s.passedID != was.passedID || len(s.tiers) != len(was.tiers) {
		return nil, nil, false
	}
	for t := range s.tiers {
		a, b := &was.tiers[t], &s.tiers[t]
		if a.pass != b.pass || a.denyID != b.denyID {
			return nil, nil, false
		}
		most, first := min(len(a.rules), len(b.rules)), 0
		for first < most && a.rules[first].same(b.rules[first]) {
			first++
		}
		last := 0
		for last < most-first && a.rules[len(a.rules)-1-last].same(b.rules[len(b.rules)-1-last]) {
			last++
		}
		before = append(before, a.rules[first:len(a.rules)-last]...)
		after = append(after, b.rules[first:len(b.rules)-last]...)
		if len(a.rules) != len(b.rules) && len(before) == len(after) {
			return nil, nil, false // one tier lost what another won: their rules are elsewhere
		}
	}
	return before, after, true
}

// same reports whether two rules decide the same, by the same number.
func (r *setRule) same(o *setRule) bool {
	if r == o {
		return true
	}
	if r.rule != o.rule {
		if r.text == "" || r.text != o.text || r.name != o.name || r.id != o.id || r.of.Action != o.of.Action ||
			!slices.EqualFunc(r.others, o.others, slices.Equal[peer.Clause]) {
			return false
		}
	}
	return r.dst.Equal(&o.dst) && r.src.Equal(&o.src)
}

// affectedClasses returns the classes that some of these rules may be about. ok is false when a
// rule is not about certain ones.
func (s *set) affectedClasses(rules []*setRule) (of map[*peer.Class]struct{}, ok bool) {
	of = map[*peer.Class]struct{}{}
	for _, r := range rules {
		wants := r.requiredClause()
		if wants < 0 {
			return nil, false
		}
		for _, l := range r.others[wants] {
			for c := range l.Atom.Classes {
				of[c] = struct{}{}
			}
		}
	}
	return of, true
}

// requiredClause returns the first clause that asks for atoms to be true alone, -1 when there is
// none.
func (r *rule) requiredClause() int {
	return slices.IndexFunc(r.others, func(x peer.Clause) bool {
		return !slices.ContainsFunc(x, func(l peer.Literal) bool { return l.Not })
	})
}

// reuseIndex takes over the index of a set before, when rules are where they were.
func (s *set) reuseIndex(was *set, places bool) {
	if s == was || was.byAtom == nil || !places {
		return
	}
	s.byAtom, s.unindexed, was.byAtom, was.unindexed = was.byAtom, was.unindexed, nil, nil
	for t := range s.tiers {
		a, b := was.tiers[t].rules, s.tiers[t].rules
		for i := range b {
			if a[i].rule == b[i].rule || slices.EqualFunc(a[i].others, b[i].others, slices.Equal[peer.Clause]) {
				continue
			}
			at := rulePlace{int32(t), int32(i)}
			for _, l := range a[i].others[a[i].requiredClause()] {
				if left := slices.DeleteFunc(slices.Clone(s.byAtom[l.Atom]), func(p rulePlace) bool { return p == at }); len(left) > 0 {
					s.byAtom[l.Atom] = left
				} else {
					delete(s.byAtom, l.Atom)
				}
			}
			for _, l := range b[i].others[b[i].requiredClause()] {
				s.byAtom[l.Atom] = append(s.byAtom[l.Atom], at)
			}
		}
	}
}

// distinguishes reports whether the rules may treat a class unlike class 0.
func (s *set) distinguishes(c *peer.Class) bool {
	if s.byAtom == nil {
		s.index()
	}
	return len(s.unindexed) > 0 || slices.ContainsFunc(c.Atoms, func(a *peer.Atom) bool { return len(s.byAtom[a]) > 0 })
}
