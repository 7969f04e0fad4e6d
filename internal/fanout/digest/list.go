// SPDX-License-Identifier: Apache-2.0

package digest

import "sync"

// List are the objects of a scope, sorted by place and name. It is never changed once it was made,
// and safe for concurrent use.
type List struct {
	entries []Entry

	once sync.Once
	cut  []bucket // as finely as its length asks for, which most ask for
}

// bucket is the part of a list that is in a bucket.
type bucket struct {
	sum     Sum
	objects int
	entries []Entry
}

func listOf(entries ...Entry) *List { return &List{entries: entries} }

// ListOf makes a list of entries that are in order.
func ListOf(sorted []Entry) *List { return listOf(sorted...) }

// Entries returns the list's entries, which are not to be changed.
func (l *List) Entries() []Entry {
	if l == nil {
		return nil
	}
	return l.entries
}

// bucketOf is the bucket of a place, of 1<<bits.
func bucketOf(place uint64, bits uint8) int { return int(place >> 1 >> (63 - bits)) }

// into cuts a list of a kind into buckets.
func (l *List) into(k Kind, bits uint8) []bucket {
	if l == nil {
		return nil
	}
	if bits != bitsFor(k, len(l.entries), 1) {
		return cut(l.entries, bits)
	}
	l.once.Do(func() { l.cut = cut(l.entries, bits) })
	return l.cut
}

func cut(l []Entry, bits uint8) []bucket {
	out := make([]bucket, 1<<bits)
	var sums writer
	for b := range out {
		n := 0
		for n < len(l) && bucketOf(l[n].place, bits) == b {
			n++
		}
		out[b].entries = l[:n]
		out[b].sum, out[b].objects = sumOfBucket(&sums, l[:n])
		l = l[n:]
	}
	return out
}

// sumOfBucket returns the digest of a bucket and how many objects are in it. That of an empty one
// is zero.
func sumOfBucket(sums *writer, l []Entry) (sum Sum, objects int) {
	*sums = (*sums)[:0]
	for i := range l {
		if l[i].Sum != (Sum{}) {
			*sums = append(*sums, l[i].Sum[:]...)
			objects++
		}
	}
	if objects > 0 {
		sum = sumOf(*sums)
	}
	return sum, objects
}

// buckets yields the digest of each bucket of a list, with the entries of a later one in the place
// of those of the same names, and how many objects are in it. Either may be nil.
func buckets(k Kind, base, later *List, bits uint8, yield func(bucket int, sum Sum, objects int)) {
	if base == nil {
		base, later = later, nil
	}
	of, over := base.into(k, bits), later.into(k, bits)
	var sums writer
	for b := range 1 << bits {
		switch {
		case of == nil:
			yield(b, Sum{}, 0)
		case over == nil || len(over[b].entries) == 0:
			yield(b, of[b].sum, of[b].objects)
		default:
			sum, objects := sumOfBucket(&sums, merged(of[b].entries, over[b].entries))
			yield(b, sum, objects)
		}
	}
}

// merged returns a list with the entries of a later one in the place of those of the same names.
func merged(base, later []Entry) []Entry {
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

// Merged are the entries of a list, with those of a later one in the place of the same names.
func (l *List) Merged(later *List) *List { return listOf(merged(l.Entries(), later.Entries())...) }
