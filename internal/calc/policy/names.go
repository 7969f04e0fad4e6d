// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// A set whose rules have domain names is compiled without them, and once more for each group of
// patterns that the same rules have, as if these were about every address: see
// docs/design/domain-names.md.

// nameSet is what a set says where a name of some patterns led to the address.
type nameSet struct {
	patterns []string
	set      *set
}

// setNames are the sets of the names in a set's rules.
type setNames struct {
	atoms    []*peer.Atom // that names may make true, by their texts
	patterns string       // that these have
	made     map[string]*set
	all      []*nameSet
}

// bindNames finds or makes the sets of a set's names.
func (s *sets) bindNames(t *set) {
	if _, bound := s.domains[t]; !bound {
		s.domains[t] = t.byNames()
	}
	for _, n := range s.domains[t] {
		s.byKey[n.set.name] = n.set // no key of a set of endpoints begins as a name does
		s.owners[n.set] = s.owners[t]
	}
}

// byNames returns the sets of the names in a set's rules. Which names these are changes with
// network sets.
func (t *set) byNames() []*nameSet {
	if t.names == nil {
		t.names = &setNames{atoms: peer.Named(t.atoms())}
	}
	n := t.names
	if patterns := peer.PatternsOf(n.atoms); patterns != n.patterns {
		before := n.made
		n.patterns, n.all, n.made = patterns, nil, map[string]*set{}
		for text, g := range peer.GroupByName(n.atoms) {
			if n.made[text] = before[text]; n.made[text] == nil {
				n.made[text] = t.with(g.Atoms, text)
			}
			n.all = append(n.all, &nameSet{patterns: g.Patterns, set: n.made[text]})
		}
	}
	return n.all
}

// with returns the set with some atoms true of every address; text says which.
func (t *set) with(atoms []*peer.Atom, text string) *set {
	out := &set{dir: t.dir, of: t.of, name: "domain names\n" + text + t.name, deny: t.deny, six: t.six, passed: t.passed, denied: t.denied, ofNames: t}
	out.refused = t.refused
	out.refused.Detail += " domain names"
	for _, tier := range t.tiers {
		tier.rules = slices.Clone(tier.rules)
		for i, r := range tier.rules {
			tier.rules[i] = r.with(atoms)
		}
		out.tiers = append(out.tiers, tier)
	}
	return out
}

// with returns the rule with some atoms true of every address: itself where it has none of them.
func (r *setRule) with(atoms []*peer.Atom) *setRule {
	holds := func(c peer.Clause) bool { return c.TrueWith(atoms) }
	if !slices.ContainsFunc(r.others, holds) {
		return r
	}
	always := *r.rule
	always.others, always.everywhere = slices.DeleteFunc(slices.Clone(r.others), holds), nil
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
				out.Patterns[pattern], out.Texts[id] = id, pattern
				out.Sets[nodestate.NameKey{Set: t.id, Name: id}] = n.set.id
			}
		}
	}
	return out
}
