// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/nodestate"
)

// mirror is an address of IPv6 for one of IPv4; that of node ports stays the one that is
// unspecified.
func mirror(a netip.Addr) netip.Addr {
	if !a.Is4() {
		return a
	}
	if a.IsUnspecified() {
		return netip.IPv6Unspecified()
	}
	b := [16]byte{0: 0xfd, 3: 0x10}
	four := a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

func mirrorPrefix(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(mirror(p.Addr()), p.Bits()+96)
}

func mirrorFrontend(f nodestate.Frontend) nodestate.Frontend {
	f.Addr = mirror(f.Addr)
	return f
}

// addIPv6 gives a state that has IPv4 the same of IPv6, apart from some that it leaves out.
func addIPv6(r *rand.Rand, s *nodestate.State) {
	some := func() bool { return r.IntN(4) > 0 }
	s.Settings.IPv6, s.Settings.Node6 = true, mirror(s.Settings.Node)
	for _, p := range slices.Clone(s.Settings.DSROptOut) {
		s.Settings.DSROptOut = append(s.Settings.DSROptOut, mirrorPrefix(p))
	}
	slices.SortFunc(s.Settings.DSROptOut, netip.Prefix.Compare)
	for a, v := range copyOf(s.Addrs) {
		v.Node = mirror(v.Node)
		if v.Kind != nodestate.AddrEndpoint || some() {
			s.Addrs[mirror(a)] = v
		}
	}
	for p, v := range copyOf(s.Routes) {
		v.Node = mirror(v.Node)
		s.Routes[mirrorPrefix(p)] = v
	}
	for a := range copyOf(s.Announced) {
		s.Announced[mirror(a)] = true
	}
	for cookie, c := range s.Clients {
		if some() {
			s.Clients[cookie] = c.With(mirror(c.IPv4))
		}
	}
	addServices6(s, some)
	for a, c := range plain(s.Peers) {
		if some() {
			s.Peers.Set(mirror(a), c)
		}
	}
	for p, c := range copyOf(s.PeerCIDRs) {
		s.PeerCIDRs[mirrorPrefix(p)] = c
	}
}

func addServices6(s *nodestate.State, some func() bool) {
	kept := map[nodestate.Frontend]bool{}
	for id, list := range plain(s.Backends) {
		kept[id] = some()
		if !kept[id] {
			continue
		}
		var six []nodestate.Backend
		for _, b := range list {
			b.Addr = mirror(b.Addr)
			six = append(six, b)
		}
		s.Backends.Set(mirrorFrontend(id), six)
	}
	for f, svc := range plain(s.Frontends) {
		if kept[svc.ID] {
			svc.ID = mirrorFrontend(svc.ID)
			s.Frontends.Set(mirrorFrontend(f), svc)
		}
	}
	for id, list := range plain(s.SourceRanges) {
		if !kept[id] {
			continue
		}
		var six []netip.Prefix
		for _, p := range list {
			six = append(six, mirrorPrefix(p))
		}
		s.SourceRanges.Set(mirrorFrontend(id), six)
	}
}

// WithoutIPv6 returns what a state without IPv6 in its settings may hold of another's tables.
func WithoutIPv6(s *nodestate.State) *nodestate.State {
	c := clone(s)
	c.Settings.IPv6, c.Settings.Node6 = false, netip.Addr{}
	c.Settings.DSROptOut = slices.DeleteFunc(slices.Clone(s.Settings.DSROptOut), func(p netip.Prefix) bool { return p.Addr().Is6() })
	if len(c.Settings.DSROptOut) == 0 {
		c.Settings.DSROptOut = nil
	}
	for a := range s.Addrs {
		if a.Is6() {
			delete(c.Addrs, a)
		}
	}
	for p := range s.Routes {
		if p.Addr().Is6() {
			delete(c.Routes, p)
		}
	}
	for a := range s.Announced {
		if a.Is6() {
			delete(c.Announced, a)
		}
	}
	for cookie, client := range s.Clients {
		client.IPv6 = netip.Addr{}
		c.Clients[cookie] = client
	}
	for f := range s.Frontends.All() {
		if f.Addr.Is6() {
			c.Frontends.Delete(f)
		}
	}
	for id := range s.Backends.All() {
		if id.Addr.Is6() {
			c.Backends.Delete(id)
		}
	}
	for id := range s.SourceRanges.All() {
		if id.Addr.Is6() {
			c.SourceRanges.Delete(id)
		}
	}
	for a := range s.Peers.All() {
		if a.Is6() {
			c.Peers.Delete(a)
		}
	}
	for p := range s.PeerCIDRs {
		if p.Addr().Is6() {
			delete(c.PeerCIDRs, p)
		}
	}
	return c
}
