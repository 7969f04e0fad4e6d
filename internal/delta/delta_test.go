// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// carryOut makes the pending changes of t in table, and returns how many they were.
func carryOut(t *Tracker[int, string], table map[int]string) int {
	n := t.Pending()
	for k, v := range t.Writes() {
		table[k] = v
		t.Done(k)
	}
	for k := range t.Deletes() {
		delete(table, k)
		t.Done(k)
	}
	return n
}

func TestFullDesireWritesOnlyDifferences(t *testing.T) {
	table := map[int]string{1: "a", 2: "b", 3: "c"}
	tr := New[int, string]()
	tr.Load(maps.All(table))
	if tr.Pending() != 0 {
		t.Fatalf("pending after load: %d", tr.Pending())
	}
	tr.Desire(maps.All(map[int]string{1: "a", 2: "B", 4: "d"}))
	if n := carryOut(tr, table); n != 3 {
		t.Errorf("changes: %d, want 3 (write 2 and 4, delete 3)", n)
	}
	if want := map[int]string{1: "a", 2: "B", 4: "d"}; !maps.Equal(table, want) {
		t.Errorf("table %v, want %v", table, want)
	}
	tr.Desire(maps.All(table))
	if tr.Pending() != 0 {
		t.Errorf("pending when nothing changed: %d", tr.Pending())
	}
}

func TestChangeTakenBackIsNotPending(t *testing.T) {
	tr := New[int, string]()
	tr.Load(maps.All(map[int]string{1: "a"}))
	tr.Set(1, "b")
	tr.Set(2, "x")
	tr.Unset(2)
	tr.Set(1, "a")
	if tr.Pending() != 0 {
		t.Errorf("pending: %d, want 0", tr.Pending())
	}
	tr.Unset(1)
	tr.Set(1, "a")
	if tr.Pending() != 0 {
		t.Errorf("pending after delete taken back: %d, want 0", tr.Pending())
	}
}

func TestFailedStaysPending(t *testing.T) {
	tr := New[int, string]()
	tr.Set(1, "a")
	tr.Failed(1, errors.New("full"))
	if tr.Pending() != 1 {
		t.Fatalf("pending: %d, want 1", tr.Pending())
	}
	failures := maps.Collect(tr.Failures())
	if len(failures) != 1 || failures[1].Error() != "full" {
		t.Errorf("failures %v", failures)
	}
	tr.Desire(maps.All(map[int]string{1: "a"}))
	if keys := slices.Collect(tr.FailedKeys()); len(keys) != 1 || len(maps.Collect(tr.Failures())) != 1 {
		t.Error("the failure is forgotten while the change is pending")
	}
	tr.Desire(maps.All(map[int]string{}))
	if tr.Pending() != 0 || len(maps.Collect(tr.Failures())) != 0 {
		t.Error("something is left of a change that is no longer wanted")
	}
	if _, ok := tr.Actual(1); ok {
		t.Error("a failed write counts as made")
	}
}

// A random mixture of full and partial desires, carried out or not, ends with the table as desired.
func TestRandomSequencesConverge(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		table, want := map[int]string{}, map[int]string{}
		for range 5 {
			table[r.IntN(20)] = string(rune('a' + r.IntN(3)))
		}
		tr := New[int, string]()
		tr.Load(maps.All(table))
		tr.Desire(maps.All(want))
		for range 60 {
			k, v := r.IntN(20), string(rune('a'+r.IntN(3)))
			switch r.IntN(5) {
			case 0:
				want = map[int]string{}
				for range r.IntN(20) {
					want[r.IntN(20)] = string(rune('a' + r.IntN(3)))
				}
				tr.Desire(maps.All(want))
			case 1:
				carryOut(tr, table)
				if !maps.Equal(table, want) {
					t.Fatalf("seed %d: table %v, want %v", seed, table, want)
				}
			case 2:
				delete(want, k)
				tr.Unset(k)
			default:
				want[k] = v
				tr.Set(k, v)
			}
			if got, ok := tr.Desired(k); got != want[k] || ok != (want[k] != "") {
				t.Fatalf("seed %d: desired of %d is %q, want %q", seed, k, got, want[k])
			}
		}
	}
}
