// SPDX-License-Identifier: Apache-2.0

// Package delta tracks the difference between what a table should hold and what it holds. It stores
// the actual contents and the pending changes; the desired contents are their sum. It is not safe
// for concurrent use.
package delta

import (
	"iter"
	"maps"
)

// Tracker is the difference for one table.
type Tracker[K, V comparable] struct {
	actual  map[K]V
	writes  map[K]V
	deletes map[K]struct{}
	failed  map[K]error
	most    int       // pending changes since the maps of them were made
	counts  map[V]int // how often each value is there; nil = not counted
}

// New returns a tracker of a table that is empty and should be.
func New[K, V comparable]() *Tracker[K, V] {
	return &Tracker[K, V]{
		actual: map[K]V{}, writes: map[K]V{}, deletes: map[K]struct{}{}, failed: map[K]error{},
	}
}

// Load sets the actual contents, as read from the table. What was desired before is forgotten:
// until something is desired, nothing is pending.
func (t *Tracker[K, V]) Load(entries iter.Seq2[K, V]) {
	counted := t.counts != nil
	*t = *New[K, V]()
	if counted {
		t.counts = map[V]int{}
	}
	for k, v := range entries {
		t.hold(k, v)
	}
}

// CountValues makes the tracker count how often the table holds each value.
func (t *Tracker[K, V]) CountValues() {
	t.counts = map[V]int{}
	for _, v := range t.actual {
		t.counts[v]++
	}
}

// Holds returns how often the table holds a value, as far as is known; CountValues was called.
func (t *Tracker[K, V]) Holds(v V) int { return t.counts[v] }

// hold notes that the table holds v at a key.
func (t *Tracker[K, V]) hold(k K, v V) {
	if t.counts != nil {
		t.uncount(k)
		t.counts[v]++
	}
	t.actual[k] = v
}

// uncount takes what the table held at a key off the counts.
func (t *Tracker[K, V]) uncount(k K) {
	was, ok := t.actual[k]
	if !ok || t.counts == nil {
		return
	}
	if t.counts[was]--; t.counts[was] == 0 {
		delete(t.counts, was)
	}
}

// Desire sets the whole desired contents: what is not named is to be deleted. The sequence names
// every key once; it may be walked twice.
func (t *Tracker[K, V]) Desire(entries iter.Seq2[K, V]) {
	clear(t.writes)
	clear(t.deletes)
	kept := 0
	for k, v := range entries {
		if have, ok := t.actual[k]; ok {
			kept++
			if have == v {
				delete(t.failed, k)
				continue
			}
		}
		t.writes[k] = v
	}
	if kept < len(t.actual) {
		for k := range t.actual {
			t.deletes[k] = struct{}{}
		}
		for k := range entries {
			delete(t.deletes, k)
		}
	}
	for k := range t.failed {
		if !t.pending(k) {
			delete(t.failed, k)
		}
	}
}

// Set desires one entry and leaves the others as they are.
func (t *Tracker[K, V]) Set(k K, v V) {
	delete(t.deletes, k)
	if have, ok := t.actual[k]; ok && have == v {
		delete(t.writes, k)
		delete(t.failed, k)
		return
	}
	t.writes[k] = v
}

// Unset desires that a key is absent and leaves the others as they are.
func (t *Tracker[K, V]) Unset(k K) {
	delete(t.writes, k)
	if _, ok := t.actual[k]; ok {
		t.deletes[k] = struct{}{}
		return
	}
	delete(t.deletes, k)
	delete(t.failed, k)
}

// Desired returns the desired value of a key.
func (t *Tracker[K, V]) Desired(k K) (V, bool) {
	if v, ok := t.writes[k]; ok {
		return v, true
	}
	if _, ok := t.deletes[k]; ok {
		var zero V
		return zero, false
	}
	v, ok := t.actual[k]
	return v, ok
}

// Actual returns what the table holds at a key, as far as is known.
func (t *Tracker[K, V]) Actual(k K) (V, bool) {
	v, ok := t.actual[k]
	return v, ok
}

// All walks the actual contents.
func (t *Tracker[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, v := range t.actual {
			if !yield(k, v) {
				return
			}
		}
	}
}

// Len returns the number of actual entries.
func (t *Tracker[K, V]) Len() int { return len(t.actual) }

// Pending returns the number of changes to make.
func (t *Tracker[K, V]) Pending() int { return len(t.writes) + len(t.deletes) }

// PendingWrites returns the number of entries to write.
func (t *Tracker[K, V]) PendingWrites() int { return len(t.writes) }

// Writes walks the entries to write. Done and Failed may be called meanwhile.
func (t *Tracker[K, V]) Writes() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, v := range t.writes {
			if !yield(k, v) {
				return
			}
		}
	}
}

// Deletes walks the keys to delete. Done and Failed may be called meanwhile.
func (t *Tracker[K, V]) Deletes() iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range t.deletes {
			if !yield(k) {
				return
			}
		}
	}
}

// Interim notes that the table holds v at a key for now: what is desired there stays, and is
// pending.
func (t *Tracker[K, V]) Interim(k K, v V) {
	want, ok := t.Desired(k)
	t.hold(k, v)
	if ok {
		t.Set(k, want)
	} else {
		t.Unset(k)
	}
}

// PendingDeletes returns the number of keys to delete.
func (t *Tracker[K, V]) PendingDeletes() int { return len(t.deletes) }

// Done notes that the pending change of a key was made.
func (t *Tracker[K, V]) Done(k K) {
	if v, ok := t.writes[k]; ok {
		t.hold(k, v)
		delete(t.writes, k)
	} else if _, ok := t.deletes[k]; ok {
		t.uncount(k)
		delete(t.actual, k)
		delete(t.deletes, k)
	}
	delete(t.failed, k)
	t.most = max(t.most, t.Pending()+1)
	if t.Pending() == 0 && t.most > 256 {
		// Maps keep the room that they once needed, and a walk looks at all of it.
		t.writes, t.deletes, t.most = map[K]V{}, map[K]struct{}{}, 0
	}
}

// Failed notes that the pending change of a key could not be made. It stays pending.
func (t *Tracker[K, V]) Failed(k K, err error) {
	if t.pending(k) {
		t.failed[k] = err
	}
}

// Failures walks the keys whose last change failed, and why.
func (t *Tracker[K, V]) Failures() iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		for k, err := range t.failed {
			if !yield(k, err) {
				return
			}
		}
	}
}

// FailedKeys walks the keys whose last change failed.
func (t *Tracker[K, V]) FailedKeys() iter.Seq[K] { return maps.Keys(t.failed) }

func (t *Tracker[K, V]) pending(k K) bool {
	if _, ok := t.writes[k]; ok {
		return true
	}
	_, ok := t.deletes[k]
	return ok
}
