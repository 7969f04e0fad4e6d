// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/nettest"
)

// A process that begins where another BGP program has ended: what that one had learned stays in the
// kernel until it is learned again, and what is not learned again goes.
func TestAfterAnotherProgram(t *testing.T) {
	routertest.Need(t, "bird")
	if !nettest.Isolated(t) {
		return
	}
	const another = 12
	ns := wire(t)
	routertest.Start(t, ns, "bird", routerConfig())
	nobodys := netip.MustParsePrefix("198.51.100.0/24")
	route := func(p netip.Prefix) *netlink.Route {
		via := routerAddrs[0].Addr()
		if p.Addr().Is6() {
			via = routerAddrs[1].Addr()
		}
		return &netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Gw: via.AsSlice(), Protocol: another}
	}
	for _, p := range append([]netip.Prefix{nobodys}, networks...) {
		nettest.Must(t, netlink.RouteAdd(route(p)))
	}
	n := newNode(t)
	n.start() // while the agent is busy
	nettest.Must(t, fib.Adopt(another))
	n.kernel(append([]netip.Prefix{nobodys}, networks...)...)
	updates, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
	nettest.Must(t, netlink.RouteSubscribe(updates, done))
	n.agent.Set(nodeState())
	n.eventually("a process that says that it begins again", func() error {
		if st := n.agent.Status(); st == nil || !st.Restoring && st.Routes.Learned == 0 {
			return fmt.Errorf("it says %+v", st)
		}
		return nil
	})
	n.established(2)
	n.restored()
	n.kernel(networks...)
	close(done)
	for u := range updates {
		for _, p := range networks {
			if u.Type == unix.RTM_DELROUTE && u.Dst != nil && u.Dst.String() == p.String() {
				t.Errorf("the route to %s was taken away", u.Dst)
			}
		}
	}
}
