// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

func TestTurnFindsFreeBases(t *testing.T) {
	used := []uint16{1, 0}
	for base := 1; base < 8; base++ {
		want := min(8-base, 2)
		if got := freeBases(used); len(got) != want || want > 0 && got[0] != uint16(base*sourceBase) || slices.Contains(got, 0) {
			t.Errorf("with %v in use: %v", used, got)
		}
		used = append(used, uint16(base*sourceBase+base%2))
	}
	if got := freeBases(used); len(got) != 0 {
		t.Errorf("with all in use: %v", got)
	}
}

// Two policies meet in as many tables of source ports as there are numbers in a base: the last one
// has its own in each base, and what would take another is denied.
func TestTurnOfMorePairsThanNumbers(t *testing.T) {
	side := verdicts{}
	for n := uint16(1); n <= 2; n++ {
		side[abi.WeirPolicyKey{Head: 1, Sources: n}] = abi.WeirPolicyValue{Verdict: abi.PolicyAllow}
	}
	m := &intersection{a: side, b: side, out: verdicts{}, tables: map[[2]uint16]uint16{}}
	numbers := verdicts{}
	for n := uint16(1); n < sourceBase-1; n++ {
		m.tables[[2]uint16{n, 1 << 15}] = n
		numbers[abi.WeirPolicyKey{Head: 1, Sources: n}] = abi.WeirPolicyValue{}
	}
	pair := func(x, y uint16) abi.WeirPolicyValue {
		return m.value(abi.WeirPolicyValue{Sources: x}, abi.WeirPolicyValue{Sources: y})
	}
	last := pair(1, 1)
	for _, v := range []abi.WeirPolicyValue{pair(1, 2), pair(2, 1)} {
		if v.Sources != 0 || allowing(v) {
			t.Errorf("without a number: %+v", v)
		}
	}
	if again := pair(1, 1); last.Sources == 0 || again != last || !allowing(m.out[abi.WeirPolicyKey{Head: 1, Sources: last.Sources}]) {
		t.Errorf("the last number: %+v, and asked again %+v", last, again)
	}
	numbers[abi.WeirPolicyKey{Head: 1, Sources: last.Sources}] = last
	if moved := numbers.shift(7 * sourceBase); len(moved) != sourceBase-1 {
		t.Errorf("%d numbers in another base, not %d", len(moved), sourceBase-1)
	}
}
