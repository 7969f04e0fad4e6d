// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// neverSources are what nobody is granted as sources: they are no hosts' addresses.
var neverSources = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// SourceParts returns what of a prefix in State.Sources counts: the prefix without the networks
// that are left out, which are inside of it. whole = nothing of it counts. Nobody is granted what
// pods, or Services by their cluster IPs, may have. Addresses in State.Addrs do not count either.
func (s *State) SourceParts(p netip.Prefix) (without []netip.Prefix, whole bool) {
	var all []netip.Prefix
	look := func(n netip.Prefix) {
		if n.Overlaps(p) {
			all = append(all, n)
			whole = whole || n.Bits() <= p.Bits()
		}
	}
	for _, n := range neverSources {
		look(n)
	}
	for n := range s.Settings.PoolRoutes {
		look(n)
	}
	for n := range s.Routes {
		look(n)
	}
	if whole {
		return nil, true
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	for _, n := range all {
		if !slices.ContainsFunc(without, n.Overlaps) {
			without = append(without, n)
		}
	}
	return without, false
}

// SendsAs returns the own address of the pod behind an interface that may send with a source that
// is not its own; invalid = it may not.
func (s *State) SendsAs(ifindex int, source netip.Addr) netip.Addr {
	if _, known := s.Addrs[source]; known {
		return netip.Addr{}
	}
	for own, prefixes := range s.Sources {
		if a := s.Addrs[own]; a.Kind != AddrEndpoint || a.IfIndex != ifindex || a.Gateways || own.Is4() != source.Is4() {
			continue
		}
		for _, p := range prefixes {
			if p.Contains(source) && s.grantsSource(p, source) {
				return own
			}
		}
	}
	return netip.Addr{}
}

func (s *State) grantsSource(p netip.Prefix, source netip.Addr) bool {
	without, whole := s.SourceParts(p)
	for _, n := range without {
		whole = whole || n.Contains(source)
	}
	return !whole
}

func (d *dumper) sources(s *State) {
	for _, a := range sortedKeys(s.Sources, netip.Addr.Compare) {
		d.line("sources", a.String(), fmt.Sprint(s.Sources[a]))
	}
	for _, a := range sortedKeys(s.Floating, netip.Addr.Compare) {
		d.line("floating", a.String(), "->", s.Floating[a].String())
	}
}
