// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/nodestate"
)

// updateCIDRs takes the CIDRs of atoms into the regions, and returns the prefixes in which
// something changed thereby.
func (k *Classes) updateCIDRs(x *Atoms, gone []*Atom) *touched {
	t := &touched{Prefixes: cluster.NewPrefixes[struct{}]()}
	for _, a := range gone {
		for p := range a.Each() {
			k.partition.remove(p, p.CIDRs, p.Except)
			t.add(p.CIDRs, p.Except)
		}
	}
	for _, m := range x.moved {
		k.partition.remove(m.Atom, m.cidrs, m.Except)
		k.partition.add(m.Atom, m.Atom.CIDRs, m.Except)
		t.add(m.cidrs, m.Atom.CIDRs, m.Except)
	}
	for _, a := range x.added {
		for p := range a.Each() {
			k.partition.add(p, p.CIDRs, p.Except)
			t.add(p.CIDRs, p.Except)
		}
	}
	return t
}

// touched are prefixes in which something changed.
type touched struct {
	*cluster.Prefixes[struct{}]
}

func (t *touched) add(lists ...[]netip.Prefix) {
	for _, list := range lists {
		for _, p := range list {
			t.Set(p, struct{}{})
		}
	}
}

func (t *touched) contains(a netip.Addr) bool {
	if len(t.Values) <= 8 {
		for p := range t.Values {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	_, is := t.Lookup(a)
	return is
}

func (t *touched) within(p netip.Prefix) (is bool) {
	t.Containing(p, func(netip.Prefix, struct{}) bool { is = true; return false })
	return is
}

// updateRegions gives the regions within touched prefixes their classes.
func (k *Classes) updateRegions(t *touched) {
	if len(t.Values) == 0 {
		return
	}
	for p := range t.Values {
		if !k.partition.boundary(p) {
			k.swap(k.cidrs.Values[p], nil)
			delete(k.cidrs.Values, p)
		} else if _, is := k.cidrs.Values[p]; !is {
			k.cidrs.Set(p, nil)
		}
	}
	for p, was := range k.cidrs.Values {
		if t.within(p) {
			now := k.of(k.partition.at(p))
			k.swap(was, now)
			k.cidrs.Values[p] = now
		}
	}
}

// writeCIDRs renews the part of look-up 1 that is about touched prefixes, or all of it.
func (k *Classes) writeCIDRs(t *touched, all bool) {
	if len(t.Values) == 0 && !all {
		return
	}
	k.OfCIDRs = maps.Clone(k.OfCIDRs)
	for p := range t.Values {
		delete(k.OfCIDRs, p)
	}
	for p, c := range k.cidrs.Values {
		if !all && !t.within(p) {
			continue
		}
		delete(k.OfCIDRs, p)
		if c == k.enclosing(p) {
			continue
		}
		var id nodestate.Class
		if c != nil {
			id = c.ID
		}
		k.OfCIDRs[p] = id
	}
}

// enclosing returns the class of the smallest region around p, p itself not counted.
func (k *Classes) enclosing(p netip.Prefix) (around *Class) {
	k.cidrs.Containing(p, func(q netip.Prefix, v *Class) bool {
		if q == p {
			return true
		}
		around = v
		return false
	})
	return around
}
