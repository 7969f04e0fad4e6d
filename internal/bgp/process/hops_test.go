// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// line is a router on a link of its own, i, with the node.
type line struct {
	*routertest.Router
	ns          *nettest.Namespace
	conf        routertest.Config
	here, there []netip.Prefix
}

// newLine makes the link, and a router of an AS on it that advertises networks.
func newLine(t *testing.T, i int, kind string, asn uint32, change func(*routertest.Config)) *line {
	t.Helper()
	l := &line{here: prefixes(fmt.Sprintf("198.51.%d.1/24", 100+i), fmt.Sprintf("2001:db8:%d::1/64", i)), there: prefixes(fmt.Sprintf("198.51.%d.9/24", 100+i), fmt.Sprintf("2001:db8:%d::9/64", i))}
	l.ns = nettest.New(t, fmt.Sprintf("line%d", i))
	nettest.Link(t, fmt.Sprintf("eth%d", i), l.ns, l.here, l.there)
	l.conf = routertest.Config{ASN: asn, ID: l.there[0].Addr()}
	for j := range l.here {
		l.conf.Neighbours = append(l.conf.Neighbours, routertest.Neighbour{Local: l.there[j].Addr(), Remote: l.here[j].Addr(), ASN: nodeASN})
	}
	if change != nil {
		change(&l.conf)
	}
	l.Router = routertest.Start(t, l.ns, kind, l.conf)
	return l
}

func advertising(c *routertest.Config) { c.Networks = networks }

// linesState is a node's with sessions with all of them.
func linesState(lines ...*line) *nodestate.BGP {
	s := &nodestate.BGP{ASN: nodeASN, RouterID: lines[0].here[0].Addr(), ListenPort: 179, Advertise: blocks, Keep: blocks, Pass: slices.Concat(blocks, networks)}
	for _, l := range lines {
		for j := range l.here {
			s.Peers = append(s.Peers, nodestate.BGPPeer{Addr: l.there[j].Addr(), Name: "router", ASN: l.conf.ASN, Source: l.here[j].Addr(), Port: 179, Restart: 120,
				Passive: true}) // both begin at once otherwise, and FRR ends either session
		}
	}
	return s
}

// addrsOf are the addresses of routers of a family.
func addrsOf(family int, lines ...*line) []netip.Addr {
	var out []netip.Addr
	for _, l := range lines {
		out = append(out, l.there[family].Addr())
	}
	return out
}

// by waits until the learned routes to the networks are by these routers, in both families.
func (n *node) by(lines ...*line) {
	n.t.Helper()
	for family, p := range networks {
		n.byAddrs(p, addrsOf(family, lines...)...)
	}
}

func (n *node) byAddrs(p netip.Prefix, want ...netip.Addr) {
	n.t.Helper()
	n.eventually("the routers of "+p.String(), func() error {
		all, err := fib.Listed()
		if err != nil {
			return err
		}
		var have []netip.Addr
		for _, h := range all[p] {
			have = append(have, h.Gateway)
		}
		slices.SortFunc(have, netip.Addr.Compare)
		if !slices.Equal(have, want) {
			return fmt.Errorf("%v, want %v", have, want)
		}
		return nil
	})
}

// What two routers lead to goes by both, and by the other one when one of them does not any more.
// Both are shown as what is in use.
func TestTwoRouters(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		a, b := newLine(t, 0, kind, routerASN, advertising), newLine(t, 1, kind, routerASN+1, advertising)
		nettest.Must(t, nettest.Address("lo", pods...))
		n := newNode(t)
		state := linesState(a, b)
		n.agent.Set(state)
		n.start()
		n.established(4)
		n.by(a, b)
		n.kernel(networks...)
		answer, err := n.agent.Ask(t.Context(), feed.Ask{Prefix: networks[0]})
		nettest.Must(t, err)
		for _, r := range answer.Routes {
			if !r.Best || !r.Installed || r.Gateway != r.NextHop || r.Interface == "" {
				t.Errorf("shown as %+v", r)
			}
		}
		if len(answer.Routes) != 2 {
			t.Errorf("shown are %+v", answer.Routes)
		}
		// The kernel spreads what goes to many addresses.
		for family, p := range networks {
			found := map[string]bool{}
			for i, dst := 0, p.Addr(); i < 200; i++ {
				dst = dst.Next()
				got, err := netlink.RouteGet(dst.AsSlice())
				nettest.Must(t, err)
				found[got[0].Gw.String()] = true
			}
			if len(found) != 2 {
				t.Errorf("family %d: by %v alone", family, found)
			}
		}

		// No moment is without a route.
		updates, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
		nettest.Must(t, netlink.RouteSubscribe(updates, done))
		a.Withdraw(t, a.conf)
		n.by(b)
		less := *state
		less.Peers = state.Peers[2:]
		n.agent.Set(&less)
		n.by(b)
		n.agent.Set(state)
		n.established(4)
		close(done)
		for u := range updates {
			if u.Type == unix.RTM_DELROUTE && u.Protocol == fib.Protocol && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return u.Dst.String() == p.String() }) && len(u.MultiPath) == 0 && u.Gw.String() == b.there[0].Addr().String() {
				t.Errorf("the route %s was taken away", u.Dst)
			}
		}
		b.Withdraw(t, b.conf)
		n.kernel()
	})
}

