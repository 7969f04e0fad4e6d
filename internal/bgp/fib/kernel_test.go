// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestStays: while routes are restored, one stays that has next hops of which no peer has told yet.
func TestStays(t *testing.T) {
	t.Parallel()
	a, b, c := hop{2, netip.MustParseAddr("192.0.2.1")}, hop{2, netip.MustParseAddr("192.0.2.2")}, hop{3, netip.MustParseAddr("192.0.2.2")}
	in := func(hops ...hop) netlink.Route {
		r := netlink.Route{Priority: Metric, Src: net.IPv4(10, 0, 0, 1)}
		for _, h := range hops {
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: h.link, Gw: h.via.AsSlice()})
		}
		return r
	}
	one := netlink.Route{LinkIndex: a.link, Gw: a.via.AsSlice(), Priority: Metric, Src: net.IPv4(10, 0, 0, 1)}
	other := in(a, b)
	other.Priority = 1024
	src := netip.MustParseAddr("10.0.0.1")
	for name, x := range map[string]struct {
		r         route
		k         netlink.Route
		is, stays bool
	}{
		"the same":       {route{[]hop{a, b}, src}, in(b, a), true, true},
		"one":            {route{[]hop{a}, src}, one, true, true},
		"fewer":          {route{[]hop{b}, src}, in(a, b), false, true},
		"more":           {route{[]hop{a, b}, src}, one, false, false},
		"another link":   {route{[]hop{c}, src}, in(a, b), false, false},
		"another source": {route{[]hop{a}, netip.Addr{}}, in(a, b), false, false},
		"another metric": {route{[]hop{a}, src}, other, false, false},
	} {
		if is, stays := x.r.is(x.k), (leftover{}).stays(x.r, x.k); is != x.is || stays != x.stays {
			t.Errorf("%s: is %v, stays %v, want %v, %v", name, is, stays, x.is, x.stays)
		}
	}
	r := route{[]hop{b}, src}
	for name, x := range map[string]struct {
		old   leftover
		stays bool
	}{
		"its time is over":               {leftover{keep: keepRoutes}, false},
		"all is settled":                 {leftover{keep: keepNone}, false},
		"the other has told what it has": {leftover{told: map[netip.Addr]bool{a.via: true}}, false},
		"the one there has":              {leftover{told: map[netip.Addr]bool{b.via: true}}, true},
	} {
		if stays := x.old.stays(r, in(a, b)); stays != x.stays {
			t.Errorf("%s: stays %v, want %v", name, stays, x.stays)
		}
	}
}
