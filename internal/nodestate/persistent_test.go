// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestMapIsAMap plays random changes on a Map and on a Go map, and holds that every copy that was
// taken in between keeps its contents, and that Changes between any two copies is what a full
// comparison finds.
func TestMapIsAMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		type copied struct {
			m    Map[int, int]
			want map[int]int
		}
		var kept []copied
		want := map[int]int{}
		var e Editor[int, int]
		keys := 1 + r.IntN(3000)
		for step := range 4000 {
			k := r.IntN(keys)
			if r.IntN(5) < 2 || step > 3000 && r.IntN(4) > 0 {
				e.Delete(k)
				delete(want, k)
			} else {
				v := r.IntN(3)
				e.Set(k, v)
				want[k] = v
			}
			if r.IntN(500) == 0 {
				kept = append(kept, copied{e.Map(), maps.Clone(want)})
			}
			if r.IntN(900) == 0 && len(kept) > 0 { // go on from an older copy
				from := kept[r.IntN(len(kept))]
				e, want = from.m.Edit(), maps.Clone(from.want)
			}
		}
		kept = append(kept, copied{e.Map(), want}, copied{MapOf(want), want}, copied{Collect(maps.All(want), 0), want}, copied{})
		for i, a := range kept {
			if got := maps.Collect(a.m.All()); !maps.Equal(got, a.want) || a.m.Len() != len(a.want) {
				t.Fatalf("seed %d: copy %d has %d entries (%d counted), want %d", seed, i, len(got), a.m.Len(), len(a.want))
			}
			for k := range keys {
				got, ok := a.m.Get(k)
				if v, is := a.want[k]; got != v || ok != is {
					t.Fatalf("seed %d: copy %d: key %d is %d, %t; want %d, %t", seed, i, k, got, ok, v, is)
				}
			}
			for _, b := range kept {
				compare(t, a.m, b.m, a.want, b.want)
			}
		}
	}
}

func compare(t *testing.T, a, b Map[int, int], before, after map[int]int) {
	t.Helper()
	got := map[int]Change[int]{}
	for k, c := range Changes(a, b, func(x, y int) bool { return x == y }) {
		if _, twice := got[k]; twice {
			t.Fatalf("key %d was named twice", k)
		}
		got[k] = c
	}
	want := map[int]Change[int]{}
	for k, v := range before {
		if now, ok := after[k]; !ok || now != v {
			want[k] = Change[int]{Before: v, After: now, Was: true, Is: ok}
		}
	}
	for k, v := range after {
		if _, ok := before[k]; !ok {
			want[k] = Change[int]{After: v, Is: true}
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("changes %v, want %v", got, want)
	}
	if EqualMaps(a, b) != maps.Equal(before, after) {
		t.Fatalf("EqualMaps is %t", !maps.Equal(before, after))
	}
}

// TestChangesLooksAtLittle holds what the data plane's cost of a change rests on: one changed key
// among many is found by looking at a few entries.
func TestChangesLooksAtLittle(t *testing.T) {
	t.Parallel()
	plain := map[int]int{}
	for i := range 200000 {
		plain[i] = i
	}
	a := MapOf(plain)
	b := a
	b.Set(777, -1)
	looked := 0
	found := 0
	for k := range Changes(a, b, func(x, y int) bool { looked++; return x == y }) {
		if k != 777 {
			t.Errorf("key %d did not change", k)
		}
		found++
	}
	if found != 1 || looked > mapLeaf {
		t.Errorf("%d changes found by %d comparisons among %d entries", found, looked, a.Len())
	}
}

func TestMapCrossesProcesses(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := New()
	s.Rules.Set(7, Rule{Kind: "Service", Name: "default/a"})
	if err := gob.NewEncoder(&b).Encode(s); err != nil {
		t.Fatal(err)
	}
	got := New()
	if err := gob.NewDecoder(&b).Decode(got); err != nil || !Equal(s, got) {
		t.Errorf("%v\n%s", err, Diff(s, got))
	}
}

func BenchmarkMap(b *testing.B) {
	type key struct {
		_    [3]uint64 // addresses, in the keys that there are
		port uint32
	}
	for _, n := range []int{100, 10000, 100000} {
		var e Editor[key, int]
		for i := range n {
			e.Set(key{port: uint32(i)}, i)
		}
		m := e.Map()
		b.Run(fmt.Sprintf("set/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c := m
				c.Set(key{port: uint32(i % n)}, -1)
			}
		})
		b.Run(fmt.Sprintf("get/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				m.Get(key{port: uint32(i % n)})
			}
		})
		b.Run(fmt.Sprintf("fill/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var e Editor[key, int]
				for i := range n {
					e.Set(key{port: uint32(i)}, i)
				}
			}
		})
		b.Run(fmt.Sprintf("walk/%d", n), func(b *testing.B) {
			for b.Loop() {
				for range m.All() {
				}
			}
		})
	}
}