// A path with the node's own AS number is no route, also where it takes the place of one that was.
func TestLoop(t *testing.T) {
	routertest.Need(t, "bird")
	if !nettest.Isolated(t) {
		return
	}
	a, b := newLine(t, 0, "bird", routerASN, advertising), newLine(t, 1, "bird", routerASN+1, advertising)
	n := newNode(t)
	state := linesState(a, b)
	n.agent.Set(state)
	n.start()
	n.established(4)
	n.by(a, b)
	since := n.agent.Status().Peers[0].Since
	loops := a.conf
	loops.Prepended = nodeASN
	a.Configure(t, loops)
	n.by(b)
	if now := n.agent.Status().Peers[0].Since; !now.Equal(since) {
		t.Errorf("the session began at %s, and anew at %s", since, now)
	}
	allowed := *state
	allowed.Peers = slices.Clone(state.Peers)
	for i := range allowed.Peers {
		allowed.Peers[i].AllowedAS = 1
	}
	b.Withdraw(t, b.conf)
	n.kernel()
	n.agent.Set(&allowed)
	n.by(a)
	loops.Prepended = 0
	a.Configure(t, loops)
	n.agent.Set(state)
	n.by(a)
}

// The next hops of what a node hands on are those that a peer is to have, without a session that
// begins anew. Of its own routes it is the next hop always.
func TestNextHops(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		source := newLine(t, 0, kind, routerASN, advertising)
		inner, outer := newLine(t, 1, kind, nodeASN, nil), newLine(t, 2, kind, routerASN+1, func(c *routertest.Config) {
			for i := range c.Neighbours {
				c.Neighbours[i].Multihop = true
			}
		})
		n := newNode(t)
		n.agent.Set(linesState(source, inner, outer))
		n.start()
		n.established(6)
		since := n.agent.Status().Peers[3].Since
		for _, x := range []struct {
			name            string
			self, unchanged []*line
			inner, outer    *line // whose address the next hop is; nil = this node's
		}{
			{"as BGP has it", nil, nil, source, nil},
			{"the node itself", []*line{inner, outer}, nil, nil, nil},
			{"as it was", nil, []*line{inner, outer}, source, source},
			{"as BGP has it, again", nil, nil, source, nil},
		} {
			t.Log(x.name)
			s := linesState(source, inner, outer)
			for family := range networks {
				s.Self, s.Unchanged = append(s.Self, addrsOf(family, x.self...)...), append(s.Unchanged, addrsOf(family, x.unchanged...)...)
			}
			n.agent.Set(s)
			for _, of := range []struct{ at, by *line }{{inner, x.inner}, {outer, x.outer}} {
				for family, p := range networks {
					want := of.at.here[family].Addr()
					if of.by != nil {
						want = of.by.there[family].Addr()
					}
					n.eventually("the next hop", func() error {
						if got := of.at.NextHop(p); got != want.String() {
							return fmt.Errorf("AS %d has %s by %s, want %s: %s", of.at.conf.ASN, p, got, want, of.at.About(p))
						}
						if got := of.at.NextHop(blocks[family]); got != of.at.here[family].Addr().String() {
							return fmt.Errorf("AS %d has %s by %s", of.at.conf.ASN, blocks[family], got)
						}
						return nil
					})
				}
			}
		}
		if now := n.agent.Status().Peers[3].Since; !now.Equal(since) {
			t.Errorf("the session began at %s, and anew at %s", since, now)
		}
	})
}

// A peer that is no neighbour of the node is reached by the router that its object names, whatever
// the peer itself says of its address.
func TestReachableBy(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		loops := prefixes("192.0.2.99/32", "2001:db8:99::9/128")
		var l *line
		l = newLine(t, 0, kind, nodeASN, func(c *routertest.Config) {
			c.Networks = slices.Concat(networks, loops)
			for i := range loops {
				c.Neighbours[i].Local = loops[i].Addr()
			}
		})
		l.ns.Do(t, "the router's own addresses", func() error { return nettest.Address("lo", loops...) })
		state := linesState(l)
		for i := range loops {
			state.Peers[i].Addr = loops[i].Addr()
			state.Gateways = append(state.Gateways, nodestate.BGPGateway{Peer: loops[i].Addr(), Via: l.there[i].Addr()})
		}
		n := newNode(t)
		n.agent.Set(state)
		n.start()
		n.established(2)
		n.kernel(slices.Concat(networks, loops)...)
		for i := range loops {
			n.byAddrs(loops[i], l.there[i].Addr())
			n.byAddrs(networks[i], l.there[i].Addr())
		}
		n.agent.Set(&nodestate.BGP{ASN: nodeASN, RouterID: state.RouterID, ListenPort: 179})
		n.kernel()
	})
}

