// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What the policies of a namespace name costs others in two tables: networks (look-up 1), and
// classes, of which each takes entries of every set whose rules are about it. Both are asked for by
// policies, not by sets. One that is held back makes neither: what it selects is cut off in that
// direction.

// policySide is a policy in one direction.
type policySide struct {
	dir direction
	id  model.PolicyID
}

// policyAtoms is a policy of a namespace in one direction, with what its rules ask about the other
// end.
type policyAtoms struct {
	policySide
	created int64
	atoms   []*peer.Atom
}

func comparePolicyAtoms(a, b *policyAtoms) int {
	return cmp.Or(strings.Compare(a.id.Name.Namespace, b.id.Name.Namespace), cmp.Compare(a.created, b.created), strings.Compare(a.id.Name.Name, b.id.Name.Name),
		strings.Compare(a.id.Kind, b.id.Kind), cmp.Compare(a.dir, b.dir))
}

// policyAtoms returns the policies of namespaces that bind endpoints here, by namespace and the
// oldest first, without what policies of the cluster and host endpoints ask, too.
func (s *sets) policyAtoms() []*policyAtoms {
	var all []*policyAtoms
	wide := map[*peer.Atom]bool{}
	ports := s.portAtoms()
	for dir := range directions {
		for p, b := range s.compiled[dir] {
			x := &policyAtoms{policySide: policySide{dir, p.ID()}, created: p.Created}
			for _, r := range b.rules {
				for _, c := range r.others {
					for _, l := range c {
						x.atoms = append(x.atoms, l.Atom)
					}
				}
			}
			for _, n := range b.asked {
				x.atoms = append(x.atoms, ports[n]...)
			}
			if p.Name.Namespace != "" {
				all = append(all, x)
				continue
			}
			for _, a := range x.atoms {
				wide[a] = true
			}
		}
	}
	for t := range s.hosts {
		for a := range t.atoms() {
			wide[a] = true
		}
	}
	for _, x := range all {
		slices.SortFunc(x.atoms, func(a, b *peer.Atom) int { return int(a.Index - b.Index) })
		x.atoms = slices.DeleteFunc(slices.Compact(x.atoms), func(a *peer.Atom) bool { return wide[a] })
	}
	slices.SortFunc(all, comparePolicyAtoms)
	return all
}

// withholdNetworks returns the policies of namespaces whose networks do not fit alongside those of
// the cluster's policies, and notes of which namespaces they are. Staged policies are left out
// first.
func (s *sets) withholdNetworks(p *tables) map[policySide]bool {
	p.overNetworks = nil
	if s.atoms.Networks <= p.maxNetworks || len(s.pairs)+len(s.hostPairs) > 0 {
		return nil
	}
	all := s.policyAtoms()
	own := map[*peer.Atom]bool{}
	left := p.maxNetworks - s.atoms.Networks
	var claims []table.Claim
	var of []*policyAtoms
	for _, x := range all {
		n := 0
		for _, a := range x.atoms {
			size := a.Networks()
			if n += size; !own[a] {
				own[a] = true
				left += size
			}
		}
		if n > 0 {
			claims = append(claims, table.Claim{Owner: x.id.Name.Namespace, Created: x.created, Name: x.dir.String() + " " + x.id.Kind + " " + x.id.Name.Name, Size: n})
			of = append(of, x)
		}
	}
	total := max(0, left)
	out, owners := map[policySide]bool{}, map[string]*nodestate.Overdrawn{}
	for i, as := range table.Grant(total, claims) {
		o := owners[claims[i].Owner]
		if o == nil {
			o = &nodestate.Overdrawn{Namespace: claims[i].Owner, Table: "networks", Share: total / table.ShareParts, Total: total}
			owners[claims[i].Owner] = o
		}
		if o.Asked += claims[i].Size; as != table.Refused {
			o.Granted += claims[i].Size
		} else {
			o.Refused++
			out[of[i].policySide] = true
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(owners)) {
		if o := owners[ns]; o.Refused > 0 {
			o.Reserved = table.Reserved(total, len(owners))
			p.overNetworks = append(p.overNetworks, *o)
		}
	}
	return out
}

// withholds reports whether one of some policies is held back.
func (s *sets) withholds(dir direction, policies []*model.Policy) bool {
	return slices.ContainsFunc(policies, func(p *model.Policy) bool {
		side := policySide{dir, p.ID()}
		return s.withheld[side] || s.before.withheld[side]
	})
}

// closedSet finds or makes the set of policies of which one is held back: it is never written, and
// asks for nothing.
func (s *sets) closedSet(dir direction, policies []*model.Policy) *set {
	var key strings.Builder
	key.WriteString(dir.String() + " closed")
	list := make([]*bound, len(policies))
	for i, p := range policies {
		key.WriteString(" " + p.Kind + " " + p.Name.String())
		list[i] = &bound{policy: p}
	}
	t := s.byKey[key.String()]
	if t == nil {
		t = s.newSet(dir, list, nil, false, nil)
		t.name, t.closed = "closed\n"+t.name, true
		s.byKey[key.String()] = t
	}
	return t
}
