// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"bytes"
	"encoding/gob"
	"hash/maphash"
	"iter"
	"maps"
)

// Map is a table that can be copied and changed in constant time: an assignment is a copy, and Set
// and Delete on one copy leave the others as they are. The zero value is empty. Any number of
// goroutines may read copies while one changes its own.
//
// It is a trie of hashes: inner nodes have sixteen children, leaves hold a few entries side by
// side. A change copies one leaf and the nodes above it; all else is shared, and Changes finds what
// differs between two maps that share by looking at what they do not.
type Map[K comparable, V any] struct {
	root *mapNode[K, V]
	n    int
}

const (
	mapBits  = 4
	mapWidth = 1 << mapBits
	// mapLeaf is how many entries a leaf has before it is split: on average its parts have two, so
	// that a table is either small or has room for sixteen times as many.
	mapLeaf = 32
	// mapDepth is where the hash has no bits left: leaves there grow without limit.
	mapDepth = 64 / mapBits
)

// mapNode is a leaf (kids nil) or an inner node. Inner nodes stay when they run empty: only their
// leaves go.
type mapNode[K comparable, V any] struct {
	entries []mapEntry[K, V]
	kids    *[mapWidth]*mapNode[K, V]
	edit    *edition // that may change this node in place
}

type mapEntry[K comparable, V any] struct {
	key   K
	value V
}

// edition is the identity of an Editor between two calls of Map.
type edition struct{ _ byte }

// mapSeed is the same for all maps of the process: equal keys have equal places.
var mapSeed = maphash.MakeSeed()

// MapOf returns a Map with the entries of m.
func MapOf[K comparable, V any](m map[K]V) Map[K, V] {
	return Collect(maps.All(m), len(m))
}

// Len returns the number of entries.
func (m Map[K, V]) Len() int { return m.n }

// Get returns the value of a key.
func (m Map[K, V]) Get(k K) (V, bool) {
	h := maphash.Comparable(mapSeed, k)
	at := m.root
	for ; at != nil; h >>= mapBits {
		if at.kids == nil {
			for i := range at.entries {
				if at.entries[i].key == k {
					return at.entries[i].value, true
				}
			}
			break
		}
		at = at.kids[h%mapWidth]
	}
	var zero V
	return zero, false
}

// At returns the value of a key, the zero value where there is none.
func (m Map[K, V]) At(k K) V {
	v, _ := m.Get(k)
	return v
}

// All walks the entries in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// Keys walks the keys in no order.
func (m Map[K, V]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		m.root.walk(func(k K, _ V) bool { return yield(k) })
	}
}

// Set gives a key a value. For many changes an Editor is quicker.
func (m *Map[K, V]) Set(k K, v V) {
	e := m.Edit()
	e.Set(k, v)
	*m = e.Map()
}

// Delete removes a key.
func (m *Map[K, V]) Delete(k K) {
	e := m.Edit()
	e.Delete(k)
	*m = e.Map()
}

// EqualMaps reports whether two maps have the same entries.
func EqualMaps[K, V comparable](a, b Map[K, V]) bool {
	return EqualMapsFunc(a, b, func(x, y V) bool { return x == y })
}

// EqualMapsFunc is EqualMaps for values that only equal compares.
func EqualMapsFunc[K comparable, V any](a, b Map[K, V], equal func(x, y V) bool) bool {
	if a.n != b.n {
		return false
	}
	for range Changes(a, b, equal) {
		return false
	}
	return true
}

// Editor makes many changes to a copy of a map. The zero value edits an empty map.
type Editor[K comparable, V any] struct {
	m       Map[K, V]
	edit    *edition // nil: nothing was changed since Map
	nothing bool     // the map was empty before
}

// Edit returns an editor of a copy of m.
func (m Map[K, V]) Edit() Editor[K, V] { return Editor[K, V]{m: m} }

// Map returns the contents as they are now. Later changes are not in it.
func (e *Editor[K, V]) Map() Map[K, V] {
	if e.nothing && e.m.n > compactAbove {
		e.m = Collect(e.m.All(), e.m.n)
	}
	e.edit, e.nothing = nil, false
	return e.m
}

// Changed reports whether there was a Set, or a Delete of what was there, since Map was called
// last.
func (e *Editor[K, V]) Changed() bool { return e.edit != nil }

// Get returns the value of a key.
func (e *Editor[K, V]) Get(k K) (V, bool) { return e.m.Get(k) }

// All walks the entries. Nothing may be changed meanwhile.
func (e *Editor[K, V]) All() iter.Seq2[K, V] { return e.m.All() }

