// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"iter"
	"math/bits"
)

// slotSet is a set of nodes, or of groups, by their slots.
type slotSet []uint64

func (s *slotSet) add(slot int) {
	for len(*s) <= slot/64 {
		*s = append(*s, 0)
	}
	(*s)[slot/64] |= 1 << (slot % 64)
}

func (s slotSet) remove(slot int) {
	if slot/64 < len(s) {
		s[slot/64] &^= 1 << (slot % 64)
	}
}

func (s slotSet) has(slot int) bool { return slot/64 < len(s) && s[slot/64]&(1<<(slot%64)) != 0 }

// merge adds what another set has.
func (s *slotSet) merge(o slotSet) {
	for len(*s) < len(o) {
		*s = append(*s, 0)
	}
	for i, w := range o {
		(*s)[i] |= w
	}
}

// less yields the slots that another set has not.
func (s slotSet) less(o slotSet) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s {
			if i < len(o) {
				w &^= o[i]
			}
			for ; w != 0; w &= w - 1 {
				if !yield(i*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// all yields the slots.
func (s slotSet) all() iter.Seq[int] { return s.less(nil) }