// Routes have priorities where a filter is about them: the least is used, the peers of the AS have
// them as local preference, and the node's own routes come before all that others say.
func TestPriorities(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		a := newLine(t, 0, kind, routerASN, func(c *routertest.Config) { c.Networks = slices.Concat(networks, blocks) })
		b, inner := newLine(t, 1, kind, routerASN+1, advertising), newLine(t, 2, kind, nodeASN, nil)
		n := newNode(t)
		state := func(imports, export []model.BGPRule) *nodestate.BGP {
			s := linesState(a, b, inner)
			s.Priorities = imports != nil || export != nil
			for family := range networks {
				s.Filters = append(s.Filters, nodestate.BGPFilter{Peers: addrsOf(family, a), FrontASN: nodeASN, Import: imports}, nodestate.BGPFilter{Peers: addrsOf(family, inner), Export: export})
			}
			return s
		}
		n.agent.Set(state(nil, nil))
		n.start()
		n.established(6)
		n.by(a, b)
		set := func(p uint32) []model.BGPRule { return []model.BGPRule{{Accept: true, SetPriority: p}} }
		for _, x := range []struct {
			name            string
			imports, export []model.BGPRule
			by              []*line
			sent            uint32 // priority of the node's own routes; 0 = they are not sent
		}{
			{"one is a reserve", set(2000), nil, []*line{b}, model.DefaultBGPPriority},
			{"one is preferred", set(1), set(512), []*line{a}, 512},
			{"one has the same", set(model.DefaultBGPPriority), set(2048), []*line{a, b}, 2048},
			{"what has the usual one is rejected", []model.BGPRule{{Priority: model.DefaultBGPPriority}}, []model.BGPRule{{Priority: model.DefaultBGPPriority}}, []*line{b}, 0},
			{"what has another one is not", []model.BGPRule{{Priority: 7}}, []model.BGPRule{{Priority: 7}}, []*line{a, b}, model.DefaultBGPPriority},
			{"no filter is about them", nil, nil, []*line{a, b}, model.MaxBGPPriority - 100},
		} {
			t.Log(x.name)
			n.agent.Set(state(x.imports, x.export))
			n.by(x.by...)
			for family, p := range blocks {
				n.eventually("what is sent", func() error {
					if x.sent == 0 {
						if inner.Knows(p) {
							return fmt.Errorf("%s is known: %s", p, inner.About(p))
						}
						return nil
					}
					if got, want := inner.Preference(p), int(model.MaxBGPPriority-x.sent); got != want || inner.NextHop(p) != inner.here[family].Addr().String() {
						return fmt.Errorf("%s has local preference %d, want %d: %s", p, got, want, inner.About(p))
					}
					return nil
				})
			}
		}
	})
}

// longStale is the community of routes whose peer has been away for long (RFC 9494).
const longStale = "65535:6"

// Either end keeps the other's routes for longer than a graceful restart takes, where both have
// long-lived graceful restart; they come after all others then.
func TestLongLivedRestart(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		const restart = 2
		long := func(c *routertest.Config) { c.Networks, c.Restart, c.LongLived = networks, restart, 600 }
		a, b := newLine(t, 0, kind, routerASN, long), newLine(t, 1, kind, routerASN, advertising)
		state := linesState(a, b)
		for i := range state.Peers {
			state.Peers[i].Passive = false // FRR waits for a peer of which it keeps routes
		}
		for i := range state.Peers[:2] {
			state.Peers[i].Restart, state.Peers[i].LongLived = restart, 600
		}
		n := newNode(t)
		n.agent.Set(state)
		n.start()
		n.established(4)
		n.by(a, b)
		n.knowsBlocks(a.Router)

		n.kill(syscall.SIGKILL)
		isStale := func(want bool) {
			t.Helper()
			for _, p := range blocks {
				n.eventually("what the router keeps", func() error {
					if about := a.About(p); !a.Knows(p) || (a.Has(p, longStale) || a.Has(p, "llgr-stale")) != want {
						return fmt.Errorf("kept for long: %t, want %t: %s", !want, want, about)
					}
					return nil
				})
			}
		}
		isStale(true)
		n.start()
		n.established(4)
		isStale(false)
		n.restored() // what the process before left looks the same
		n.by(a, b)

		a.Kill(t)
		n.by(b)
		b.Withdraw(t, b.conf)
		n.by(a)
		time.Sleep(2 * restart * time.Second) // without it they would be gone
		n.by(a)
	}, routertest.LongLived)
}
