// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/maglev"
	"github.com/weir-net/weir/internal/nodestate"
)

// maglevTables are the Maglev tables of service ports: a map of maps, one array for each. A
// backend's change writes the slots that change; a table of another size is made alongside the old
// one, and takes its place at once.
type maglevTables[A abi.Address] struct {
	outer    *ebpf.Map
	writes   *uint64
	have     map[abi.SvcKey[A]]*maglevTable[A]
	want     map[abi.SvcKey[A]][]abi.Backend[A]
	planned  map[nodestate.Frontend][]nodestate.Backend // what want was computed from
	failures map[abi.SvcKey[A]]error
	dirty    map[abi.SvcKey[A]]struct{} // those of want that may not be in the kernel
}

// maglevTable is an array in the kernel and what it holds.
type maglevTable[A abi.Address] struct {
	m     *ebpf.Map
	slots []abi.Backend[A]
}

func newMaglevTables[A abi.Address](outer *ebpf.Map, writes *uint64) *maglevTables[A] {
	return &maglevTables[A]{outer: outer, writes: writes, have: map[abi.SvcKey[A]]*maglevTable[A]{}, want: map[abi.SvcKey[A]][]abi.Backend[A]{},
		planned: map[nodestate.Frontend][]nodestate.Backend{}, failures: map[abi.SvcKey[A]]error{}, dirty: map[abi.SvcKey[A]]struct{}{}}
}

// load reads the tables that are there.
func (t *maglevTables[A]) load() error {
	t.close()
	it := t.outer.Iterate()
	var key abi.SvcKey[A]
	for id := ebpf.MapID(0); it.Next(&key, &id); {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return fmt.Errorf("opening the Maglev table of %s: %w", abi.ShowSvc(key), err)
		}
		slots := make([]abi.Backend[A], m.MaxEntries())
		if err := readArray(m, slots); err != nil {
			return errors.Join(fmt.Errorf("reading the Maglev table of %s: %w", abi.ShowSvc(key), err), m.Close())
		}
		t.have[key] = &maglevTable[A]{m: m, slots: slots}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("reading map weir_maglev: %w", err)
	}
	return nil
}

func readArray[A abi.Address](m *ebpf.Map, slots []abi.Backend[A]) error {
	keys := make([]uint32, len(slots))
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, keys, slots, nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) { // the end
		err = nil
	}
	if err == nil && n != len(slots) {
		err = fmt.Errorf("%d of %d slots", n, len(slots))
	}
	return err
}

// close forgets the arrays; the kernel keeps those that are in the map.
func (t *maglevTables[A]) close() {
	for k, have := range t.have {
		have.m.Close()
		delete(t.have, k)
	}
}

// plan computes the table of a service port, when it is to have one and its backends are not those
// of before.
func (t *maglevTables[A]) plan(id nodestate.Frontend, wanted bool, list []nodestate.Backend) {
	key := abi.ToSvc[A](id)
	if !wanted {
		delete(t.planned, id)
		delete(t.want, key)
		return
	}
	if before, ok := t.planned[id]; ok && slices.Equal(before, list) {
		return
	}
	t.planned[id] = list
	t.want[key] = maglevSlots[A](list)
	t.dirty[key] = struct{}{}
}

// maglevSlots computes a service port's table, nil when it has no backend.
func maglevSlots[A abi.Address](list []nodestate.Backend) []abi.Backend[A] {
	var addrs []netip.AddrPort
	var values []abi.Backend[A]
	for _, b := range list {
		if !b.InList(false) || !abi.Carries[A](b.Addr) {
			continue
		}
		v := abi.Backend[A]{Addr: abi.ToAddr[A](b.Addr), Port: abi.Be16(b.Port)}
		if b.InList(true) {
			v.Flags = abi.SlotLocal
		}
		addrs, values = append(addrs, netip.AddrPortFrom(b.Addr, b.Port)), append(values, v)
	}
	var slots []abi.Backend[A]
	for _, i := range maglev.Table(addrs) {
		slots = append(slots, values[i])
	}
	return slots
}

// size returns the number of slots of a wanted table.
func (t *maglevTables[A]) size(id abi.SvcKey[A]) uint32 { return uint32(len(t.want[id])) }

// write makes the tables that have slots what they should be.
func (t *maglevTables[A]) write() {
	clear(t.failures)
	for id := range t.dirty {
		slots := t.want[id]
		if len(slots) > 0 {
			if err := t.writeOne(id, slots); err != nil {
				t.failures[id] = err
				continue
			}
		}
		delete(t.dirty, id)
	}
}

func (t *maglevTables[A]) writeOne(id abi.SvcKey[A], slots []abi.Backend[A]) error {
	have := t.have[id]
	if have != nil && len(have.slots) == len(slots) {
		return t.change(have, slots)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_maglev_one", Type: ebpf.Array, KeySize: 4,
		ValueSize: uint32(unsafe.Sizeof(abi.Backend[A]{})), MaxEntries: uint32(len(slots)), Flags: unix.BPF_F_INNER_MAP})
	if err != nil {
		return fmt.Errorf("making a table of %d slots: %w", len(slots), err)
	}
	next := &maglevTable[A]{m: m, slots: make([]abi.Backend[A], len(slots))}
	if err := t.change(next, slots); err != nil {
		return errors.Join(err, m.Close())
	}
	if err := t.outer.Update(&id, m, ebpf.UpdateAny); err != nil {
		return errors.Join(fmt.Errorf("putting a table of %d slots in place: %w", len(slots), err), m.Close())
	}
	*t.writes++
	t.have[id] = next
	if have != nil {
		return have.m.Close()
	}
	return nil
}

// change writes the slots that differ.
func (t *maglevTables[A]) change(have *maglevTable[A], slots []abi.Backend[A]) error {
	var keys []uint32
	var values []abi.Backend[A]
	for i, b := range slots {
		if have.slots[i] != b {
			keys, values = append(keys, uint32(i)), append(values, b)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	n, err := have.m.BatchUpdate(keys, values, nil)
	for i := range n {
		have.slots[keys[i]] = values[i]
	}
	*t.writes += uint64(n)
	if err != nil {
		return fmt.Errorf("writing %d slots: %w", len(keys), err)
	}
	return nil
}

// remove deletes the tables that no frontend uses any more.
func (t *maglevTables[A]) remove() {
	for id, have := range t.have {
		if len(t.want[id]) > 0 {
			continue
		}
		if err := t.outer.Delete(&id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.failures[id] = err
			continue
		}
		*t.writes++
		have.m.Close()
		delete(t.have, id)
	}
}

func (t *maglevTables[A]) errors() []error {
	var errs []error
	for id, err := range t.failures {
		errs = append(errs, &dataplane.KeyError{Table: "weir_maglev", Key: abi.ShowSvc(id), Err: err})
	}
	return errs
}

// check compares a table in the kernel with what the backends ask for.
func (t *maglevTables[A]) check(id abi.SvcKey[A], list []nodestate.Backend) error {
	want := maglevSlots[A](list)
	have := t.have[id]
	if len(want) == 0 && have == nil {
		return nil
	}
	if have == nil || !slices.Equal(have.slots, want) {
		return fmt.Errorf("the Maglev table of %s is not that of its %d backends", abi.ShowSvc(id), len(list))
	}
	return nil
}
