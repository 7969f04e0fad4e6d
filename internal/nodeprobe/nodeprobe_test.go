// SPDX-License-Identifier: Apache-2.0

package nodeprobe

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/nettest"
)

// TestProbes: a node on a link that is cut is down, of both families, and is no more when the link
// is back. One that never answered is not.
func TestProbes(t *testing.T) {
	if !nettest.Isolated(t) {
		return
	}
	other := nettest.New(t, "other")
	otherSix := netip.MustParsePrefix("2001:db8::2/64")
	nettest.Link(t, "here", other, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")},
		[]netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), otherSix})
	var mu sync.Mutex
	var down map[netip.Addr]bool
	p := New(Config{Log: slog.New(slog.DiscardHandler), Down: func(now map[netip.Addr]bool) {
		mu.Lock()
		down = now
		mu.Unlock()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	nodes := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.2"): true, netip.MustParseAddr("2001:db8::2"): true}
	never := netip.MustParseAddr("192.0.2.3")
	probed := maps.Clone(nodes)
	probed[never] = true
	p.Update(probed)
	is := func(want map[netip.Addr]bool) error {
		mu.Lock()
		defer mu.Unlock()
		if !maps.Equal(down, want) {
			return fmt.Errorf("down are %v, want %v", down, want)
		}
		return nil
	}
	await.That(t, "both are known on the link", func() error {
		for a := range nodes {
			l, err := netlink.LinkByName("here")
			if err != nil {
				return err
			}
			list, err := netlink.NeighList(l.Attrs().Index, 0)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(list, func(n netlink.Neigh) bool {
				return n.IP.Equal(net.IP(a.AsSlice())) && n.State&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY) != 0
			}) {
				return fmt.Errorf("%v is not: %v", a, list)
			}
		}
		return nil
	})
	time.Sleep(10 * tick)
	nettest.Must(t, is(nil))
	other.Do(t, "cutting the link", func() error {
		l, err := netlink.LinkByName("up")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l) // which takes its address of IPv6 away
	})
	cut := time.Now()
	await.That(t, "both are down", func() error { return is(nodes) })
	t.Logf("taken as down after %v", time.Since(cut))
	nettest.Figure(t, "a node without a link taken as down after, ms", float64(time.Since(cut).Milliseconds()))
	other.Do(t, "mending the link", func() error { return nettest.Address("up", otherSix) })
	await.That(t, "none is down", func() error { return is(map[netip.Addr]bool{}) })
	p.Update(nil)
	cancel()
	nettest.Must(t, <-ended)
}

// TestForgedReply: who has not seen a request cannot answer it.
func TestForgedReply(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("192.0.2.2")
	p := New(Config{})
	p.known[a] = &node{}
	wrong := p.token
	wrong[0]++
	p.note(a, p.id, wrong[:])
	p.note(a, p.id, p.token[1:])
	p.note(a, p.id+1, p.token[:])
	p.note(netip.MustParseAddr("192.0.2.3"), p.id, p.token[:])
	if p.known[a].heardNow {
		t.Error("a forged reply counts")
	}
	if p.note(a, p.id, p.token[:]); !p.known[a].heardNow {
		t.Error("the node's own reply does not count")
	}
}

// TestUpdateNode: a node is down by ticks without an answer, one after the other, if it ever
// answered.
func TestUpdateNode(t *testing.T) {
	t.Parallel()
	for ticks, want := range map[string]bool{
		"": false, "----------": false, "+---": false, "+----": true, "+---+---": false, "+----++": true, "+----+++": false, "+----++-++": true, "+----+++---": false,
	} {
		n := &node{asked: true}
		for _, c := range ticks {
			n.heardNow = c == '+'
			n.update()
		}
		if n.down != want {
			t.Errorf("after %q it is down: %v, want %v", ticks, n.down, want)
		}
	}
}
