// SPDX-License-Identifier: Apache-2.0

package model

import (
	"hash/maphash"
	"iter"
	"math/bits"
)

// chunks is a list whose places stay where they are, in blocks: it grows without a copy of
// everything.
type chunks[T any] struct {
	blocks []*[chunkSize]T
	n      uint32 // places that were ever used
	free   []uint32
}

const chunkSize = 1 << 10

func (c *chunks[T]) at(i uint32) *T { return &c.blocks[i/chunkSize][i%chunkSize] }

// add returns a place whose value is zero.
func (c *chunks[T]) add() uint32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	if int(c.n) == len(c.blocks)*chunkSize {
		c.blocks = append(c.blocks, new([chunkSize]T))
	}
	c.n++
	return c.n - 1
}

func (c *chunks[T]) drop(i uint32) {
	var zero T
	*c.at(i) = zero
	c.free = append(c.free, i)
}

// hashIndex finds numbers by what they are hashed by, with linear probing. It knows no keys: the
// caller compares.
type hashIndex struct {
	slots []uint32 // a number and one more; 0 = free. A power of two of them, or none
	n     int
}

// find returns the number that is of this hash and for which is holds.
func (x *hashIndex) find(hash uint64, is func(uint32) bool) (uint32, bool) {
	if len(x.slots) == 0 {
		return 0, false
	}
	for i := x.home(hash); x.slots[i] > 0; i = x.after(i) {
		if is(x.slots[i] - 1) {
			return x.slots[i] - 1, true
		}
	}
	return 0, false
}

func (x *hashIndex) home(hash uint64) int { return int(hash & uint64(len(x.slots)-1)) }
func (x *hashIndex) after(i int) int      { return (i + 1) & (len(x.slots) - 1) }

// insert adds a number; hashOf says by what the others are hashed.
func (x *hashIndex) insert(hash uint64, number uint32, hashOf func(uint32) uint64) {
	if (x.n+1)*4 > len(x.slots)*3 {
		was := x.slots
		x.slots = make([]uint32, max(16, 2*len(was)))
		for _, v := range was {
			if v > 0 {
				x.place(hashOf(v-1), v)
			}
		}
	}
	x.place(hash, number+1)
	x.n++
}

func (x *hashIndex) place(hash uint64, v uint32) {
	i := x.home(hash)
	for x.slots[i] > 0 {
		i = x.after(i)
	}
	x.slots[i] = v
}

// remove takes a number out, and moves up those behind it that belong further to the front.
func (x *hashIndex) remove(hash uint64, number uint32, hashOf func(uint32) uint64) {
	i := x.home(hash)
	for x.slots[i] != number+1 {
		i = x.after(i)
	}
	mask := len(x.slots) - 1
	for j := x.after(i); x.slots[j] > 0; j = x.after(j) {
		if home := x.home(hashOf(x.slots[j] - 1)); (j-home)&mask >= (j-i)&mask {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = 0
	x.n--
}

func (x *hashIndex) all() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, v := range x.slots {
			if v > 0 && !yield(v-1) {
				return
			}
		}
	}
}

// podText holds what pods are called, one after the other.
type podText struct {
	blocks  [][]byte
	size    int // of all
	dropped int
}

// textRef is where a text is.
type textRef struct {
	block, at uint16
	len       uint32
}

// textBlock is how much a block holds; a name of the API has 253 bytes at most.
const textBlock = 1 << 15

func (x *podText) add(text string) textRef {
	last := len(x.blocks) - 1
	if last < 0 || len(x.blocks[last])+len(text) > textBlock {
		x.blocks = append(x.blocks, make([]byte, 0, max(textBlock, len(text))))
		last++
	}
	ref := textRef{uint16(last), uint16(len(x.blocks[last])), uint32(len(text))}
	x.blocks[last] = append(x.blocks[last], text...)
	x.size += len(text)
	return ref
}

func (x *podText) bytes(r textRef) []byte { return x.blocks[r.block][r.at:][:r.len:r.len] }

func (x *podText) drop(r textRef) { x.dropped += int(r.len) }

// wasteful reports whether so much was dropped that it pays to copy the rest.
func (x *podText) wasteful() bool { return x.dropped > 8*textBlock && 2*x.dropped > x.size }

func hashName(namespace, name string) uint64 {
	return bits.RotateLeft64(maphash.String(sharedSeed, namespace), 21) ^ maphash.String(sharedSeed, name)
}

func hashNameBytes(namespace string, name []byte) uint64 {
	return bits.RotateLeft64(maphash.String(sharedSeed, namespace), 21) ^ maphash.Bytes(sharedSeed, name)
}

func hashAddr(addr [16]byte, four bool) uint64 {
	h := maphash.Bytes(sharedSeed, addr[:])
	if four {
		return ^h
	}
	return h
}