// Set gives a key a value.
func (e *Editor[K, V]) Set(k K, v V) {
	if e.edit == nil {
		e.edit, e.nothing = new(edition), e.m.n == 0
	}
	root, added := e.m.root.set(e.edit, maphash.Comparable(mapSeed, k), 0, k, v)
	e.m.root = root
	if added {
		e.m.n++
	}
}

// Delete removes a key.
func (e *Editor[K, V]) Delete(k K) {
	if _, ok := e.m.Get(k); !ok {
		return
	}
	if e.edit == nil {
		e.edit = new(edition)
	}
	e.m.root = e.m.root.remove(e.edit, maphash.Comparable(mapSeed, k), k)
	e.m.n--
}

// own returns a node that edit may change: n itself when it is edit's, else a copy.
func (n *mapNode[K, V]) own(edit *edition) *mapNode[K, V] {
	if n.edit == edit {
		return n
	}
	c := &mapNode[K, V]{edit: edit}
	if n.kids != nil {
		kids := *n.kids
		c.kids = &kids
		return c
	}
	c.entries = append(make([]mapEntry[K, V], 0, len(n.entries)+1), n.entries...)
	return c
}

// set returns the node with the entry, and whether the key is new. hash has lost its depth lower
// digits.
func (n *mapNode[K, V]) set(edit *edition, hash uint64, depth int, k K, v V) (*mapNode[K, V], bool) {
	if n == nil {
		return &mapNode[K, V]{edit: edit, entries: []mapEntry[K, V]{{k, v}}}, true
	}
	if n.kids != nil {
		n = n.own(edit)
		kid, added := n.kids[hash%mapWidth].set(edit, hash>>mapBits, depth+1, k, v)
		n.kids[hash%mapWidth] = kid
		return n, added
	}
	for i := range n.entries {
		if n.entries[i].key == k {
			n = n.own(edit)
			n.entries[i].value = v
			return n, false
		}
	}
	if len(n.entries) >= mapLeaf && depth < mapDepth {
		n = n.split(edit, depth)
		n, _ = n.set(edit, hash, depth, k, v)
		return n, true
	}
	n = n.own(edit)
	if have := len(n.entries); have == cap(n.entries) { // append would make it twice as large
		n.entries = append(make([]mapEntry[K, V], 0, have+1+have/4), n.entries...)
	}
	n.entries = append(n.entries, mapEntry[K, V]{k, v})
	return n, true
}

// split returns an inner node with the entries of a leaf.
func (n *mapNode[K, V]) split(edit *edition, depth int) *mapNode[K, V] {
	inner := &mapNode[K, V]{edit: edit, kids: &[mapWidth]*mapNode[K, V]{}}
	var places [mapLeaf]uint8
	var sizes [mapWidth]int
	for i, e := range n.entries {
		places[i] = uint8(maphash.Comparable(mapSeed, e.key) >> (depth * mapBits) % mapWidth)
		sizes[places[i]]++
	}
	for i, e := range n.entries {
		at := &inner.kids[places[i]]
		if *at == nil {
			*at = &mapNode[K, V]{edit: edit, entries: make([]mapEntry[K, V], 0, sizes[places[i]])}
		}
		(*at).entries = append((*at).entries, e)
	}
	return inner
}

// remove returns the node without the key, which is there; nil when a leaf runs empty.
func (n *mapNode[K, V]) remove(edit *edition, hash uint64, k K) *mapNode[K, V] {
	n = n.own(edit)
	if n.kids != nil {
		n.kids[hash%mapWidth] = n.kids[hash%mapWidth].remove(edit, hash>>mapBits, k)
		return n
	}
	last := len(n.entries) - 1
	for i := range n.entries {
		if n.entries[i].key == k {
			n.entries[i] = n.entries[last]
			n.entries[last] = mapEntry[K, V]{}
			n.entries = n.entries[:last]
			break
		}
	}
	if len(n.entries) == 0 {
		return nil
	}
	return n
}

// walk yields the entries and reports whether to go on.
func (n *mapNode[K, V]) walk(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for i := range n.entries {
		if !yield(n.entries[i].key, n.entries[i].value) {
			return false
		}
	}
	if n.kids != nil {
		for _, kid := range n.kids {
			if !kid.walk(yield) {
				return false
			}
		}
	}
	return true
}

// GobEncode implements gob.GobEncoder: a table as a plain map.
func (m Map[K, V]) GobEncode() ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(maps.Collect(m.All()))
	return b.Bytes(), err
}

// GobDecode implements gob.GobDecoder.
func (m *Map[K, V]) GobDecode(data []byte) error {
	var plain map[K]V
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&plain); err != nil {
		return err
	}
	*m = MapOf(plain)
	return nil
}
