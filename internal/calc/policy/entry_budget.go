// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Bounds on the work of one computation, in ranges of ports to look at: what asks for more is
// refused before it is done.
const (
	maxSetWork   = 1 << 23
	maxOwnerWork = 1 << 25
)

// offer is a set with what it would take of look-up 2.
type offer struct {
	set     *set
	was     *setEntries
	owner   string // the namespace that is charged
	created int64
	size    int
	known   bool               // size was looked for, and is no more than a set may have
	put     func() *setEntries // writes it
	ok      bool               // it is to be written
}

// admit decides which sets are written: those of host endpoints first, which tenants' policies must
// not push out, then what namespaces are granted, then what staged policies alone make.
func (s *sets) admit(p *tables, w *entryWriter, offers []*offer) {
	left := p.limits.Entries
	p.hostOffers = nil
	var tenants []*offer
	for _, o := range offers {
		if o.set.closed {
			continue
		}
		if s.forHosts(o.set) {
			s.admitOne(p, w, o, &left)
			p.hostOffers = append(p.hostOffers, o)
		} else if s.inForce(o.set) {
			o.owner, o.created = s.ownerOf(o.set), s.createdAt(o.set)
			tenants = append(tenants, o)
		}
	}
	s.admitTenants(p, w, tenants, left)
	p.tenants, p.tenantRoom, p.tenantsChanged = tenants, left, true
	for _, o := range tenants {
		if o.ok {
			left -= o.size
		}
	}
	for _, o := range offers {
		if !o.set.closed && !s.forHosts(o.set) && !s.inForce(o.set) {
			s.admitOne(p, w, o, &left)
		}
	}
}

// admitOne admits a set if it fits.
func (s *sets) admitOne(p *tables, w *entryWriter, o *offer, left *int) {
	if o.ok = p.networksFit(s, o.set) && w.measure(o) && o.size <= *left; o.ok {
		*left -= o.size
	}
}

// admitTenants admits what namespaces are granted of total entries, and notes who is refused
// something.
func (s *sets) admitTenants(p *tables, w *entryWriter, tenants []*offer, total int) {
	slices.SortFunc(tenants, func(a, b *offer) int {
		return cmp.Or(strings.Compare(a.owner, b.owner), cmp.Compare(a.created, b.created), strings.Compare(a.set.name, b.set.name))
	})
	var claims []table.Claim
	var of []*offer
	asked, work := 0, 0
	for i, o := range tenants {
		if i == 0 || o.owner != tenants[i-1].owner {
			asked, work = 0, 0
		}
		if !p.networksFit(s, o.set) || asked > total || work > maxOwnerWork {
			continue // more than all there is: the younger sets are not looked at
		}
		work += min(o.set.work(), maxSetWork)
		if !w.measure(o) {
			asked += maxSetEntries
			continue
		}
		asked += o.size
		claims = append(claims, table.Claim{Owner: o.owner, Created: o.created, Name: o.set.name, Size: o.size})
		of = append(of, o)
	}
	for i, as := range table.Grant(total, claims) {
		of[i].ok = as != table.Refused
	}
	p.overdrawn = overdrawn(tenants, total)
}

// overdrawn names the namespaces that are refused something.
func overdrawn(tenants []*offer, total int) (out []nodestate.Overdrawn) {
	owners := map[string]*nodestate.Overdrawn{}
	for _, o := range tenants {
		x := owners[o.owner]
		if x == nil {
			x = &nodestate.Overdrawn{Namespace: o.owner, Table: "policy entries"}
			owners[o.owner] = x
		}
		if x.Asked += o.size; !o.known {
			x.Asked += maxSetEntries
		}
		if o.ok {
			x.Granted += o.size
		} else {
			x.Refused++
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(owners)) {
		if x := owners[ns]; x.Refused > 0 {
			x.Reserved, x.Share, x.Total = table.Reserved(total, len(owners)), total/table.ShareParts, total
			out = append(out, *x)
		}
	}
	return out
}

// measure finds out how much a set would take. False: more than a set may, or more work than it may
// make.
func (w *entryWriter) measure(o *offer) bool {
	t := o.set
	if m, ok := w.measured[t.id]; ok && o.was == nil && m.set == t && !w.anew && !w.touches(t) {
		w.measuredNow[t.id] = m
		if o.size, o.known = m.size, m.fits; !m.fits {
			return false
		}
		o.put = func() *setEntries {
			now := t.decisions(w.ports, maxSetEntries)
			now.each(t.id, w.entries.Set)
			return now
		}
		return true
	}
	if t.work() <= maxSetWork {
		o.size, o.put = w.plan(t, o.was, maxSetEntries)
	}
	o.known = o.put != nil
	w.measuredNow[t.id] = measure{t, o.size, o.known}
	return o.known
}

// measure is how much a set that is not written would take.
type measure struct {
	set  *set
	size int
	fits bool
}

// touches reports whether classes came or went that a set knows.
func (w *entryWriter) touches(t *set) bool {
	return slices.ContainsFunc(w.classes.Added, t.distinguishes) || slices.ContainsFunc(w.classes.Removed, t.distinguishes)
}

// work is about how many ranges of ports are to be looked at to decide for all classes that the set
// may distinguish. It depends on what there is alone.
func (t *set) work() int {
	distinguished, always, total := 1, 1, 0
	columns := 1
	for i := range t.tiers {
		for _, r := range t.tiers[i].rules {
			ranges := 1 + len(r.dst.In) + len(r.dst.Not)
			if sources := len(r.src.In) + len(r.src.Not); sources > 0 {
				ranges += sources
				columns = min(maxSourceColumns, columns*2, columns+2*sources)
			}
			wants := r.requiredClause()
			for j, c := range r.others {
				for _, l := range c {
					distinguished += len(l.Atom.Classes)
					if j == wants {
						total += len(l.Atom.Classes) * ranges
					}
				}
			}
			if wants < 0 {
				always += ranges
			}
		}
	}
	return columns * (total + always*distinguished)
}

// ownerOf returns the namespace that is charged for a set: that of its pods; none where they are of
// several, which only policies of the cluster bring about.
func (s *sets) ownerOf(t *set) string {
	if len(s.owners[t]) != 1 {
		return ""
	}
	for ns := range s.owners[t] {
		return ns
	}
	return ""
}

// createdAt returns since when a set is claimed: when the newest policy of a namespace in it was
// created, or the newest of all where none is of a namespace. What pods of several namespaces share
// comes before that, with the most of them first.
func (s *sets) createdAt(t *set) int64 {
	if n := len(s.owners[t]); n > 1 {
		return -int64(n)
	}
	var own, all int64
	for _, b := range t.of {
		all = max(all, b.policy.Created)
		if b.policy.Name.Namespace != "" {
			own = max(own, b.policy.Created)
		}
	}
	return cmp.Or(own, all)
}

// networksFit reports whether a set may ask for the networks that its rules are about.
func (p *tables) networksFit(s *sets, t *set) bool {
	return !p.crowded || t.vital || s.forHosts(t) && !p.hostsCrowded || !t.needsNetworks()
}
