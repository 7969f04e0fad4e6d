// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// maxHops bounds the routers of one route.
const maxHops = 16

// hop is a router, or with an invalid via a link.
type hop struct {
	link int
	via  netip.Addr
}

// route is what is written of one.
type route struct {
	hops []hop // sorted
	src  netip.Addr
}

// listed are the routes of our protocol by prefix.
func listed() (map[netip.Prefix]netlink.Route, error) {
	have := map[netip.Prefix]netlink.Route{}
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("listing learned routes: %w", err)
		}
		for _, r := range found {
			have[kernel.RoutePrefix(r.Dst, f)] = r
		}
	}
	return have, nil
}

// Hop is a router by which the kernel reaches a prefix.
type Hop struct {
	Interface string
	Gateway   netip.Addr
}

// Listed are the learned routes that are in the kernel.
func Listed() (map[netip.Prefix][]Hop, error) {
	have, err := listed()
	out, names := map[netip.Prefix][]Hop{}, map[int]string{}
	for p, r := range have {
		for _, h := range hopsOf(r) {
			name, known := names[h.link]
			if !known {
				if l, err := netlink.LinkByIndex(h.link); err == nil { // one that is gone takes its routes away
					name = l.Attrs().Name
				}
				names[h.link] = name
			}
			out[p] = append(out[p], Hop{Interface: name, Gateway: h.via})
		}
	}
	return out, err
}

// hopsOf are those of a route in the kernel, sorted.
func hopsOf(r netlink.Route) []hop {
	one := func(link int, gw net.IP) hop {
		a, _ := netip.AddrFromSlice(gw)
		return hop{link: link, via: a.Unmap()}
	}
	if len(r.MultiPath) == 0 {
		return []hop{one(r.LinkIndex, r.Gw)}
	}
	var out []hop
	for _, n := range r.MultiPath {
		out = append(out, one(n.LinkIndex, n.Gw))
	}
	return sorted(out)
}

func sorted(hops []hop) []hop {
	slices.SortFunc(hops, func(a, b hop) int { return cmp.Or(a.via.Compare(b.via), cmp.Compare(a.link, b.link)) })
	return slices.Compact(hops)
}

// leftover says what stays of what an earlier process left. told are the peers that have told all
// that they had.
type leftover struct {
	keep stale
	told map[netip.Addr]bool
}

// stays reports whether the kernel's route stays though it has more next hops than r: peers come
// back one after the other, and flows keep their router until it has said what it knows.
func (l leftover) stays(r route, k netlink.Route) bool {
	if l.keep != keepHops || !r.alike(k) {
		return false
	}
	have := hopsOf(k)
	for _, h := range r.hops {
		if !slices.Contains(have, h) {
			return false
		}
	}
	return !slices.ContainsFunc(have, func(h hop) bool { return !slices.Contains(r.hops, h) && l.told[h.via] })
}

// reconcile makes the kernel's routes those by the next hops, which are sorted. Status.Learned is
// not filled.
func reconcile(hops map[netip.Prefix][]netip.Addr, want Config, old leftover) (Status, error) {
	var st Status
	have, err := listed()
	if err != nil {
		return st, err
	}
	var errs []error
	found := map[netip.Addr]resolved{}
	for p, vias := range hops {
		if !unicast(p) || within(want.Keep, p) {
			st.Kept++
			continue
		}
		r := route{src: like(want.Sources, p.Addr())}
		for _, via := range vias {
			at, ok := found[via]
			if !ok {
				at = resolve(via)
				found[via] = at
			}
			if at.by != p {
				r.hops = append(r.hops, at.hops...)
			}
		}
		if len(r.hops) == 0 {
			st.Unresolved++
			continue // one that is there goes
		}
		if r.hops = sorted(r.hops); len(r.hops) > maxHops {
			r.hops = r.hops[:maxHops]
		}
		there, was := have[p]
		delete(have, p)
		if was && (r.is(there) || old.stays(r, there)) {
			st.Installed++
			continue
		}
		if err := r.put(p, was); err != nil {
			errs = append(errs, fmt.Errorf("route %s via %v: %w", p, vias, err))
			continue
		}
		st.Installed++
	}
	for p, r := range have {
		if _, known := hops[p]; !known && old.keep != keepNone {
			continue
		}
		if err := drop(p, r); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("and %d more", len(errs)-5))
	}
	return st, errors.Join(errs...)
}

