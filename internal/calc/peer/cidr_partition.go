// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
)

// cidrPartition knows which CIDR atoms are true between the boundaries of CIDRs and excepts.
type cidrPartition struct {
	cidrs, excepts *cluster.Prefixes[[]*Atom]
}

func newCIDRPartition() *cidrPartition {
	return &cidrPartition{cidrs: cluster.NewPrefixes[[]*Atom](), excepts: cluster.NewPrefixes[[]*Atom]()}
}

func (r *cidrPartition) add(a *Atom, cidrs, excepts []netip.Prefix) {
	for _, p := range cidrs {
		r.cidrs.Set(p, append(r.cidrs.Values[p], a))
	}
	for _, p := range excepts {
		r.excepts.Set(p, append(r.excepts.Values[p], a))
	}
}

func (r *cidrPartition) remove(a *Atom, cidrs, excepts []netip.Prefix) {
	without := func(of *cluster.Prefixes[[]*Atom], p netip.Prefix) {
		left := slices.DeleteFunc(of.Values[p], func(x *Atom) bool { return x == a })
		if len(left) == 0 {
			delete(of.Values, p)
		} else {
			of.Values[p] = left
		}
	}
	for _, p := range cidrs {
		without(r.cidrs, p)
	}
	for _, p := range excepts {
		without(r.excepts, p)
	}
}

// boundary reports whether a region begins at a prefix.
func (r *cidrPartition) boundary(p netip.Prefix) bool {
	return len(r.cidrs.Values[p]) > 0 || len(r.excepts.Values[p]) > 0
}

// at returns the atoms that are true of the region of a prefix: of its addresses that no longer
// prefix contains.
func (r *cidrPartition) at(p netip.Prefix) []*Atom {
	var excluded map[*Atom]bool
	r.excepts.Containing(p, func(_ netip.Prefix, of []*Atom) bool {
		if excluded == nil {
			excluded = map[*Atom]bool{}
		}
		for _, a := range of {
			excluded[a] = true
		}
		return true
	})
	var out []*Atom
	r.cidrs.Containing(p, func(_ netip.Prefix, of []*Atom) bool {
		for _, a := range of {
			if !excluded[a] {
				out = append(out, a.all())
			}
		}
		return true
	})
	return out
}
