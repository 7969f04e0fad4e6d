// SPDX-License-Identifier: Apache-2.0

package ebpf

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

// table is one map with the difference between what it holds and what it should hold. K has no
// padding; V may have some, and is laid out in memory as the map's values are.
type table[K, V comparable] struct {
	name    string
	m       *ebpf.Map
	tracker *delta.Tracker[K, V]
	show    func(K) string
	writes  *uint64       // counts what is written and deleted
	single  bool          // the kernel takes no batches for this map
	after   func()        // called after each change of the map; for tests, without batches
	fail    func() error  // called before each write of an entry, which fails by its error; for tests
	keep    func(K) error // the same before each delete
}

func newTable[K, V comparable](name string, m *ebpf.Map, show func(K) string, writes *uint64) *table[K, V] {
	return &table[K, V]{name: name, m: m, tracker: delta.New[K, V](), show: show, writes: writes}
}

// load reads what the map holds.
func (t *table[K, V]) load() error {
	var err error
	t.tracker.Load(func(yield func(K, V) bool) { err = t.read(yield) })
	if err != nil {
		return fmt.Errorf("reading map %s: %w", t.name, err)
	}
	return nil
}

// desire sets the whole wanted contents.
func (t *table[K, V]) desire(entries iter.Seq2[K, V]) { t.tracker.Desire(entries) }

func (t *table[K, V]) pending() bool { return t.tracker.Pending() > 0 }

// errLater holds a change back without a failure.
var errLater = errors.New("not yet")

// write makes the pending writes. ready may hold one back by an error; nil means all are ready.
func (t *table[K, V]) write(ready func(K, V) error) {
	t.writeBatches(ready)
	for k, v := range t.tracker.Writes() {
		if ready != nil {
			if err := ready(k, v); err != nil {
				t.holdBack(k, err)
				continue
			}
		}
		if err := t.put(k, v); err != nil {
			t.tracker.Failed(k, t.explain(err))
			continue
		}
		t.changed()
		t.tracker.Done(k)
	}
}

func (t *table[K, V]) holdBack(k K, err error) {
	if !errors.Is(err, errLater) {
		t.tracker.Failed(k, err)
	}
}

func (t *table[K, V]) put(k K, v V) error {
	if t.fail != nil {
		if err := t.fail(); err != nil {
			return err
		}
	}
	return t.m.Update(&k, unsafe.Pointer(&v), ebpf.UpdateAny)
}

func (t *table[K, V]) delete(k K) error {
	if t.keep != nil {
		if err := t.keep(k); err != nil {
			return err
		}
	}
	return t.m.Delete(&k)
}

func (t *table[K, V]) changed() {
	*t.writes++
	if t.after != nil {
		t.after()
	}
}

// interim makes the map hold v at a key until its pending change is made, and reports whether it
// does.
func (t *table[K, V]) interim(k K, v V) bool {
	if have, ok := t.tracker.Actual(k); ok && have == v {
		return true
	}
	if err := t.put(k, v); err != nil {
		t.tracker.Failed(k, t.explain(err))
		return false
	}
	t.changed()
	t.tracker.Interim(k, v)
	return true
}

// remove makes the pending deletes. ready is as in write.
func (t *table[K, V]) remove(ready func(K) error) {
	for k := range t.tracker.Deletes() {
		if ready != nil {
			if err := ready(k); err != nil {
				t.holdBack(k, err)
				continue
			}
		}
		if err := t.delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.tracker.Failed(k, err)
			continue
		}
		t.changed()
		t.tracker.Done(k)
	}
}

// errors returns a KeyError for each key whose change failed.
func (t *table[K, V]) errors() []error {
	var errs []error
	for k, err := range t.tracker.Failures() {
		errs = append(errs, &dataplane.KeyError{Table: t.name, Key: t.show(k), Err: err})
	}
	return errs
}

// explain adds what to do to errors that users can do something about.
func (t *table[K, V]) explain(err error) error {
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
