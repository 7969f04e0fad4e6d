// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"iter"
	"slices"
	"strings"
)

// Named returns the atoms that domain names may make true, each once, by their texts.
func Named(all iter.Seq[*Atom]) (out []*Atom) {
	for a := range all {
		if a.domains != nil || len(a.Domains) > 0 {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *Atom) int { return strings.Compare(a.Text, b.Text) })
	return slices.Compact(out)
}

// PatternsOf says which patterns atoms have.
func PatternsOf(atoms []*Atom) string {
	var out strings.Builder
	for _, a := range atoms {
		out.WriteString(strings.Join(a.Domains, " ") + "\n")
	}
	return out.String()
}

// NameGroup are patterns that the same atoms have.
type NameGroup struct {
	Patterns []string
	Atoms    []*Atom
}

// GroupByName returns the patterns of atoms, those together that the same ones have, by what says
// which these are.
func GroupByName(atoms []*Atom) map[string]*NameGroup {
	have := map[string][]*Atom{}
	for _, a := range atoms {
		for _, pattern := range a.Domains {
			have[pattern] = append(have[pattern], a)
		}
	}
	out := map[string]*NameGroup{}
	for pattern, atoms := range have {
		text := ""
		for _, a := range atoms {
			text += a.Text + "\n"
		}
		if out[text] == nil {
			out[text] = &NameGroup{Atoms: atoms}
		}
		out[text].Patterns = append(out[text].Patterns, pattern)
	}
	return out
}
