// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// reservedClasses is how many classes a namespace's policies may make in any case. What they make
// beyond is lent while the sets of all others fit: the largest consumer is held back first.
const reservedClasses = 64

// classBudget knows the classes that the policies of namespaces make.
type classBudget struct {
	sets    *sets
	tenants map[string]*tenant
	names   []string                       // of askers, sorted
	owners  map[*peer.Atom][]owned         // of atoms that policies of namespaces alone ask
	kept    map[int]map[*peer.Class]uint64 // by cap: the classes, by what is left of them
}

// tenant is a namespace.
type tenant struct {
	all   []*policyAtoms // the oldest first
	apart []int          // classes that the first so many of them distinguish by themselves
}

// owned is an atom to a namespace that asks it.
type owned struct {
	asker *tenant
	rank  int32 // of the oldest policy that asks it
}

// asked is an atom, by the rank of the oldest policy of a namespace that asks it.
type asked struct{ rank, atom int32 }

func compareMarks(a, b asked) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.atom, b.atom))
}

func (s *sets) classBudget(k *peer.Classes) *classBudget {
	d := &classBudget{sets: s, tenants: map[string]*tenant{}, owners: map[*peer.Atom][]owned{}, kept: map[int]map[*peer.Class]uint64{}}
	for _, x := range s.policyAtoms() {
		ns := x.id.Name.Namespace
		o := d.tenants[ns]
		if o == nil {
			o = &tenant{}
			d.tenants[ns] = o
		}
		for _, a := range x.atoms {
			if of := d.owners[a]; !slices.ContainsFunc(of, func(w owned) bool { return w.asker == o }) {
				d.owners[a] = append(of, owned{o, int32(len(o.all))})
			}
		}
		o.all = append(o.all, x)
	}
	d.names = slices.Sorted(maps.Keys(d.tenants))
	marks := map[*tenant][][]asked{}
	for c := range k.All() {
		of := map[*tenant][]asked{}
		for _, a := range c.Atoms {
			for _, w := range d.owners[a] {
				of[w.asker] = append(of[w.asker], asked{w.rank, a.Index})
			}
		}
		for o, list := range of {
			slices.SortFunc(list, compareMarks)
			marks[o] = append(marks[o], list)
		}
	}
	for _, o := range d.tenants {
		o.count(marks[o])
	}
	return d
}

// count finds out how many classes the oldest policies distinguish by themselves. Of two neighbours
// in the order of their marks the first mark in which they differ says which policy distinguishes
// them; the first of all is distinguished from class 0.
func (o *tenant) count(marks [][]asked) {
	o.apart = make([]int, len(o.all)+1)
	slices.SortFunc(marks, func(a, b []asked) int { return slices.CompareFunc(a, b, compareMarks) })
	var before []asked
	for _, is := range marks {
		for i := range is { // a list is no beginning of one before it
			if i < len(before) && before[i] == is[i] {
				continue
			}
			by := is[i].rank
			if i < len(before) {
				by = min(by, before[i].rank)
			}
			o.apart[by+1]++
			break
		}
		before = is
	}
	for i := range o.all {
		o.apart[i+1] += o.apart[i]
	}
}

// first is how many of the oldest policies distinguish no more than most classes.
func (o *tenant) first(most int) int {
	n, _ := slices.BinarySearch(o.apart, most+1)
	return n - 1
}

// left names, for each class, what is left of it when namespaces have no more than most classes
// each: classes of one name are one then.
func (d *classBudget) left(k *peer.Classes, most int) map[*peer.Class]uint64 {
	if have := d.kept[most]; have != nil {
		return have
	}
	firsts := make(map[*tenant]int32, len(d.tenants))
	for _, o := range d.tenants {
		firsts[o] = int32(o.first(most))
	}
	out := make(map[*peer.Class]uint64, k.Len())
	for c := range k.All() {
		h := uint64(0)
		for _, a := range c.Atoms {
			of := d.owners[a]
			if len(of) == 0 || slices.ContainsFunc(of, func(w owned) bool { return w.rank < firsts[w.asker] }) {
				h = blend(h, a.Index)
			}
		}
		out[c] = h
	}
	d.kept[most] = out
	return out
}

// blend adds the number of an atom to the name of some.
func blend(h uint64, index int32) uint64 {
	h = (h ^ uint64(uint32(index)+1)) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>29
}

// suspect is a set that was refused, with what it says of the classes that it knows.
type suspect struct {
	offer *offer
	sizes map[*peer.Class]int // entries; those decided as class 0 have none
	zero  int
}

// size is how many entries the set has when namespaces have no more than most classes each.
func (x *suspect) size(left map[*peer.Class]uint64) (n int) {
	n = x.zero
	seen := make(map[uint64]struct{}, len(x.sizes))
	for c, size := range x.sizes {
		name := left[c]
		if _, known := seen[name]; !known {
			seen[name] = struct{}{}
			n += size
		}
	}
	return n
}

