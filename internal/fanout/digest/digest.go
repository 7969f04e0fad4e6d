// SPDX-License-Identifier: Apache-2.0

// Package digest compares what an agent has of a cluster with what it is to have, without either
// end knowing what the other one was sent before. Objects of one kind and namespace are a scope,
// which is cut into buckets by a hash of their names. The agent says what each bucket holds by a
// digest of its objects' values, and is sent the buckets that differ. Digests are of values alone,
// so that those of all processes agree.
package digest

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// Version is that of digests. It is raised with each change of what they are made of, a field of
// the model among it: who gets digests of another version sends everything.
const Version = 1

// Kind is a kind of objects. The numbers are sent.
type Kind uint8

// The kinds. ServiceCIDRs and Reserved have one object each, without a name.
const (
	Namespaces      Kind = 1
	Pods            Kind = 2
	Nodes           Kind = 3
	Services        Kind = 4
	Slices          Kind = 5
	Policies        Kind = 6
	Staged          Kind = 7
	Tiers           Kind = 8
	NetworkSets     Kind = 9
	ServiceAccounts Kind = 10
	HostEndpoints   Kind = 11
	Pools           Kind = 12
	Blocks          Kind = 13
	ServiceCIDRs    Kind = 14
	Reserved        Kind = 15

	LastKind = Reserved
)

// Scope is the objects of a kind in a namespace; "" where the kind has none.
type Scope struct {
	Kind      Kind
	Namespace string
}

// Entry is an object.
type Entry struct {
	Name string
	Sum  Sum // zero = it is gone

	place uint64 // hash of the name: the first bits say which bucket it is in
}

// Compare is the order of entries.
func (e Entry) Compare(o Entry) int {
	return cmp.Or(cmp.Compare(e.place, o.place), cmp.Compare(e.Name, o.Name))
}

// placeOf is FNV-1a with its bits mixed. Names that fall into one bucket make that larger.
func placeOf(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0x9fb21c651e98df25
	return h ^ h>>29
}

// Lists are the objects of each scope, sorted by place and name.
type Lists map[Scope][]Entry

// Of returns the digests of all objects that changes have, those that are gone among them.
func Of(ch *model.Changes) Lists { return OfCached(ch, nil) }

// OfCached is Of, with the digests of policies kept in a cache.
func OfCached(ch *model.Changes, cache *Cache) Lists {
	out := Lists{}
	w := make(writer, 0, 1024)
	namespaces.list(out, &w, ch.Namespaces)
	pods.list(out, &w, ch.Pods)
	nodes.list(out, &w, ch.Nodes)
	services.list(out, &w, ch.Services)
	endpointSlices.list(out, &w, ch.Slices)
	policies.listBy(out, ch.Policies, func(p *model.Policy) Sum {
		return cache.get(p, func() Sum { return policies.sum(&w, p) })
	})
	staged.list(out, &w, ch.Staged)
	tiers.list(out, &w, ch.Tiers)
	networkSets.list(out, &w, ch.NetworkSets)
	serviceAccounts.list(out, &w, ch.ServiceAccounts)
	hostEndpoints.list(out, &w, ch.HostEndpoints)
	pools.list(out, &w, ch.Pools)
	blocks.list(out, &w, ch.Blocks)
	if ch.ServiceCIDRsChanged {
		out[Scope{Kind: ServiceCIDRs}] = []Entry{{place: placeOf(""), Sum: prefixesSum(ch.ServiceCIDRs)}}
	}
	if ch.ReservedChanged {
		out[Scope{Kind: Reserved}] = []Entry{{place: placeOf(""), Sum: prefixesSum(ch.Reserved)}}
	}
	for _, l := range out {
		slices.SortFunc(l, Entry.Compare)
	}
	return out
}

func prefixesSum(list []netip.Prefix) Sum {
	var w writer
	w.prefixes(list)
	return sumOf(w)
}

// Merged returns a list with the entries of a later one in the place of those of the same names.
func Merged(base, later []Entry) []Entry {
	switch {
	case len(later) == 0:
		return base
	case len(base) == 0:
		return later
	}
	out := make([]Entry, 0, len(base)+len(later))
	for len(base) > 0 && len(later) > 0 {
		switch c := base[0].Compare(later[0]); {
		case c < 0:
			out, base = append(out, base[0]), base[1:]
		case c == 0:
			base = base[1:]
		default:
			out, later = append(out, later[0]), later[1:]
		}
	}
	return append(append(out, base...), later...)
}

// bucketOf is the bucket of a place, of 1<<bits.
func bucketOf(place uint64, bits uint8) int {
	return int(place >> 1 >> (63 - bits))
}

