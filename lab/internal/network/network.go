// SPDX-License-Identifier: Apache-2.0

// Package network builds the links of a lab: a switch, the machines on it, a
// router and what is behind it, each in a network namespace of its own.
//
// Nothing is ever attached to the machine's own namespace, so no packet of a lab
// can leave the machine.
package network

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"github.com/weir-net/weir/lab/internal/plan"
	"golang.org/x/sys/unix"
)

// Dir is where named network namespaces live, as iproute2 has it.
const Dir = "/run/netns"

const (
	bridge    = "br0"
	farBridge = "br1"  // the switch behind the router
	farUplink = "eth1" // the router's interface to it
)

// sysctls of every namespace. Congestion control is named because the kernel's
// default may be one that only the machine's own namespace may use.
var sysctls = map[string]string{
	"net/ipv4/ip_forward":                  "1",
	"net/ipv6/conf/all/forwarding":         "1",
	"net/ipv4/conf/all/rp_filter":          "0",
	"net/ipv4/conf/default/rp_filter":      "0",
	"net/ipv4/tcp_congestion_control":      "reno",
	"net/ipv4/conf/all/send_redirects":     "0",
	"net/ipv4/conf/default/send_redirects": "0",
}

// sysctls6 are those of a lab that has IPv6 besides. Nobody else gives out the lab's addresses,
// so none is tentative first, and machines have their routes from the plan.
var sysctls6 = map[string]string{
	"net/ipv6/conf/all/disable_ipv6":     "0",
	"net/ipv6/conf/default/disable_ipv6": "0",
	"net/ipv6/conf/all/accept_dad":       "0",
	"net/ipv6/conf/default/accept_dad":   "0",
	"net/ipv6/conf/all/accept_ra":        "0",
	"net/ipv6/conf/default/accept_ra":    "0",
	"net/ipv6/conf/default/forwarding":   "1",
}

// Path is the file of a named namespace.
func Path(scoped string) string { return filepath.Join(Dir, scoped) }

// Up makes the namespaces and links of a lab. With routePods the router and the
// nodes get a static route to each node's pods.
func Up(l *plan.Lab, routePods bool) error {
	ns := map[string]netns.NsHandle{}
	defer func() {
		for _, h := range ns {
			h.Close()
		}
	}()
	for _, scoped := range l.Namespaces() {
		h, err := create(scoped, l.Family)
		if err != nil {
			return err
		}
		ns[scoped] = h
	}
	at := func(name string) netns.NsHandle { return ns[plan.Scoped(l.Name, name)] }
	for _, far := range []bool{false, true} {
		if l.VPC && !far {
			continue
		}
		name, uplink, port := bridge, plan.Uplink, plan.Router
		if far {
			name, uplink, port = farBridge, farUplink, plan.Router+"-far"
		}
		if err := addSwitch(at(plan.Switch), name); err != nil {
			return err
		}
		if err := addLink(at(plan.Router), uplink, at(plan.Switch), port, name, l.Gateways(far)); err != nil {
			return err
		}
	}
	if l.VPC {
		if err := addVPC(l, at); err != nil {
			return err
		}
	}
	for _, m := range l.Machines {
		if len(m.Interfaces) > 0 {
			continue
		}
		if err := connect(m, at); err != nil {
			return fmt.Errorf("connect %s: %w", m.Name, err)
		}
	}
	// A destination that the lab does not have is answered, not waited for.
	for _, n := range l.Machines[0].Families {
		if err := addUnreachableDefault(at(plan.Router), everything(n.Addr.Addr())); err != nil {
			return err
		}
	}
	if routePods {
		return addPodRoutes(l, at)
	}
	return nil
}

// connect gives a machine its link, addresses and default routes.
func connect(m plan.Machine, at func(string) netns.NsHandle) error {
	var addrs []netip.Prefix
	for _, n := range m.Families {
		addrs = append(addrs, n.Addr)
	}
	to := bridge
	if m.Far {
		to = farBridge
	}
	if err := addLink(at(m.Name), plan.Uplink, at(plan.Switch), m.Name, to, addrs); err != nil {
		return err
	}
	for _, n := range m.Families {
		if err := addRoute(at(m.Name), everything(n.Gateway), n.Gateway); err != nil {
			return fmt.Errorf("default route: %w", err)
		}
	}
	return nil
}

// everything is the destination of a default route, of the family of a.
func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func addPodRoutes(l *plan.Lab, at func(string) netns.NsHandle) error {
	hosts := []string{plan.Router}
	for _, m := range l.Nodes() {
		hosts = append(hosts, m.Name)
	}
	for _, host := range hosts {
		for _, m := range l.Nodes() {
			if m.Name == host {
				continue
			}
			for _, n := range m.Families {
				if err := addRoute(at(host), n.PodCIDR, n.Addr.Addr()); err != nil {
					return fmt.Errorf("route of %s to the pods of %s: %w", host, m.Name, err)
				}
			}
		}
	}
	return nil
}

