// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// tracked enters n connections from an address into connection tracking.
func tracked(n int, from netip.Addr) error {
	t, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer t.Close()
	for i := range n {
		orig := conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: from, Dst: netip.AddrFrom4([4]byte{192, 0, 2, byte(i >> 16)}), SrcPort: uint16(i), DstPort: 53}
		if err := t.Create(conntrack.Entry{Orig: orig, Reply: orig.Reversed(), Status: conntrack.Confirmed, Left: time.Hour}); err != nil {
			return err
		}
	}
	return nil
}

// A pod's connections are those that any of its addresses began.
func TestConnectionsOfPods(t *testing.T) {
	nettest.Run(t, func(string) error {
		s := nodestate.New()
		addr := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, i}) }
		for i := range byte(3) { // the first two are of one pod
			s.Addrs[addr(2+i)] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: fmt.Sprint("cali", max(i, 1))}
		}
		for i, n := range map[byte]int{2: 30, 3: 40, 4: 60, 9: 100} {
			if err := tracked(n, addr(i)); err != nil {
				return err
			}
		}
		p := podsOf(s)
		if err := p.count(); err != nil {
			return err
		}
		if held := p.held(65); len(held) != 1 || held[0] != (dataplane.HeldPod{Addr: addr(3), Entries: 70}) {
			t.Errorf("held are %v", held)
		}
		shares, refuse := p.shares(65), "goto "+expr.DenyName(reason.Share, 0)
		if len(shares) != 3 || shares[addr(2)] != refuse || shares[addr(3)] != refuse || shares[addr(4)] != "goto "+chains.PodPressedChain {
			t.Errorf("shares are %v", shares)
		}
		return nil
	})
}

// BenchmarkCountConnections is what a count takes with 130,000 connections, half of the table as it
// is by default.
func BenchmarkCountConnections(b *testing.B) {
	nettest.Run(b, func(string) error {
		from := netip.MustParseAddr("10.244.1.2")
		s := nodestate.New()
		s.Addrs[from] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali1"}
		if err := tracked(130_000, from); err != nil {
			return err
		}
		for b.Loop() {
			p := podsOf(s)
			if err := p.count(); err != nil {
				return err
			}
			if p.of[from] < 130_000 {
				return fmt.Errorf("%d connections are counted", p.of[from])
			}
		}
		return nil
	})
}
