// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// TestDifferentialDual lets random packets of both families meet random states that calc made of
// clusters of two families. Now and then IPv6 is switched off.
func TestDifferentialDual(t *testing.T) {
	r := newRunner(t)
	differ(t, r, bench{scenario.Both(r.New), func(c *model.Cluster) *nodestate.State {
		dual := scenario.Dual(c)
		dual.Settings.IPv6Support = c.Settings.HostNAT || c.Settings.DSR
		return calc.Calc(dual)
	}, r.Reset})
}

// TestBothFamiliesAlike: in a cluster in which everything has an address of each family, calc says
// of IPv6 what it says of IPv4 in one of IPv4 alone.
func TestBothFamiliesAlike(t *testing.T) {
	for seed := range uint64(200) {
		r := newCrowd(seed)
		for range r.IntN(4) {
			r.change()
		}
		four, dual := calc.Calc(r.c), calc.Calc(scenario.Dual(r.c))
		if !dual.Settings.IPv6 || dual.Settings.Node6 != scenario.Six(ownAddr) {
			t.Fatalf("seed %d: IPv6=%t, node %s", seed, dual.Settings.IPv6, dual.Settings.Node6)
		}
		if d := nodestate.Diff(ofIPv6(scenario.SixState(four)), ofIPv6(dual)); d != "" {
			t.Fatalf("seed %d: - IPv4, mirrored, + IPv6 alongside it\n%s", seed, d)
		}
		sameVerdicts(t, seed, r, four, dual)
	}
}

// ofIPv6 are the tables of IPv6 in a state without numbers that are made from texts.
func ofIPv6(s *nodestate.State) *nodestate.State {
	out := nodestate.New()
	out.Settings.PoolRoutes = map[netip.Prefix]int{}
	for a, v := range s.Addrs {
		if a.Is6() {
			v.Ingress, v.Egress = nodestate.Isolation{}, nodestate.Isolation{}
			out.Addrs[a] = v
		}
	}
	for p, v := range s.Routes {
		if p.Addr().Is6() {
			out.Routes[p] = v
		}
	}
	for p := range s.Settings.PoolRoutes {
		if p.Addr().Is6() {
			out.Settings.PoolRoutes[p] = 0
		}
	}
	for _, p := range s.Settings.DSROptOut {
		if p.Addr().Is6() {
			out.Settings.DSROptOut = append(out.Settings.DSROptOut, p)
		}
	}
	fronts, backs, ranges := out.Frontends.Edit(), out.Backends.Edit(), out.SourceRanges.Edit()
	for f, v := range s.Frontends.All() {
		if f.Addr.Is6() {
			v.Rule = 0
			fronts.Set(f, v)
		}
	}
	for f, v := range s.Backends.All() {
		if f.Addr.Is6() {
			backs.Set(f, v)
		}
	}
	for f, v := range s.SourceRanges.All() {
		if f.Addr.Is6() {
			ranges.Set(f, v)
		}
	}
	out.Frontends, out.Backends, out.SourceRanges = fronts.Map(), backs.Map(), ranges.Map()
	for cookie, c := range s.Clients {
		if c.IPv6.IsValid() {
			out.Clients[cookie] = nodestate.Client{IPv6: c.IPv6}
		}
	}
	return out
}

// sameVerdicts compares what policy says of pods in one state with what it says in another of their
// addresses of IPv6.
func sameVerdicts(t *testing.T, seed uint64, r *crowd, four, dual *nodestate.State) {
	t.Helper()
	say := func(s *nodestate.State, iso nodestate.Isolation, peer netip.Addr, proto model.Protocol, port uint16) string {
		if proto == model.ProtocolICMP && peer.Is6() {
			proto, port = model.ProtocolICMPv6, scenario.SixMessage(port)
		}
		allow, rule := s.Verdict(iso, peer, proto, nodestate.Ports{Src: 4711, Dst: port})
		return fmt.Sprint(allow, " ", s.Rules.At(rule))
	}
	for _, a := range localPods {
		for _, peer := range slices.Concat(localPods, otherPods, nodeAddrs, outside) {
			proto, port := one(r, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolICMP), one(r, uint16(80), 8080, 5353, 1000, 3929)
			if proto == model.ProtocolICMP {
				port = one(r, uint16(8<<8), 8<<8|1, 13<<8, 0, 31<<8)
			}
			for _, in := range []bool{true, false} {
				before, after := four.Addrs[a].Egress, dual.Addrs[scenario.Six(a)].Egress
				if in {
					before, after = four.Addrs[a].Ingress, dual.Addrs[scenario.Six(a)].Ingress
				}
				if x, y := say(four, before, peer, proto, port), say(dual, after, scenario.Six(peer), proto, port); x != y {
					t.Fatalf("seed %d: %s and %s, ingress=%t, %s port %d: IPv4 %s, IPv6 %s", seed, a, peer, in, proto, port, x, y)
				}
			}
		}
	}
}
