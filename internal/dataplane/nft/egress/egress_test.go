// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"slices"
	"testing"
)

// Of the parts that flows are cut into a gateway that goes gives up its own alone, and one that
// comes back has these again; each gateway has some.
func TestPartsStay(t *testing.T) {
	t.Parallel()
	var all []candidate
	for i := range 8 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		all = append(all, candidate{addr: a, by: ByChain(a)})
	}
	had := map[netip.Addr]int{}
	for _, gone := range all {
		rest := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return c == gone })
		for slot := range slots {
			before, after := best(slot, all), best(slot, rest)
			if before == gone {
				had[gone.addr]++
			} else if after != before {
				t.Errorf("without %s part %d goes from %s to %s", gone.addr, slot, before.addr, after.addr)
			}
		}
	}
	for _, c := range all {
		if n := had[c.addr]; n < slots/len(all)/3 || n > 3*slots/len(all) {
			t.Errorf("%s has %d of %d parts", c.addr, n, slots)
		}
	}
}

// A gateway is read from the name of its chain, of either family.
func TestChosen(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10.244.1.3", "fd00::3"} {
		a := netip.MustParseAddr(text)
		if got := Chosen([]string{"admit", listPrefix + "1", ByChain(a), "forwarded"}); got != a {
			t.Errorf("of %s it reads %s", a, got)
		}
	}
	if got := Chosen([]string{"admit", byPrefix + "x"}); got.IsValid() {
		t.Errorf("of no gateway it reads %s", got)
	}
}
