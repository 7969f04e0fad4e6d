// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// namespace is a network namespace without a name, gone when it is closed. Interfaces in it are
// bridges without ports: the programs only need them to exist, with their index, and the kernel's
// routes by them.
type namespace struct {
	handle netns.NsHandle
	links  map[int]bool
	routes map[netip.Prefix]bool
	own    map[netip.Addr]bool
	frames *capture
	mtus   map[int]int
}

// newNamespace makes a namespace that forwards.
func newNamespace() (*namespace, error) {
	n := &namespace{links: map[int]bool{}, routes: map[netip.Prefix]bool{}, own: map[netip.Addr]bool{}, mtus: map[int]int{}}
	err := aside(func() error {
		var err error
		if n.handle, err = netns.New(); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		if n.frames, err = newCapture(); err != nil {
			return err
		}
		for _, path := range [][]string{{"net", "ipv4", "ip_forward"}, {"net", "ipv6", "conf", "all", "forwarding"},
			{"net", "ipv6", "conf", "default", "forwarding"}} {
			if _, err := kernel.SetSysctl(1, path...); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

// aside runs do on a thread of its own that may change its namespace, and comes back.
func aside(do func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find the own network namespace: %w", err)
	}
	defer home.Close()
	err = do()
	if back := netns.Set(home); back != nil {
		// The thread stays locked, and ends with its goroutine: nobody else runs in a foreign
		// namespace.
		return errors.Join(err, fmt.Errorf("return to the own network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// in runs do inside.
func (n *namespace) in(do func() error) error {
	return aside(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return do()
	})
}

// plain reports whether there is nothing in it but what Apply makes and changes: no address and no
// uplink besides the usual ones.
func (n *namespace) plain() bool { return len(n.own) == 0 && !n.links[scenario.Uplink2] }

func (n *namespace) close() error { return errors.Join(n.frames.close(), n.handle.Close()) }

// link makes sure that an interface of that index exists and is up. Call it inside.
func (n *namespace) link(index int) (netlink.Link, error) {
	name := fmt.Sprintf("if%d", index)
	l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	if n.links[index] {
		return l, nil
	}
	if err := netlink.LinkAdd(l); err != nil {
		return nil, fmt.Errorf("make interface %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("set interface %s up: %w", name, err)
	}
	n.links[index] = true
	return l, nil
}

// uplink gives an interface a machine's addresses in its subnets, and the default routes. Call it
// inside.
func (n *namespace) uplink(index int, m *scenario.Machine) error {
	if n.links[index] {
		return nil
	}
	l, err := n.link(index)
	if err != nil {
		return err
	}
	for _, s := range m.Subnets {
		addr := m.Like(s.Addr())
		if !s.Contains(addr) {
			return fmt.Errorf("address %s is not in subnet %s", addr, s)
		}
		ip := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(s.Bits(), addr.BitLen())}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s: %w", ip, err)
		}
	}
	for _, addr := range []netip.Addr{m.Addr, m.Addr6} {
		gateway := netip.Addr{}
		if addr.IsValid() {
			gateway = m.Gateway(addr)
		}
		if !gateway.IsValid() {
			continue
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("add the default route by %s: %w", gateway, err)
		}
	}
	return nil
}

// surroundings gives the namespace a machine's addresses that no table knows, and the networks by
// its second uplink. Call it inside.
func (n *namespace) surroundings(m *scenario.Machine) error {
	for _, a := range m.Own {
		if n.own[a] {
			continue
		}
		// An address alone makes no route in IPv6 while the interface has no carrier.
		dst := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		local := &netlink.Route{LinkIndex: scenario.Uplink, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(local); err != nil {
			return fmt.Errorf("make %s an address of the node: %w", a, err)
		}
		n.own[a] = true
	}
	if len(m.Aside) == 0 || n.links[scenario.Uplink2] {
		return nil
	}
	l, err := n.link(scenario.Uplink2)
	if err != nil {
		return err
	}
	for _, p := range m.Aside {
		dst := &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("add a route for %s: %w", p, err)
		}
	}
	return n.mtu(scenario.Uplink2, m.MTU(scenario.Uplink2))
}

// unroute removes the routes of prefixes that are not wanted any more. Call it inside.
func (n *namespace) unroute(wanted map[netip.Prefix]int) error {
	for p := range n.routes {
		if _, ok := wanted[p]; ok {
			continue
		}
		dst := &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := netlink.RouteDel(&netlink.Route{Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("remove the route for %s: %w", p, err)
		}
		delete(n.routes, p)
	}
	return nil
}

// route makes sure that a prefix leads to an interface. Call it inside.
func (n *namespace) route(p netip.Prefix, index int) error {
	if n.routes[p] {
		return nil
	}
	dst := &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add a route for %s: %w", p, err)
	}
	n.routes[p] = true
	return nil
}

// mtu sets the MTU of an interface. Call it inside.
func (n *namespace) mtu(index, mtu int) error {
	if n.mtus[index] == mtu || n.mtus[index] == 0 && mtu == scenario.DefaultMTU {
		return nil
	}
	l, err := n.link(index)
	if err == nil {
		err = netlink.LinkSetMTU(l, mtu)
	}
	if err != nil {
		return fmt.Errorf("set the MTU of interface %d to %d: %w", index, mtu, err)
	}
	n.mtus[index] = mtu
	return nil
}