// suspect looks at a refused set; nil when nobody but itself can be the reason: it takes too much
// by its own rules, or knows no two classes that these do not distinguish. No more ranges of ports
// are looked at than for one set; spent is how many are charged, in whatever order classes come.
func (w *entryWriter) suspect(o *offer) (x *suspect, spent int) {
	t := o.set
	asks, kinds := t.requiredAtoms(w.ports), map[uint64]*peer.Class{}
	known := map[*peer.Class]uint64{}
	for c := range t.classes(w.ports) {
		kind := uint64(0)
		for _, a := range c.Atoms {
			if asks[a] {
				kind = blend(kind, a.Index)
			}
		}
		known[c], kinds[kind] = kind, c
	}
	if len(kinds) == len(known) {
		return nil, 0
	}
	const failed = maxSetWork / 4
	zero, ok := t.decide(nil, maxSetEntries)
	if !ok {
		return nil, failed
	}
	sizes, own := make(map[uint64]int, len(kinds)), 0 // of what is decided as class 0: no entries
	for kind, c := range kinds {
		if spent += t.workOn(c); spent > maxSetWork {
			return nil, failed
		}
		d, ok := t.decide(c, maxSetEntries)
		if !ok {
			return nil, failed
		}
		if !d.equal(zero) {
			sizes[kind] = d.size
		}
		if own += sizes[kind]; own > maxSetEntries {
			return nil, failed
		}
	}
	x = &suspect{offer: o, sizes: map[*peer.Class]int{}, zero: zero.size}
	for c, kind := range known {
		if sizes[kind] > 0 {
			x.sizes[c] = sizes[kind]
		}
	}
	return x, spent
}

// withholdClasses returns the policies to hold back because what they distinguish makes sets of
// others too large, with the namespaces whose they are: none while nobody but those who ask for too
// much by themselves is refused.
func (p *tables) withholdClasses() (map[policySide]bool, []nodestate.Overdrawn) {
	if p.sets == nil || !p.cutOff() {
		return nil, nil
	}
	d := p.sets.classBudget(p.classes)
	largest := 0
	for _, o := range d.tenants {
		largest = max(largest, o.apart[len(o.all)])
	}
	if largest <= p.limits.Classes {
		return nil, nil
	}
	w := &entryWriter{ports: p.sets.portAtoms()}
	var suspects []*suspect
	work := map[string]int{}
	for _, o := range slices.Concat(p.hostOffers, p.tenants) {
		if o.ok || work[o.owner] > maxSetWork {
			continue
		}
		x, spent := w.suspect(o)
		if work[o.owner] += spent; x != nil {
			suspects = append(suspects, x)
		}
	}
	if len(suspects) == 0 {
		return nil, nil
	}
	rightful := p.fitting(d, suspects, p.limits.Classes)
	if len(rightful) == 0 {
		return nil, nil
	}
	most := p.limits.Classes
	for try := largest - largest/4; try > most; try -= (try + 3) / 4 {
		fit, all := p.fitting(d, suspects, try), true
		for x := range rightful {
			all = all && fit[x]
		}
		if all {
			most = try
			break
		}
	}
	out := map[policySide]bool{}
	var over []nodestate.Overdrawn
	for _, ns := range d.names {
		o := d.tenants[ns]
		n := o.first(most)
		if n == len(o.all) {
			continue
		}
		for _, x := range o.all[n:] {
			out[x.policySide] = true
		}
		over = append(over, nodestate.Overdrawn{Namespace: ns, Table: "kinds of peers", Asked: o.apart[len(o.all)], Granted: o.apart[n], Refused: len(o.all) - n,
			Reserved: p.limits.Classes, Share: p.limits.Classes, Total: most})
	}
	return out, over
}

// cutOff reports whether a set in force is refused.
func (p *tables) cutOff() bool {
	refused := func(o *offer) bool { return !o.ok }
	return slices.ContainsFunc(p.hostOffers, refused) || slices.ContainsFunc(p.tenants, refused)
}

// workOn is about how many ranges of ports are looked at to decide for a class.
func (t *set) workOn(c *peer.Class) int {
	ranges, columns := 0, 1
	for _, rules := range t.applicableRules(c) {
		for _, r := range rules {
			sources := len(r.src.In) + len(r.src.Not)
			ranges += 1 + len(r.dst.In) + len(r.dst.Not) + sources
			columns = min(maxSourceColumns, columns+2*sources)
		}
	}
	return columns * ranges
}

// fitting returns those of the refused sets that are granted what they take when namespaces have no
// more than most classes each.
func (p *tables) fitting(d *classBudget, suspects []*suspect, most int) map[*suspect]bool {
	left := d.left(p.classes, most)
	bySet := make(map[*set]*suspect, len(suspects))
	for _, x := range suspects {
		bySet[x.offer.set] = x
	}
	var claims []table.Claim
	var of []*suspect
	for _, o := range p.tenants {
		x, size := bySet[o.set], o.size
		if x != nil {
			if d.withholds(o.set, most) {
				continue
			}
			size = x.size(left)
		}
		if x == nil && !o.ok || size > maxSetEntries {
			continue
		}
		claims = append(claims, table.Claim{Owner: o.owner, Created: o.created, Name: o.set.name, Size: size})
		of = append(of, x)
	}
	out := map[*suspect]bool{}
	for _, o := range p.hostOffers {
		if x := bySet[o.set]; x != nil && x.size(left) <= maxSetEntries {
			out[x] = true
		}
	}
	for i, as := range table.Grant(p.tenantRoom, claims) {
		if as != table.Refused && of[i] != nil {
			out[of[i]] = true
		}
	}
	return out
}

// withholds reports whether a policy of a set is not among the oldest that distinguish no more
// than most classes.
func (d *classBudget) withholds(t *set, most int) bool {
	return slices.ContainsFunc(t.of, func(b *bound) bool {
		o := d.tenants[b.policy.Name.Namespace]
		if o == nil {
			return false
		}
		n := o.first(most)
		return slices.ContainsFunc(o.all[n:], func(x *policyAtoms) bool { return x.policySide == policySide{t.dir, b.policy.ID()} })
	})
}