// Within runs f on a thread that is in the named namespace. Sockets that f opens
// stay in that namespace.
func Within(path string, f func() error) error {
	target, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer target.Close()
	return onThread(func() error {
		if err := netns.Set(target); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own and puts the thread back into the
// namespace it came from. A thread that cannot go back is given up.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("look up this thread's network namespace: %w", err)
			return
		}
		defer origin.Close()
		err = f()
		if netns.Set(origin) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func create(scoped string, family plan.Family) (netns.NsHandle, error) {
	settings := maps.Clone(sysctls)
	if family.Has6() {
		maps.Copy(settings, sysctls6)
	}
	var h netns.NsHandle
	err := onThread(func() error {
		var err error
		if h, err = netns.NewNamed(scoped); err != nil {
			return fmt.Errorf("make network namespace %s: %w", scoped, err)
		}
		for key, value := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644); err != nil {
				return fmt.Errorf("set %s in %s: %w", key, scoped, err)
			}
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	return h, setUp(h, "lo")
}

func addSwitch(ns netns.NsHandle, name string) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the switch: %w", err)
	}
	defer n.Close()
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: plan.MTU}}
	if err := n.LinkAdd(br); err != nil {
		return fmt.Errorf("make the switch: %w", err)
	}
	if err := n.LinkSetUp(br); err != nil {
		return fmt.Errorf("start the switch: %w", err)
	}
	return nil
}

// addLink connects a namespace with the one of the switches, where the far end becomes a port of
// one.
func addLink(ns netns.NsHandle, name string, far netns.NsHandle, farName, bridge string, addrs []netip.Prefix) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the namespace: %w", err)
	}
	defer n.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, plan.MTU
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: farName, PeerNamespace: netlink.NsFd(int(far))}
	if err := n.LinkAdd(veth); err != nil {
		return fmt.Errorf("make veth %s–%s: %w", name, farName, err)
	}
	if err := addAddresses(ns, name, addrs); err != nil {
		return err
	}
	f, err := netlink.NewHandleAt(far)
	if err != nil {
		return fmt.Errorf("reach the far namespace: %w", err)
	}
	defer f.Close()
	peer, err := f.LinkByName(farName)
	if err != nil {
		return fmt.Errorf("find %s: %w", farName, err)
	}
	br, err := f.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find the switch %s: %w", bridge, err)
	}
	if err := f.LinkSetMaster(peer, br); err != nil {
		return fmt.Errorf("plug %s into the switch: %w", farName, err)
	}
	if err := f.LinkSetUp(peer); err != nil {
		return fmt.Errorf("start %s: %w", farName, err)
	}
	return nil
}

func addAddresses(ns netns.NsHandle, link string, addrs []netip.Prefix) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the namespace: %w", err)
	}
	defer n.Close()
	l, err := n.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find %s: %w", link, err)
	}
	for _, addr := range addrs {
		a := &netlink.Addr{IPNet: ipNet(addr)}
		if addr.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := n.AddrAdd(l, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", addr, link, err)
		}
	}
	if err := n.LinkSetUp(l); err != nil {
		return fmt.Errorf("start %s: %w", link, err)
	}
	return nil
}

func setUp(ns netns.NsHandle, link string) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the namespace: %w", err)
	}
	defer n.Close()
	l, err := n.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find %s: %w", link, err)
	}
	if err := n.LinkSetUp(l); err != nil {
		return fmt.Errorf("start %s: %w", link, err)
	}
	return nil
}

func addRoute(ns netns.NsHandle, dst netip.Prefix, via netip.Addr) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the namespace: %w", err)
	}
	defer n.Close()
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: net.IP(via.AsSlice())}); err != nil {
		return fmt.Errorf("add route %s via %s: %w", dst, via, err)
	}
	return nil
}

func addUnreachableDefault(ns netns.NsHandle, all netip.Prefix) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the router: %w", err)
	}
	defer n.Close()
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(all), Type: unix.RTN_UNREACHABLE}); err != nil {
		return fmt.Errorf("make the router refuse what it does not know: %w", err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: net.IP(p.Addr().AsSlice()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Find lists the named namespaces that owns accepts.
func Find(owns func(scoped string) bool) ([]string, error) {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var out []string
	for _, e := range entries {
		if owns(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Remove removes a named namespace, also one whose making was cut short.
func Remove(scoped string) error {
	path := Path(scoped)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == nil {
			continue // mounted more than once
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount network namespace %s: %w", scoped, err)
		}
		break
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", scoped, err)
	}
	return nil
}
