// SPDX-License-Identifier: Apache-2.0

package maptable

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/nettest"
)

// padded has a hole that Go's encoding would leave out.
type padded struct {
	a uint8
	b uint32
}

func newBatchTable(t testing.TB, kind ebpf.MapType, size uint32) *Table[uint64, padded] {
	t.Helper()
	nettest.NeedRoot(t, "making maps")
	spec := &ebpf.MapSpec{Name: "batches", Type: kind, KeySize: 8, ValueSize: 8, MaxEntries: size}
	if kind == ebpf.Hash || kind == ebpf.LPMTrie {
		spec.Flags = 1 // BPF_F_NO_PREALLOC
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return New[uint64, padded]("batches", m, func(k uint64) string { return fmt.Sprint(k) }, new(uint64))
}

// prefixOf is a key of a trie: 32 bits of prefix length, 32 of address.
func prefixOf(i uint64) uint64 { return 32 | i<<32 }

// TestBatches: many entries are written and read as if one by one, also where the kernel takes no
// batches.
func TestBatches(t *testing.T) {
	for _, c := range []struct {
		kind ebpf.MapType
		n    int
	}{{ebpf.Hash, 3}, {ebpf.Hash, 3*batchSize + 17}, {ebpf.LPMTrie, 500}, {ebpf.LRUHash, 500}} {
		t.Run(fmt.Sprint(c.kind, c.n), func(t *testing.T) {
			tab := newBatchTable(t, c.kind, uint32(4*c.n))
			if err := tab.Load(); err != nil {
				t.Fatal(err)
			}
			want := map[uint64]padded{}
			for i := range c.n {
				want[prefixOf(uint64(i))] = padded{uint8(i), uint32(i)}
			}
			tab.Desire(maps.All(want))
			// One is held back, and comes later.
			held := prefixOf(1)
			tab.Write(func(k uint64, _ padded) error {
				if k == held {
					return errors.New("held back")
				}
				return nil
			})
			if errs := tab.Errors(); len(errs) != 1 || int(*tab.writes) != c.n-1 {
				t.Fatalf("%d writes, errors %v", *tab.writes, errs)
			}
			tab.Write(nil)
			if int(*tab.writes) != c.n || tab.Pending() || len(tab.Errors()) > 0 {
				t.Fatalf("%d writes, pending %t, errors %v", *tab.writes, tab.Pending(), tab.Errors())
			}
			for k, v := range want {
				var have padded
				if err := tab.m.Lookup(k, &rawPadded{&have}); err != nil || have != v {
					t.Fatalf("entry %d is %+v, %v; want %+v", k, have, err, v)
				}
			}
			again := New[uint64, padded]("batches", tab.m, tab.show, new(uint64))
			if err := again.Load(); err != nil {
				t.Fatal(err)
			}
			if got := maps.Collect(again.Tracker.All()); !maps.Equal(got, want) {
				t.Fatalf("read %d entries, want %d", len(got), len(want))
			}
			again.Desire(maps.All(want))
			if again.Pending() {
				t.Error("what was read differs from what was written")
			}
		})
	}
}

// rawPadded is filled with a value's memory.
type rawPadded struct{ to *padded }

func (r *rawPadded) UnmarshalBinary(b []byte) error {
	*r.to = padded{b[0], uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24}
	return nil
}

// TestBatchesOfAFullMap: what fits is there, and each entry that does not says why.
func TestBatchesOfAFullMap(t *testing.T) {
	const size, more = batchSize + 100, 50
	tab := newBatchTable(t, ebpf.Hash, size)
	want := map[uint64]padded{}
	for i := range uint64(size + more) {
		want[i] = padded{b: uint32(i)}
	}
	tab.Desire(maps.All(want))
	tab.Write(nil)
	if n := len(tab.Errors()); n != more || tab.Tracker.Len() != size {
		t.Fatalf("%d entries and %d errors, want %d and %d", tab.Tracker.Len(), n, size, more)
	}
	n := 0
	if err := tab.read(func(k uint64, v padded) bool { n++; return want[k] == v }); err != nil || n != size {
		t.Errorf("the map has %d entries, want %d: %v", n, size, err)
	}
}

// processCPU does not count what others do on a busy machine.
func processCPU() time.Duration {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkTable is what it takes to write and to read a hundred thousand entries.
func BenchmarkTable(b *testing.B) {
	for _, single := range []bool{true, false} {
		b.Run(fmt.Sprintf("single %t", single), func(b *testing.B) {
			want := map[uint64]padded{}
			for i := range uint64(100_000) {
				want[i*0x9e3779b97f4a7c15] = padded{b: uint32(i)}
			}
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				tab := newBatchTable(b, ebpf.Hash, 200_000)
				tab.single = single
				tab.Desire(maps.All(want))
				b.StartTimer()
				before := processCPU()
				tab.Write(nil)
				read := tab.read
				if single {
					read = tab.readSingly
				}
				n := 0
				if err := read(func(uint64, padded) bool { n++; return true }); err != nil || n != len(want) {
					b.Fatal(n, err)
				}
				cpu += processCPU() - before
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}
