// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"
)

// Connections to an address and port are forgotten where they are translated to elsewhere, in any
// zone; others stay.
func TestFree(t *testing.T) {
	table := opened(t)
	wrong := examples()["service"]
	asked := netip.AddrPortFrom(wrong.Orig.Dst, wrong.Orig.DstPort)
	apart := wrong
	apart.Orig.SrcPort++
	apart.Reply.DstPort++
	right := wrong
	right.Orig.SrcPort += 2
	right.Reply = right.Orig.Reversed()
	for _, e := range []struct {
		at *Table
		Entry
	}{{table, wrong}, {table.In(7), apart}, {table, right}} {
		if err := e.at.Create(e.Entry); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		to   []netip.AddrPort
		want int
	}{{nil, 0}, {[]netip.AddrPort{netip.AddrPortFrom(asked.Addr(), asked.Port()+1)}, 0}, {[]netip.AddrPort{asked}, 2}, {[]netip.AddrPort{asked}, 0}} {
		if got, err := Free(c.to); got != c.want || err != nil {
			t.Errorf("freed to %v: %d (%v), want %d", c.to, got, err, c.want)
		}
	}
	if _, found, err := table.Find(right.Orig); !found || err != nil {
		t.Errorf("the connection that is not translated: %t (%v)", found, err)
	}
	if err := table.Delete(right.Orig); err != nil { // other tests have this namespace, too
		t.Error(err)
	}
}
