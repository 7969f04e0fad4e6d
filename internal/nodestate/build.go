// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
)

// compactAbove is how many entries a map has that an Editor built from nothing when it is built
// again without room to grow in its leaves: those that grew leave holes of all sizes in the heap.
const compactAbove = 4 * mapLeaf

// placed is an entry with its hash, the digit that is looked at first in the highest bits.
type placed[K comparable, V any] struct {
	hash  uint64
	entry mapEntry[K, V]
}

// Collect returns a Map with some n entries, each key once, whose leaves have room for what they
// hold alone.
func Collect[K comparable, V any](entries iter.Seq2[K, V], n int) Map[K, V] {
	all := make([]placed[K, V], 0, n)
	for k, v := range entries {
		h := bits.ReverseBytes64(maphash.Comparable(mapSeed, k))
		h = h&0x0f0f0f0f0f0f0f0f<<mapBits | h>>mapBits&0x0f0f0f0f0f0f0f0f
		all = append(all, placed[K, V]{h, mapEntry[K, V]{k, v}})
	}
	slices.SortFunc(all, func(a, b placed[K, V]) int { return cmp.Compare(a.hash, b.hash) })
	return Map[K, V]{root: buildNode(all, 0), n: len(all)}
}

// buildNode returns the node of entries, sorted by hash, which have depth digits in common.
func buildNode[K comparable, V any](all []placed[K, V], depth int) *mapNode[K, V] {
	if len(all) == 0 {
		return nil
	}
	if len(all) <= mapLeaf || depth == mapDepth {
		n := &mapNode[K, V]{entries: make([]mapEntry[K, V], len(all))}
		for i := range all {
			n.entries[i] = all[i].entry
		}
		return n
	}
	n := &mapNode[K, V]{kids: &[mapWidth]*mapNode[K, V]{}}
	shift := 64 - mapBits*(depth+1)
	for len(all) > 0 {
		digit := all[0].hash >> shift % mapWidth
		end := 1
		for end < len(all) && all[end].hash>>shift%mapWidth == digit {
			end++
		}
		n.kids[digit] = buildNode(all[:end], depth+1)
		all = all[end:]
	}
	return n
}
