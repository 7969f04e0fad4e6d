// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// Atom is one question about a peer whose answer some rule in use depends on: is it picked by this
// selector, is it in one of these CIDRs, does it call this port by this name. It is true of the
// addresses of the pods that it picks, and of those in CIDRs but not in Except.
type Atom struct {
	Text    string              // says what it asks: equal texts are one atom
	Index   int32               // its number for as long as it is in use
	CIDRs   []netip.Prefix      // networks that it is true of
	Except  []netip.Prefix      // but not in these
	Classes map[*Class]struct{} // in which it is true
	// Domains are patterns of domain names. The addresses that they lead to are known to the data
	// plane alone: here the atom is true of none, and of all of them in a set of policy/names.go.
	// An atom that has some has nothing else.
	Domains []string

	pods   *model.Selector
	expr   *selector.Selector
	named  *port.Name // with number
	number port.Number

	digest string // see name

	parts []*Atom // it is true where one of these is; they are of no other atom and not interned
	whole *Atom   // of a part: the atom

	// What CIDRs are made from, where that may change.
	nodes   *model.LabelSelector // the addresses of nodes with these labels
	service model.Name           // those of the endpoints of a Service
	domains *selector.Selector   // Domains are those of the network sets that this picks
	round   uint64               // the computation that used it last
}

// maxAtomName is how long the text of an atom may be in those of classes.
const maxAtomName = 256

// name is an atom's text, or what is short and made of it: a tenant's few lists of thousands of
// networks or labels may make thousands of classes.
func (a *Atom) name() string {
	if len(a.Text) > maxAtomName && a.digest == "" {
		sum := sha256.Sum256([]byte(a.Text))
		a.digest = "digest " + hex.EncodeToString(sum[:])
	}
	return cmp.Or(a.digest, a.Text)
}

// picksPods reports whether the atom asks about pods.
func (a *Atom) picksPods() bool {
	return a.pods != nil || a.expr != nil || a.named != nil || slices.ContainsFunc(a.parts, (*Atom).picksPods)
}

// asksNamespaces and asksAccounts report whether the answer may depend on the labels of namespaces,
// or of service accounts.
func (a *Atom) asksNamespaces() bool {
	return a.pods != nil && a.pods.Namespace == "" && a.pods.Namespaces != nil && len(a.pods.Namespaces.Requirements) > 0 ||
		a.expr != nil && LooksAt(a.expr, model.PrefixNamespace) || slices.ContainsFunc(a.parts, (*Atom).asksNamespaces)
}

func (a *Atom) asksAccounts() bool { return a.expr != nil && LooksAt(a.expr, model.PrefixAccount) }

// trueOf reports whether an atom about pods is true of a pod.
func (a *Atom) trueOf(c *cluster.View, pod *model.Pod) bool {
	switch {
	case a.pods != nil:
		return Selects(c, a.pods, pod)
	case a.expr != nil:
		return a.expr.MatchesFunc(PodLabels(c, pod))
	case a.named != nil:
		return slices.Contains(port.OfPod(pod, *a.named), a.number)
	}
	return slices.ContainsFunc(a.parts, func(p *Atom) bool { return p.trueOf(c, pod) })
}

// Literal is an atom, or that it is not true.
type Literal struct {
	Atom *Atom
	Not  bool // it is not true
}

// Text is a line of a rule's text. Of domain names of network sets it has nothing: the expression
// that picks the sets says so.
func (l Literal) Text() string {
	switch {
	case l.Atom.domains != nil:
		return ""
	case l.Not:
		return "\n    not " + l.Atom.Text
	}
	return "\n    " + l.Atom.Text
}

// Clause is true where one of its literals is; an empty one never is.
type Clause []Literal

// TrueOf reports whether it is true of a class, nil for class 0.
func (l Clause) TrueOf(c *Class) bool {
	return slices.ContainsFunc(l, func(x Literal) bool { return (c != nil && c.has(x.Atom)) != x.Not })
}

// TrueByName reports whether it is true because one of these patterns of domain names led to the
// address.
func (l Clause) TrueByName(patterns []string) bool {
	return slices.ContainsFunc(l, func(x Literal) bool {
		return !x.Not && slices.ContainsFunc(x.Atom.Domains, func(d string) bool { return slices.Contains(patterns, d) })
	})
}

// TrueWith reports whether it is true where one of these atoms is.
func (l Clause) TrueWith(atoms []*Atom) bool {
	return slices.ContainsFunc(l, func(x Literal) bool { return !x.Not && slices.Contains(atoms, x.Atom) })
}

// Networks is how many CIDRs an atom is made of.
func (a *Atom) Networks() (n int) {
	if a.parts == nil {
		return len(a.CIDRs) + len(a.Except)
	}
	for p := range a.Each() {
		n += len(p.CIDRs) + len(p.Except)
	}
	return n
}

// Each calls f for the parts of an atom, or for itself where it has none.
func (a *Atom) Each() iter.Seq[*Atom] {
	return func(yield func(*Atom) bool) {
		if a.parts == nil {
			yield(a)
			return
		}
		for _, p := range a.parts {
			if !yield(p) {
				return
			}
		}
	}
}

// all returns the atom that a part is of, or itself.
func (a *Atom) all() *Atom {
	if a.whole != nil {
		return a.whole
	}
	return a
}
