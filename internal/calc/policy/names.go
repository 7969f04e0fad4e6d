// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Which addresses a domain name has only the data plane knows, as its answers pass. So a set whose
// rules have names is compiled without them, and once more for each group of patterns that the same
// rules have: as if these rules were about every address. Rules with names allow and do nothing
// else (watch), so of an address to which several names led the sets of all of them may be asked
// one after the other: it is allowed where one of them allows it.

// nameSet is what a set says where a name of some patterns led to the address.
type nameSet struct {
	patterns []string
	set      *set
}

// bindNames finds or makes the sets of a set's names.
func (s *sets) bindNames(t *set) {
	if _, bound := s.domains[t]; bound {
		return
	}
	s.domains[t] = t.byNames()
	for _, n := range t.nameSets {
		s.byKey[n.set.name] = n.set // no key of a set of endpoints begins as a name does
		s.owners[n.set] = s.owners[t]
	}
}

// byNames returns the sets of the names in a set's rules.
func (t *set) byNames() []*nameSet {
	if t.nameSets != nil {
		return t.nameSets
	}
	t.nameSets = []*nameSet{}
	groups := map[string][]*peer.Atom{} // the atoms that have a pattern
	for _, a := range t.domainAtoms() {
		for _, pattern := range a.Domains {
			groups[pattern] = append(groups[pattern], a)
		}
	}
	made := map[string]*nameSet{}
	for pattern, atoms := range groups {
		var text strings.Builder
		for _, a := range atoms {
			text.WriteString(a.Text + "\n")
		}
		n := made[text.String()]
		if n == nil {
			n = &nameSet{set: t.with(atoms, text.String())}
			made[text.String()] = n
			t.nameSets = append(t.nameSets, n)
		}
		n.patterns = append(n.patterns, pattern)
	}
	return t.nameSets
}

// domainAtoms returns the atoms about domain names that rules of the set ask, each once, by text.
func (t *set) domainAtoms() (out []*peer.Atom) {
	for i := range t.tiers {
		for _, r := range t.tiers[i].rules {
			for _, c := range r.others {
				for _, l := range c {
					if len(l.Atom.Domains) > 0 {
						out = append(out, l.Atom)
					}
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b *peer.Atom) int { return strings.Compare(a.Text, b.Text) })
	return slices.Compact(out)
}

// with returns the set with some atoms true of every address; text says which.
func (t *set) with(atoms []*peer.Atom, text string) *set {
	out := &set{dir: t.dir, of: t.of, name: "domain names\n" + text + t.name, deny: t.deny, six: t.six, passed: t.passed, denied: t.denied, ofNames: t}
	out.refused = t.refused
	out.refused.Detail += " domain names"
	for _, tier := range t.tiers {
		rules := make([]*setRule, len(tier.rules))
		for i, r := range tier.rules {
			rules[i] = r.with(atoms)
		}
		tier.rules = rules
		out.tiers = append(out.tiers, tier)
	}
	return out
}

// with returns the rule with some atoms true of every address: itself where it has none of them.
func (r *setRule) with(atoms []*peer.Atom) *setRule {
	holds := func(c peer.Clause) bool {
		return slices.ContainsFunc(c, func(l peer.Literal) bool { return !l.Not && slices.Contains(atoms, l.Atom) })
	}
	if !slices.ContainsFunc(r.others, holds) {
		return r
	}
	always := *r.rule
	always.others = slices.DeleteFunc(slices.Clone(r.others), holds)
	always.everywhere = nil
	if always.base == nil {
		always.base = r.rule
	}
	return &setRule{rule: &always, dst: r.dst, src: r.src, on: r.on}
}

// nameTables returns the patterns and the sets that are written.
func (s *sets) nameTables() nodestate.Names {
	out := nodestate.NewNames()
	for t, of := range s.domains {
		for _, n := range of {
			if t.tooLarge || n.set.tooLarge {
				continue // what is not there allows nothing
			}
			for _, pattern := range n.patterns {
				id := table.Digest64[nodestate.NameID]("domain name " + pattern)
				out.Patterns[pattern] = id
				out.Sets[nodestate.NameKey{Set: t.id, Name: id}] = n.set.id
			}
		}
	}
	return out
}
