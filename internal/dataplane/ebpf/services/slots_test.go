// SPDX-License-Identifier: Apache-2.0

package services

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPlace(t *testing.T) {
	for _, tt := range []struct {
		name       string
		have, want []int
		slots      []int
	}{
		{"first", nil, []int{1, 2, 3}, []int{1, 2, 3}},
		{"unchanged in another order", []int{3, 1, 2}, []int{1, 2, 3}, []int{3, 1, 2}},
		{"one gone: the last takes its place", []int{1, 2, 3, 4}, []int{1, 3, 4}, []int{1, 4, 3}},
		{"the last gone", []int{1, 2, 3}, []int{1, 2}, []int{1, 2}},
		{"one replaced: one write", []int{1, 2, 3}, []int{1, 3, 9}, []int{1, 9, 3}},
		{"one more", []int{2, 1}, []int{1, 2, 3}, []int{2, 1, 3}},
		{"all gone", []int{1, 2}, nil, []int{}},
		{"holes and a duplicate found at start", []int{1, 0, 1, 0, 2}, []int{1, 2}, []int{1, 2}},
	} {
		if got := place(tt.have, tt.want); !slices.Equal(got, tt.slots) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.slots)
		}
	}
}

// After any change the list holds what is wanted and nothing else, and no more slots are written
// than backends were added or removed.
func TestPlaceMovesLittle(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 3000 {
		have := slots(r, r.IntN(12))
		want := slots(r, r.IntN(12))
		before := slices.Clone(have)
		got := place(have, want)
		if !slices.Equal(have, before) {
			t.Fatalf("place changed what it was given: %v -> %v", before, have)
		}
		if a, b := sorted(got), sorted(want); !slices.Equal(a, b) {
			t.Fatalf("place(%v, %v) = %v", have, want, got)
		}
		changes, writes := 0, 0
		for _, w := range want {
			if !slices.Contains(have, w) {
				changes++
			}
		}
		for _, h := range have {
			if !slices.Contains(want, h) {
				changes++
			}
		}
		for i, g := range got {
			if i >= len(have) || have[i] != g {
				writes++
			}
		}
		if writes > changes {
			t.Fatalf("place(%v, %v) = %v: %d writes for %d changes", have, want, got, writes, changes)
		}
	}
}

func slots(r *rand.Rand, n int) []int {
	var out []int
	for _, v := range r.Perm(15)[:n] {
		out = append(out, v+1)
	}
	return out
}

func sorted(s []int) []int {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}
