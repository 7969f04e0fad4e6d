// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

func TestPlace(t *testing.T) {
	b := func(s string) (out []netip.AddrPort) {
		for _, c := range strings.Fields(s) {
			out = append(out, netip.AddrPortFrom(netip.MustParseAddr("10.0.0."+c), 80))
		}
		return out
	}
	for _, c := range []struct{ before, want, got string }{
		{"", "1 2 3", "1 2 3"},
		{"1 2 3", "1 2 3 4", "1 2 3 4"},
		{"1 2 3 4", "1 3 4", "1 4 3"},
		{"1 2 3 4", "2 3", "3 2"},
		{"1 2 3", "1 2 4", "1 2 4"},
		{"1 2 3", "", ""},
		{"3 2 1", "4 5", "4 5"},
	} {
		got := place(b(c.before), b(c.want))
		want := b(c.got)
		if len(got) != len(want) {
			t.Errorf("%q -> %q: %v", c.before, c.want, got)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%q -> %q: %v, want %v", c.before, c.want, got, want)
				break
			}
		}
	}
}

// TestBackendNumbers: a backend's number stays when others come and go, no two share one, and none
// looks in a ct mark like a flow that is handed on.
func TestBackendNumbers(t *testing.T) {
	var slots []netip.AddrPort
	for i := range 2000 {
		slots = append(slots, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080))
	}
	numbers, seen := backendNumbers(slots), map[uint32]bool{}
	for i, n := range numbers {
		if seen[n] || n&marks.HandedBit != 0 {
			t.Errorf("%s has the number %#x", slots[i], n)
		}
		seen[n] = true
	}
	for i, n := range backendNumbers(slots[:50]) {
		if n != numbers[i] {
			t.Errorf("%s has the number %#x among few, %#x among many", slots[i], n, numbers[i])
		}
	}
}

// TestFullAffinity: remembering a client, which fails where the set is full, is no condition of its
// translation.
func TestFullAffinity(t *testing.T) {
	rules := pickRules(table.Family{}, 3, 60, false)
	last := rules[len(rules)-1]
	if strings.Contains(last, "update") || !strings.Contains(last, "dnat ip to") {
		t.Errorf("the last rule: %s", last)
	}
	if before := rules[len(rules)-2]; !strings.HasPrefix(before, "update @") || strings.Contains(before, "dnat") {
		t.Errorf("the rule that remembers: %s", before)
	}
}