// unicast reports whether a prefix is one that a machine routes.
func unicast(p netip.Prefix) bool {
	a := p.Addr()
	return p.IsValid() && !a.IsMulticast() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !(a.Is4() && a.As4()[0] == 0 && p.Bits() > 0)
}

// within reports whether one of the prefixes holds all of p.
func within(all []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(all, func(k netip.Prefix) bool { return k.Bits() <= p.Bits() && k.Contains(p.Addr()) })
}

func like(all []netip.Addr, a netip.Addr) netip.Addr {
	for _, s := range all {
		if s.Is4() == a.Is4() {
			return s
		}
	}
	return netip.Addr{}
}

// resolved is how a next hop is reached: without hops it is not. by is the learned route that leads
// there, if one does.
type resolved struct {
	hops []hop
	by   netip.Prefix
}

func resolve(nexthop netip.Addr) resolved {
	found, err := netlink.RouteGetWithOptions(nexthop.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(found) == 0 || found[0].Type != unix.RTN_UNICAST {
		return resolved{}
	}
	var r resolved
	for _, h := range hopsOf(found[0]) {
		if !h.via.IsValid() || h.via.IsUnspecified() {
			h.via = nexthop
		}
		// Weir's own device: a prefix of a pool, where nobody is who hands packets on.
		if l, err := netlink.LinkByIndex(h.link); err != nil || l.Attrs().Name == "weir0" {
			continue
		}
		r.hops = append(r.hops, h)
	}
	if found[0].Protocol == Protocol {
		f := netlink.FAMILY_V6
		if nexthop.Is4() {
			f = netlink.FAMILY_V4
		}
		r.by = kernel.RoutePrefix(found[0].Dst, f)
	}
	return r
}

// is reports whether the kernel's route is as r.
func (r route) is(k netlink.Route) bool { return r.alike(k) && slices.Equal(hopsOf(k), r.hops) }

// alike reports whether the kernel's route is as r but for its routers.
func (r route) alike(k netlink.Route) bool {
	src, _ := netip.AddrFromSlice(k.Src)
	return src.Unmap() == r.src && k.Priority == Metric
}

func (r route) put(p netip.Prefix, replace bool) error {
	k := &netlink.Route{Protocol: Protocol, Priority: Metric, Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if len(r.hops) == 1 {
		k.LinkIndex, k.Gw, k.Flags = r.hops[0].link, r.hops[0].via.AsSlice(), int(netlink.FLAG_ONLINK)
	} else {
		for _, h := range r.hops {
			k.MultiPath = append(k.MultiPath, &netlink.NexthopInfo{LinkIndex: h.link, Gw: h.via.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
		}
	}
	if r.src.IsValid() {
		k.Src = r.src.AsSlice()
	}
	if replace {
		return netlink.RouteReplace(k)
	}
	err := netlink.RouteAdd(k)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("somebody else has a route with metric %d: %w", Metric, err)
	}
	return err
}

// Remove takes all learned routes out of the kernel.
func Remove() error {
	have, err := listed()
	if err != nil {
		return err
	}
	var errs []error
	for p, r := range have {
		errs = append(errs, drop(p, r))
	}
	return errors.Join(errs...)
}

// drop takes a route out of the kernel, if it is there.
func drop(p netip.Prefix, r netlink.Route) error {
	if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing route %s: %w", p, err)
	}
	return nil
}
