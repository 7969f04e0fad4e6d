// SPDX-License-Identifier: Apache-2.0

package services

// place gives every wanted backend a slot of a list, and moves as few as possible: a backend that
// has a slot keeps it, a new one takes the slot of one that went away, and a hole that is left is
// filled with the last. So one endpoint's change is one or two writes, whatever the length of the
// list. The zero value in have is a hole. want has no duplicates and not the zero value. The result
// has the length of want and no holes. have is not changed.
func place[T comparable](have, want []T) []T {
	var hole T
	wanted := make(map[T]bool, len(want)) // to: has a slot
	for _, w := range want {
		wanted[w] = false
	}
	slots := make([]T, len(have), max(len(have), len(want)))
	var holes []int
	for i, h := range have {
		placed, ok := wanted[h]
		if !ok || placed || h == hole {
			holes = append(holes, i)
			continue
		}
		wanted[h] = true
		slots[i] = h
	}
	for _, w := range want {
		if wanted[w] {
			continue
		}
		if len(holes) > 0 {
			slots[holes[0]] = w
			holes = holes[1:]
			continue
		}
		slots = append(slots, w)
	}
	return compact(slots, holes)
}

// compact fills holes, given in ascending order, from the end.
func compact[T comparable](slots []T, holes []int) []T {
	for len(holes) > 0 {
		last := len(slots) - 1
		if holes[len(holes)-1] == last {
			holes = holes[:len(holes)-1]
		} else {
			slots[holes[0]] = slots[last]
			holes = holes[1:]
		}
		slots = slots[:last]
	}
	return slots
}
