// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"hash/maphash"
	"iter"
	"reflect"
)

// SameMap reports whether two tables of states, which nobody changes any more, are one and the same
// in memory: then nothing in them differs.
func SameMap[K comparable, V any](a, b map[K]V) bool {
	return a != nil && reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// Change is what became of one key from one map to another.
type Change[V any] struct {
	Before, After V
	Was, Is       bool // the key was there before, is there after
}

// Changes walks the keys whose values differ between two maps. What both share is not looked at, so
// the cost follows the number of changes when after was made from before, and the sizes when it was
// not.
func Changes[K comparable, V any](before, after Map[K, V], equal func(a, b V) bool) iter.Seq2[K, Change[V]] {
	return func(yield func(K, Change[V]) bool) {
		d := differ[K, V]{equal: equal, yield: yield}
		d.nodes(before.root, after.root, 0)
	}
}

type differ[K comparable, V any] struct {
	equal func(a, b V) bool
	yield func(K, Change[V]) bool
}

// nodes reports whether to go on.
func (d *differ[K, V]) nodes(a, b *mapNode[K, V], depth int) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return b.walk(func(k K, v V) bool { return d.yield(k, Change[V]{After: v, Is: true}) })
	case b == nil:
		return a.walk(func(k K, v V) bool { return d.yield(k, Change[V]{Before: v, Was: true}) })
	case a.kids == nil && b.kids == nil:
		return d.leaves(a, b)
	}
	// One of them may be a leaf that the other was split from.
	var left, right [mapWidth]*mapNode[K, V]
	a.spread(&left, depth)
	b.spread(&right, depth)
	for i := range mapWidth {
		if !d.nodes(left[i], right[i], depth+1) {
			return false
		}
	}
	return true
}

// spread gives the children of an inner node, or those that a leaf would have.
func (n *mapNode[K, V]) spread(out *[mapWidth]*mapNode[K, V], depth int) {
	if n.kids != nil {
		*out = *n.kids
		return
	}
	for _, e := range n.entries {
		at := &out[maphash.Comparable(mapSeed, e.key)>>(depth*mapBits)%mapWidth]
		if *at == nil {
			*at = &mapNode[K, V]{}
		}
		(*at).entries = append((*at).entries, e)
	}
}

func (d *differ[K, V]) leaves(a, b *mapNode[K, V]) bool {
	for i := range a.entries {
		x := &a.entries[i]
		y := b.find(x.key)
		switch {
		case y == nil:
			if !d.yield(x.key, Change[V]{Before: x.value, Was: true}) {
				return false
			}
		case !d.equal(x.value, y.value):
			if !d.yield(x.key, Change[V]{Before: x.value, After: y.value, Was: true, Is: true}) {
				return false
			}
		}
	}
	for i := range b.entries {
		if y := &b.entries[i]; a.find(y.key) == nil && !d.yield(y.key, Change[V]{After: y.value, Is: true}) {
			return false
		}
	}
	return true
}

func (n *mapNode[K, V]) find(k K) *mapEntry[K, V] {
	for i := range n.entries {
		if n.entries[i].key == k {
			return &n.entries[i]
		}
	}
	return nil
}
