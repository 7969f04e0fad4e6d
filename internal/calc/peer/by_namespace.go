// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// maxChosen is how many atoms are kept for all namespaces together, 8 bytes each, before they are
// chosen anew: a selector may pick all of a cluster's namespaces.
const maxChosen = 1 << 17

// byNamespace keeps which atoms can be true of the pods of a namespace, so that a pod whose labels
// change is not held against the peers of all other namespaces. It is made for the atoms that there
// are, and cleared where some come or go.
type byNamespace struct {
	made       bool
	everywhere []*Atom            // can be true of pods of any namespace
	named      map[string][]*Atom // of those of one that they name
	others     []*Atom            // depends on the namespace's labels, or on more than one name

	chosen map[string]chosen // of others
	kept   int               // atoms in chosen
}

// chosen are the atoms that the labels of a namespace make true of some of its pods.
type chosen struct {
	from  *model.Namespace // nil = it was not known
	atoms []*Atom
}

// clear forgets everything.
func (b *byNamespace) clear() { *b = byNamespace{} }

// sort divides the atoms.
func (b *byNamespace) sort(x *Atoms) {
	*b = byNamespace{made: true, named: map[string][]*Atom{}, chosen: map[string]chosen{}}
	for _, a := range x.byText {
		switch name := a.namespace(); {
		case !a.picksPods():
		case name != "":
			b.named[name] = append(b.named[name], a)
		case a.picksAnywhere():
			b.everywhere = append(b.everywhere, a)
		default:
			b.others = append(b.others, a)
		}
	}
}

// of calls f for the atoms that can be true of pods of a namespace.
func (b *byNamespace) of(c *cluster.View, x *Atoms, name string, f func(*Atom)) {
	if !b.made {
		b.sort(x)
	}
	ns := c.Namespaces[name]
	list, is := b.chosen[name]
	if !is || list.from != ns {
		b.kept -= len(list.atoms)
		list = chosen{from: ns}
		for _, a := range b.others {
			if a.picksIn(c, name) {
				list.atoms = append(list.atoms, a)
			}
		}
		list.atoms = slices.Clip(list.atoms)
		if b.kept+len(list.atoms) > maxChosen {
			clear(b.chosen)
			b.kept = 0
		}
		b.chosen[name] = list
		b.kept += len(list.atoms)
	}
	for _, atoms := range [...][]*Atom{b.everywhere, b.named[name], list.atoms} {
		for _, a := range atoms {
			f(a)
		}
	}
}

// namespace returns the only namespace whose pods the atom can be true of; empty: there is none
// that its text says.
func (a *Atom) namespace() string {
	switch {
	case a.pods != nil:
		return a.pods.Namespace
	case a.expr != nil:
		if label, value, ok := a.expr.Requires(); ok && label == model.LabelNamespace {
			return value
		}
	}
	return ""
}

// picksAnywhere reports whether the atom can be true of pods whatever their namespace is.
func (a *Atom) picksAnywhere() bool {
	switch {
	case a.pods != nil:
		return a.pods.Namespace == "" && (a.pods.Namespaces == nil || len(a.pods.Namespaces.Requirements) == 0)
	case a.expr != nil:
		return a.namespace() == ""
	case a.named != nil:
		return true
	}
	return slices.ContainsFunc(a.parts, (*Atom).picksAnywhere)
}

// picksIn reports whether the atom can be true of pods of a namespace, as its labels are now.
func (a *Atom) picksIn(c *cluster.View, name string) bool {
	switch {
	case a.pods != nil:
		if a.pods.Namespace != "" {
			return a.pods.Namespace == name
		}
		return NamespaceMatches(c, a.pods.Namespaces, name)
	case a.expr != nil:
		only := a.namespace()
		return only == "" || only == name
	case a.named != nil:
		return true
	}
	return slices.ContainsFunc(a.parts, func(p *Atom) bool { return p.picksIn(c, name) })
}
