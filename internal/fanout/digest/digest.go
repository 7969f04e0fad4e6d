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
const Version = 13

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
	BGPConfigs      Kind = 16
	BGPPeers        Kind = 17
	BGPFilters      Kind = 18
	EgressPolicies  Kind = 19

	LastKind = EgressPolicies
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

// Lists are the objects of each scope.
type Lists map[Scope]*List

// Of returns the digests of all objects that changes have, those that are gone among them.
func Of(ch *model.Changes) Lists { return OfCached(ch, nil) }

// OfCached is Of, with the digests of policies kept in a cache.
func OfCached(ch *model.Changes, cache *Cache) Lists {
	out, w := Lists{}, make(writer, 0, 1024)
	for _, k := range kinds {
		k.listChanged(out, &w, ch, cache)
	}
	if ch.ServiceCIDRsChanged {
		out.ranges(ServiceCIDRs, ch.ServiceCIDRs)
	}
	if ch.ReservedChanged {
		out.ranges(Reserved, ch.Reserved)
	}
	return out.sorted()
}

// ranges adds the one object of a kind.
func (all Lists) ranges(k Kind, of []netip.Prefix) {
	all[Scope{Kind: k}] = listOf(Entry{place: placeOf(""), Sum: prefixesSum(of)})
}

func (all Lists) sorted() Lists {
	for _, l := range all {
		slices.SortFunc(l.entries, Entry.Compare)
	}
	return all
}

func prefixesSum(list []netip.Prefix) Sum {
	var w writer
	w.prefixes(list)
	return sumOf(w)
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
func HeldOf(c *model.Cluster) Held {
	out, w := Lists{}, make(writer, 0, 1024)
	for _, k := range kinds {
		k.listHeld(out, &w, c)
	}
	out.ranges(ServiceCIDRs, c.ServiceCIDRs)
	out.ranges(Reserved, c.Reservations)
	return out.sorted().Held(nil)
}

// Held describes what lists have, those of later ones in the place of the same objects.
func (all Lists) Held(later Lists) Held {
	scopes := map[Scope]int{}
	for s, l := range all {
		scopes[s] = len(l.entries)
	}
	for s, l := range later {
		scopes[s] = max(scopes[s], len(l.entries))
	}
	if len(scopes) > MostScopes {
		return nil
	}
	for factor := 1; ; factor *= 2 {
		total := 0
		for s, n := range scopes {
			total += 1 << bitsFor(s.Kind, n, factor)
		}
		if total > MostBuckets { // with a bucket for each scope there are fewer
			continue
		}
		out := make(Held, len(scopes))
		for s, n := range scopes {
			bits, has := bitsFor(s.Kind, n, factor), false
			sums := make([]Sum, 0, 1<<bits)
			buckets(s.Kind, all[s], later[s], bits, func(_ int, sum Sum, objects int) { sums, has = append(sums, sum), has || objects > 0 })
			if has {
				out[s] = sums
			}
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

// of reports whether there are buckets of a kind.
func (b Buckets) of(k Kind) bool {
	for s := range b {
		if s.Kind == k {
			return true
		}
	}
	return false
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
	base, later := Lists{}, Lists{}
	for _, of := range lists {
		for s, l := range of {
			switch {
			case base[s] == nil:
				base[s] = l
			case later[s] == nil:
				later[s] = l
			default:
				later[s] = listOf(merged(later[s].entries, l.entries)...)
			}
		}
	}
	d := &Difference{Replaced: Buckets{}, send: Buckets{}, objects: map[Scope]int{}}
	for s, l := range base {
		d.compare(s, h[s], l, later[s])
	}
	for s, sums := range h {
		if base[s] == nil {
			d.compare(s, sums, nil, nil)
		}
	}
	return d
}

func (d *Difference) compare(s Scope, held []Sum, base, later *List) {
	none := len(held) == 0
	if none {
		held = make([]Sum, 1)
	}
	in := &In{Bits: BitsOf(len(held)), Has: make([]bool, len(held))}
	differs := false
	buckets(s.Kind, base, later, in.Bits, func(b int, sum Sum, objects int) {
		if sum != held[b] {
			in.Has[b], differs = true, true
			d.objects[s] += objects
		}
	})
	if differs {
		d.send[s] = in
	}
	if differs && !none {
		d.Replaced[s] = in
	}
}

// Key distinguishes which objects of lists are to be sent.
func (d *Difference) Key(lists Lists) string {
	var scopes []Scope
	for s := range lists {
		if d.send[s] != nil {
			scopes = append(scopes, s)
		}
	}
	slices.SortFunc(scopes, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace))
	})
	var key []byte
	for _, s := range scopes {
		in := d.send[s]
		key = append(key, byte(s.Kind), in.Bits)
		key = append(append(key, s.Namespace...), 0)
		for i, has := range in.Has {
			if i%8 == 0 {
				key = append(key, 0)
			}
			if has {
				key[len(key)-1] |= 1 << (i % 8)
			}
		}
	}
	return string(key)
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
		differ += min(d.objects[s], len(l.entries))
		all += len(l.entries)
	}
	return differ, all
}
