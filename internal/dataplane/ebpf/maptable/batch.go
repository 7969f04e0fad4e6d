// SPDX-License-Identifier: Apache-2.0

package maptable

import (
	"errors"
	"reflect"
	"unsafe"

	"github.com/cilium/ebpf"
)

// A call for each entry is most of what it takes to read or fill a large map. Kernels from 5.6 on
// take many entries at once, for most types of maps; otherwise, and for what a batch could not do,
// one call does one entry.

const (
	// batchSize is how many entries a call takes at most.
	batchSize = 4096
	// batchWorth is how many entries are worth one.
	batchWorth = 32
)

// room holds keys or values of a batch: as they are, and as cilium/ebpf takes them without another
// copy, which it does for arrays of bytes alone.
type room[T any] struct {
	of    []T
	bytes any // [][size of T]byte
}

func newRoom[T any](n int) room[T] {
	of := make([]T, n)
	size := int(unsafe.Sizeof(of[0]))
	return room[T]{of, reflect.SliceAt(reflect.ArrayOf(size, reflect.TypeFor[byte]()), unsafe.Pointer(&of[0]), n).Interface()}
}

func (r room[T]) first(n int) any { return reflect.ValueOf(r.bytes).Slice(0, n).Interface() }

// read walks what the map holds.
func (t *Table[K, V]) read(yield func(K, V) bool) error {
	keys, values := newRoom[K](batchSize), newRoom[V](batchSize)
	var cursor ebpf.MapBatchCursor
	for first := true; ; first = false {
		n, err := t.m.BatchLookup(&cursor, keys.bytes, values.bytes, nil)
		over := errors.Is(err, ebpf.ErrKeyNotExist)
		switch {
		case err != nil && !over && first:
			return t.readSingly(yield)
		case err != nil && !over:
			return err
		}
		for i := range n {
			if !yield(keys.of[i], values.of[i]) {
				return nil
			}
		}
		if over {
			return nil
		}
	}
}

func (t *Table[K, V]) readSingly(yield func(K, V) bool) error {
	var k K
	var v V
	it := t.m.Iterate()
	for it.Next(&k, unsafe.Pointer(&v)) {
		if !yield(k, v) {
			return nil
		}
	}
	return it.Err()
}

// writeBatches makes pending writes many at once. What it leaves, because it is not ready or fails,
// is for write.
func (t *Table[K, V]) writeBatches(ready func(K, V) error) {
	left := t.Tracker.PendingWrites()
	if t.single || t.After != nil || left < batchWorth {
		return
	}
	keys, values := newRoom[K](min(left, batchSize)), newRoom[V](min(left, batchSize))
	n := 0
	flush := func() bool {
		if n == 0 {
			return true
		}
		if _, err := t.m.BatchUpdate(keys.first(n), values.first(n), nil); err != nil {
			// Which entries it is about write finds out. To write the others again does no harm.
			t.single = errors.Is(err, ebpf.ErrNotSupported)
			return false
		}
		for _, k := range keys.of[:n] {
			t.Tracker.Done(k)
		}
		*t.writes += uint64(n)
		n = 0
		return true
	}
	for k, v := range t.Tracker.Writes() {
		if ready != nil && ready(k, v) != nil {
			continue
		}
		keys.of[n], values.of[n] = k, v
		if n++; n == len(keys.of) && !flush() {
			return
		}
	}
	flush()
}
