// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLoosenAll: of TCP connections of these addresses, in either direction, no window is looked at
// any more; those of others, and those that are translated, stay as they are.
func TestLoosenAll(t *testing.T) {
	table := opened(t)
	const tcp = unix.IPPROTO_TCP
	entry := func(orig Tuple, reply Tuple) Entry {
		return Entry{Orig: orig, Reply: reply, Left: time.Hour, Status: SeenReply | Assured | Confirmed, TCP: TCP{State: TCPEstablished}}
	}
	from := tuple(tcp, "10.9.1.2:40000", "10.9.2.2:80", 0)
	to := tuple(tcp, "10.9.2.3:40000", "10.9.1.2:80", 0)
	six := tuple(tcp, "[fd09::2]:40000", "[fd09:1::3]:80", 0)
	other := tuple(tcp, "10.9.3.2:40000", "10.9.2.2:80", 0)
	service := tuple(tcp, "10.9.1.2:40001", "10.96.9.1:80", 0)
	want := map[Tuple]bool{from: true, to: true, six: true, other: false, service: false}
	for of := range want {
		reply := of.Reversed()
		if of == service {
			reply = tuple(tcp, "10.9.2.2:8080", "10.9.1.2:40001", 0)
		}
		if err := table.Create(entry(of, reply)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = table.Delete(of) })
	}
	pods := map[netip.Addr]bool{netip.MustParseAddr("10.9.1.2"): true, netip.MustParseAddr("fd09::2"): true}
	if err := LoosenAll(func(a netip.Addr) bool { return pods[a] }); err != nil {
		t.Fatal(err)
	}
	for of, loose := range want {
		e, there, err := table.Find(of)
		if err != nil || !there {
			t.Fatalf("%s: %v, %v", of, there, err)
		}
		if is := e.TCP.OrigFlags&TCPLiberal != 0 && e.TCP.RepFlags&TCPLiberal != 0; is != loose || e.TCP.State != TCPEstablished {
			t.Errorf("%s: %+v, want loose: %v", of, e.TCP, loose)
		}
	}
}