// buckets yields the digest of each bucket and how many objects are in it. That of an empty one is
// zero.
func buckets(l []Entry, bits uint8, yield func(bucket int, sum Sum, objects int)) {
	var sums writer
	for b := range 1 << bits {
		n := 0
		for n < len(l) && bucketOf(l[n].place, bits) == b {
			n++
		}
		if n == 0 {
			yield(b, Sum{}, 0)
			continue
		}
		sums = sums[:0]
		for _, e := range l[:n] {
			sums = append(sums, e.Sum[:]...)
		}
		l = l[n:]
		yield(b, sumOf(sums), n)
	}
}

// Bounds of what is said to be held: of buckets and scopes altogether.
const (
	MostBits    = 12
	MostBuckets = 24 << 10
	MostScopes  = 16 << 10
)

// fewest is how many objects of a kind, fewestOthers of the others, are in a bucket at most, unless
// there are too many buckets.
var fewest = map[Kind]int{Pods: 32, Services: 16, Slices: 2, Nodes: 16, Blocks: 16}

const fewestOthers = 4

// Held is what somebody has: the digests of the buckets of each scope, of which there are a power
// of two.
type Held map[Scope][]Sum

// HeldOf describes a cluster; nil = it has more scopes than can be described.
func HeldOf(c *model.Cluster) Held { return Of(c.Everything()).Held() }

// Held describes what lists have.
func (all Lists) Held() Held {
	if len(all) > MostScopes {
		return nil
	}
	for factor := 1; ; factor *= 2 {
		total := 0
		for s, l := range all {
			total += 1 << bitsFor(s.Kind, len(l), factor)
		}
		if total > MostBuckets { // with a bucket for each scope there are fewer
			continue
		}
		out := make(Held, len(all))
		for s, l := range all {
			n := bitsFor(s.Kind, len(l), factor)
			sums := make([]Sum, 0, 1<<n)
			buckets(l, n, func(_ int, sum Sum, _ int) { sums = append(sums, sum) })
			out[s] = sums
		}
		return out
	}
}

// bitsFor says how finely a scope is cut.
func bitsFor(k Kind, objects, factor int) uint8 {
	if objects == 0 {
		return 0
	}
	each := cmp.Or(fewest[k], fewestOthers) * factor
	return min(uint8(bits.Len(uint((objects-1)/each))), MostBits)
}

// BitsOf says of how many bits the numbers of buckets are, which are a power of two.
func BitsOf(buckets int) uint8 { return uint8(bits.TrailingZeros(uint(buckets))) }

// Buckets are some of the buckets of scopes.
type Buckets map[Scope]*In

// In says which buckets of a scope, of 1<<Bits.
type In struct {
	Bits uint8
	Has  []bool
}

// Has reports whether an object is in one of the buckets.
func (b Buckets) Has(s Scope, name string) bool {
	in := b[s]
	return in != nil && in.Has[bucketOf(placeOf(name), in.Bits)]
}

// Difference is what somebody lacks, or has and should not.
type Difference struct {
	// Replaced are the buckets of which something is held that differs.
	Replaced Buckets
	// send are those that have objects to be sent.
	send Buckets
	// objects counts these, by scope.
	objects map[Scope]int
}

// Compare finds where what is held differs from what is to be: what several lists have, of which a
// later one takes the place of the same objects of those before.
func (h Held) Compare(lists ...Lists) *Difference {
	whole := Lists{}
	for _, of := range lists {
		for s, l := range of {
			whole[s] = Merged(whole[s], l)
		}
	}
	gone := func(e Entry) bool { return e.Sum == Sum{} }
	for s, l := range whole {
		if slices.ContainsFunc(l, gone) {
			whole[s] = slices.DeleteFunc(slices.Clone(l), gone)
		}
	}
	d := &Difference{Replaced: Buckets{}, send: Buckets{}, objects: map[Scope]int{}}
	for s, l := range whole {
		d.compare(s, h[s], l)
	}
	for s, sums := range h {
		if whole[s] == nil {
			d.compare(s, sums, nil)
		}
	}
	return d
}

func (d *Difference) compare(s Scope, held []Sum, l []Entry) {
	if len(held) == 0 {
		d.send[s], d.objects[s] = &In{Has: []bool{true}}, len(l)
		return
	}
	in := &In{Bits: BitsOf(len(held)), Has: make([]bool, len(held))}
	differs := false
	buckets(l, in.Bits, func(b int, sum Sum, objects int) {
		if sum != held[b] {
			in.Has[b], differs = true, true
			d.objects[s] += objects
		}
	})
	if differs {
		d.Replaced[s], d.send[s] = in, in
	}
}

// Most reports whether more than half of what lists have is to be sent.
func (d *Difference) Most(lists Lists) bool {
	differ, all := d.count(lists)
	return 2*differ > all
}

// None reports whether nothing of what lists have is to be sent.
func (d *Difference) None(lists Lists) bool {
	differ, _ := d.count(lists)
	return differ == 0
}

func (d *Difference) count(lists Lists) (differ, all int) {
	for s, l := range lists {
		differ += min(d.objects[s], len(l))
		all += len(l)
	}
	return differ, all
}
