// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/nettest"
)

// TestAdopt: routes of another BGP program are there at any time, as a process before would have
// left them; what drops, and what others have, stays as it is.
func TestAdopt(t *testing.T) {
	const another = 12
	nettest.Run(t, func(string) error {
		d := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up1"}
		if err := netlink.LinkAdd(d); err != nil {
			return err
		}
		if err := nettest.Address("up0", netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")); err != nil {
			return err
		}
		to := func(text string) *net.IPNet {
			_, n, err := net.ParseCIDR(text)
			nettest.Must(t, err)
			return n
		}
		hop := func(text string) *netlink.NexthopInfo {
			return &netlink.NexthopInfo{LinkIndex: d.Attrs().Index, Gw: net.ParseIP(text)}
		}
		for _, r := range []*netlink.Route{
			{Dst: to("10.1.0.0/26"), Gw: net.ParseIP("192.0.2.2"), Protocol: another},
			{Dst: to("10.2.0.0/26"), MultiPath: []*netlink.NexthopInfo{hop("192.0.2.2"), hop("192.0.2.3")}, Protocol: another},
			{Dst: to("2001:db8:1::/64"), Gw: net.ParseIP("2001:db8::2"), Protocol: another},
			{Dst: to("10.3.0.0/26"), Type: unix.RTN_BLACKHOLE, Protocol: another},
			{Dst: to("10.4.0.0/26"), LinkIndex: d.Attrs().Index, Scope: netlink.SCOPE_LINK, Protocol: another},
			{Dst: to("10.5.0.0/26"), Gw: net.ParseIP("192.0.2.2"), Protocol: 3},
		} {
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("route %s: %w", r.Dst, err)
			}
		}
		if left, err := Left(); err != nil || left {
			return fmt.Errorf("before: %v, %w", left, err)
		}
		for range 2 { // it may be repeated
			if err := Adopt(another); err != nil {
				return err
			}
		}
		if left, err := Left(); err != nil || !left {
			return fmt.Errorf("after: %v, %w", left, err)
		}
		have, err := listed()
		if err != nil {
			return err
		}
		for text, hops := range map[string]int{"10.1.0.0/26": 1, "10.2.0.0/26": 2, "2001:db8:1::/64": 1} {
			r, ok := have[netip.MustParsePrefix(text)]
			if !ok || r.Priority != Metric || len(hopsOf(r)) != hops {
				t.Errorf("%s: %v %+v", text, ok, r)
			}
		}
		if len(have) != 3 {
			t.Errorf("%v", have)
		}
		var rest []string
		for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			found, err := netlink.RouteListFiltered(f, &netlink.Route{Protocol: another}, netlink.RT_FILTER_PROTOCOL)
			if err != nil {
				return err
			}
			for _, r := range found {
				rest = append(rest, r.Dst.String())
			}
		}
		if fmt.Sprint(rest) != "[10.3.0.0/26 10.4.0.0/26]" {
			t.Errorf("left alone: %v", rest)
		}
		return nil
	})
}
