// SPDX-License-Identifier: Apache-2.0

package maptable

import (
	"errors"
	"fmt"
	"iter"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/delta"
)

// Table is one map with the difference between what it holds and what it should hold. K has no
// padding; V may have some, and is laid out in memory as the map's values are.
type Table[K, V comparable] struct {
	name    string
	m       *ebpf.Map
	Tracker *delta.Tracker[K, V] // what the map holds, what it should hold, and what failed
	show    func(K) string
	writes  *uint64       // counts what is written and deleted
	single  bool          // the kernel takes no batches for this map
	After   func()        // called after each change of the map; for tests, without batches
	Fail    func() error  // called before each write of an entry, which fails by its error; for tests
	Keep    func(K) error // the same before each delete
}

// New returns the table of a map, of which nothing is known before Load. show turns a key into what
// errors call it; writes counts what is written and deleted, and may be that of other tables, too.
func New[K, V comparable](name string, m *ebpf.Map, show func(K) string, writes *uint64) *Table[K, V] {
	return &Table[K, V]{name: name, m: m, Tracker: delta.New[K, V](), show: show, writes: writes}
}

// Load reads what the map holds (BPF_MAP_LOOKUP_BATCH, or entry by entry). The error is the
// kernel's.
func (t *Table[K, V]) Load() error {
	var err error
	t.Tracker.Load(func(yield func(K, V) bool) { err = t.read(yield) })
	if err != nil {
		return fmt.Errorf("reading map %s: %w", t.name, err)
	}
	return nil
}

// Desire sets the whole wanted contents.
func (t *Table[K, V]) Desire(entries iter.Seq2[K, V]) { t.Tracker.Desire(entries) }

// Pending reports whether anything is to be written or deleted.
func (t *Table[K, V]) Pending() bool { return t.Tracker.Pending() > 0 }

// ErrLater holds a change back without a failure.
var ErrLater = errors.New("not yet")

// Write makes the pending writes (BPF_MAP_UPDATE_BATCH, or entry by entry). ready may hold one back
// by an error, by ErrLater without a failure; nil means all are ready.
func (t *Table[K, V]) Write(ready func(K, V) error) {
	t.writeBatches(ready)
	for k, v := range t.Tracker.Writes() {
		if ready != nil {
			if err := ready(k, v); err != nil {
				t.holdBack(k, err)
				continue
			}
		}
		if err := t.put(k, v); err != nil {
			t.Tracker.Failed(k, t.explain(err))
			continue
		}
		t.changed()
		t.Tracker.Done(k)
	}
}

func (t *Table[K, V]) holdBack(k K, err error) {
	if !errors.Is(err, ErrLater) {
		t.Tracker.Failed(k, err)
	}
}

func (t *Table[K, V]) put(k K, v V) error {
	if t.Fail != nil {
		if err := t.Fail(); err != nil {
			return err
		}
	}
	return t.m.Update(&k, unsafe.Pointer(&v), ebpf.UpdateAny)
}

func (t *Table[K, V]) delete(k K) error {
	if t.Keep != nil {
		if err := t.Keep(k); err != nil {
			return err
		}
	}
	return t.m.Delete(&k)
}

func (t *Table[K, V]) changed() {
	*t.writes++
	if t.After != nil {
		t.After()
	}
}

// Interim makes the map hold v at a key until its pending change is made, and reports whether it
// does; otherwise the key has failed.
func (t *Table[K, V]) Interim(k K, v V) bool {
	if have, ok := t.Tracker.Actual(k); ok && have == v {
		return true
	}
	if err := t.put(k, v); err != nil {
		t.Tracker.Failed(k, t.explain(err))
		return false
	}
	t.changed()
	t.Tracker.Interim(k, v)
	return true
}

// Remove makes the pending deletes. ready is as in Write.
func (t *Table[K, V]) Remove(ready func(K) error) {
	for k := range t.Tracker.Deletes() {
		if ready != nil {
			if err := ready(k); err != nil {
				t.holdBack(k, err)
				continue
			}
		}
		if err := t.delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Tracker.Failed(k, err)
			continue
		}
		t.changed()
		t.Tracker.Done(k)
	}
}

// Errors returns a dataplane.KeyError for each key whose change failed.
func (t *Table[K, V]) Errors() []error {
	var errs []error
	for k, err := range t.Tracker.Failures() {
		errs = append(errs, t.KeyError(k, err))
	}
	return errs
}

// KeyError returns a dataplane.KeyError about a key of the table.
func (t *Table[K, V]) KeyError(k K, err error) error {
	return &dataplane.KeyError{Table: t.name, Key: t.show(k), Err: err}
}

// Free returns for how many entries there is room once the pending writes are made.
func (t *Table[K, V]) Free() int {
	return int(t.m.MaxEntries()) - t.Tracker.Len() - t.Tracker.PendingWrites()
}

// Written returns what all tables have written and deleted that count with this one.
func (t *Table[K, V]) Written() uint64 { return *t.writes }

// explain adds what to do to errors that users can do something about.
func (t *Table[K, V]) explain(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("the kernel has no memory for another entry: %w", err)
	}
	if !errors.Is(err, unix.E2BIG) && !errors.Is(err, unix.ENOSPC) {
		return err
	}
	if setting := object.SizeSetting(t.name); setting != "" {
		return fmt.Errorf("map is full at %d entries; raise FelixConfiguration %s and restart the agent: %w", t.m.MaxEntries(), setting, err)
	}
	return fmt.Errorf("map is full at %d entries: %w", t.m.MaxEntries(), err)
}
