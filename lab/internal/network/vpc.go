// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"github.com/weir-net/weir/lab/internal/plan"
	"golang.org/x/sys/unix"
)

// port is how an interface is connected with a VPC.
type port struct {
	ns    netns.NsHandle // of the machine
	name  string         // in the VPC's namespace
	iface string         // in the machine's
	mac   string         // empty = any
	addrs []netip.Prefix // that the machine has there; none where its own daemon sets them
	owned []netip.Addr   // that the network knows to be there
	block netip.Prefix   // that it leads to the address via: of an overlay, or of IPv6; none elsewhere
	via   netip.Addr
	six   bool // it has IPv6
}

// addVPC makes a network like those of clouds in the namespace of the switch. Each interface has a
// link of its own with it; it answers ARP for all others, knows which addresses each interface has,
// and drops what comes from an interface with another source, as the source/destination check does
// (rp_filter).
func addVPC(l *plan.Lab, at func(string) netns.NsHandle) error {
	vpc := at(plan.Switch)
	if err := addAddresses(vpc, "lo", []netip.Prefix{netip.PrefixFrom(plan.VPCGateway, 32)}); err != nil {
		return err
	}
	for _, m := range l.Machines {
		for i, e := range m.Interfaces {
			p := port{ns: at(m.Name), name: m.Name, iface: e.Name, mac: e.MAC, owned: []netip.Addr{e.Addr}, via: m.Addr.Addr(), six: l.Family.Has6()}
			switch {
			case i > 0:
				p.name += "-" + e.Name
			case p.six:
				p.addrs = []netip.Prefix{netip.PrefixFrom(e.Addr, plan.VPC.Bits()), m.Addr}
				p.owned, p.block = append(p.owned, m.Addr.Addr()), e.Prefix
			default:
				p.addrs = []netip.Prefix{m.Addr}
				if l.Overlay && m.IsNode() {
					p.block = m.Families[0].PodCIDR
				}
			}
			if !e.Prefix.IsValid() {
				p.owned = append(p.owned, e.Pods...)
			}
			if err := p.attach(vpc); err != nil {
				return fmt.Errorf("attach %s of %s: %w", e.Name, m.Name, err)
			}
		}
		if len(m.Interfaces) == 0 {
			continue
		}
		gateways := []netip.Addr{m.Families[0].Gateway}
		if l.Family.Has6() {
			gateways = append(gateways, plan.VPCGateway)
		}
		for _, gateway := range gateways {
			if err := addRouteBy(at(m.Name), plan.Uplink, everything(gateway), gateway); err != nil {
				return fmt.Errorf("default route of %s: %w", m.Name, err)
			}
		}
	}
	// The router is the VPC's way out.
	router := port{ns: at(plan.Router), name: plan.Router, iface: plan.Uplink, addrs: l.Gateways(false), owned: []netip.Addr{plan.Gateway}, six: l.Family.Has6()}
	if router.six {
		router.addrs, router.owned = append(router.addrs, netip.PrefixFrom(plan.Gateway, plan.VPC.Bits())), append(router.owned, plan.Gateway6)
	}
	if err := router.attach(vpc); err != nil {
		return fmt.Errorf("attach the router: %w", err)
	}
	n, err := netlink.NewHandleAt(vpc)
	if err != nil {
		return fmt.Errorf("reach the VPC: %w", err)
	}
	defer n.Close()
	if err := addWayOut(n, plan.VPC, plan.Gateway); err != nil {
		return err
	}
	if l.Overlay {
		return hideOverlay(l, n)
	}
	if l.Family.Has6() {
		return addVPC6(n, vpc, at(plan.Router))
	}
	return nil
}

// addWayOut makes a gateway the way out of a VPC with these addresses, and has the VPC refuse those
// of them that nobody has.
func addWayOut(n *netlink.Handle, all netip.Prefix, gateway netip.Addr) error {
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(everything(gateway)), Gw: net.IP(gateway.AsSlice())}); err != nil {
		return fmt.Errorf("make %s the VPC's way out: %w", gateway, err)
	}
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(all), Type: unix.RTN_UNREACHABLE}); err != nil {
		return fmt.Errorf("have the VPC refuse addresses of %s that nobody has: %w", all, err)
	}
	return nil
}

// sourceCheck6 is the source/destination check of IPv6, of which the kernel has no rp_filter. What
// the switch behind the router carries in the same namespace is not the VPC's.
const sourceCheck6 = "table ip6 vpc { chain sources { type filter hook prerouting priority raw; iifname " + farBridge + " accept; ip6 saddr fe80::/10 accept; fib saddr . iif oif 0 drop; }; }"

// addVPC6 makes the router the way out of a VPC by IPv6, and has the VPC check sources.
func addVPC6(n *netlink.Handle, vpc, router netns.NsHandle) error {
	if err := addRouteBy(router, plan.Uplink, plan.VPC6, plan.VPCGateway6); err != nil {
		return err
	}
	if err := addWayOut(n, plan.VPC6, plan.Gateway6); err != nil {
		return err
	}
	return onThread(func() error {
		if err := netns.Set(vpc); err != nil {
			return err
		}
		if out, err := exec.Command("nft", sourceCheck6).CombinedOutput(); err != nil {
			return fmt.Errorf("have the VPC check sources of IPv6: %w: %s", err, out)
		}
		return nil
	})
}

// addRouteBy adds a route by a link, on which the gateway is.
func addRouteBy(ns netns.NsHandle, link string, dst netip.Prefix, via netip.Addr) error {
	n, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("reach the namespace: %w", err)
	}
	defer n.Close()
	l, err := n.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find %s: %w", link, err)
	}
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: net.IP(via.AsSlice()), LinkIndex: l.Attrs().Index}); err != nil {
		return fmt.Errorf("add route %s via %s by %s: %w", dst, via, link, err)
	}
	return nil
}

// hideOverlay has the network lead addresses of an overlay for nodes alone.
func hideOverlay(l *plan.Lab, n *netlink.Handle) error {
	from := []string{plan.Router}
	for _, m := range l.Machines {
		if len(m.Interfaces) > 0 && !m.IsNode() {
			from = append(from, m.Name)
		}
	}
	for _, name := range from {
		r := netlink.NewRule()
		r.Family, r.Priority, r.IifName, r.Dst, r.Type = unix.AF_INET, 100, name, ipNet(l.Pods), unix.RTN_UNREACHABLE
		if err := n.RuleAdd(r); err != nil {
			return fmt.Errorf("hide pods' addresses from %s: %w", name, err)
		}
	}
	return nil
}

// attach makes a link between a machine and the VPC.
func (p port) attach(vpc netns.NsHandle) error {
	n, err := netlink.NewHandleAt(p.ns)
	if err != nil {
		return fmt.Errorf("reach the namespace: %w", err)
	}
	defer n.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = p.iface, plan.MTU
	if p.mac != "" {
		if attrs.HardwareAddr, err = net.ParseMAC(p.mac); err != nil {
			return err
		}
	}
	if err := n.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: p.name, PeerNamespace: netlink.NsFd(int(vpc))}); err != nil {
		return fmt.Errorf("make the link: %w", err)
	}
	if err := addAddresses(p.ns, p.iface, p.addrs); err != nil {
		return err
	}
	if p.six {
		if err := addAddresses(vpc, p.name, []netip.Prefix{netip.PrefixFrom(plan.VPCGateway6, 64)}); err != nil {
			return err
		}
	}
	mine, err := n.LinkByName(p.iface)
	if err != nil {
		return err
	}
	err = onThread(func() error {
		if err := netns.Set(vpc); err != nil {
			return err
		}
		return errors.Join(
			os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", p.name, "proxy_arp"), []byte("1"), 0o644),
			os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", p.name, "rp_filter"), []byte("1"), 0o644),
			os.WriteFile(filepath.Join("/proc/sys/net/ipv4/neigh", p.name, "proxy_delay"), []byte("0"), 0o644))
	})
	if err != nil {
		return fmt.Errorf("set the far end up: %w", err)
	}
	return p.know(vpc, mine.Attrs().HardwareAddr)
}

// know tells the VPC which addresses are at an interface. Nobody is asked for them: a node does not
// answer for those that it has not given to a pod.
func (p port) know(vpc netns.NsHandle, mac net.HardwareAddr) error {
	f, err := netlink.NewHandleAt(vpc)
	if err != nil {
		return fmt.Errorf("reach the VPC: %w", err)
	}
	defer f.Close()
	end, err := f.LinkByName(p.name)
	if err != nil {
		return fmt.Errorf("find %s: %w", p.name, err)
	}
	if err := f.LinkSetUp(end); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	for _, a := range p.owned {
		to, family := netip.PrefixFrom(a, a.BitLen()), unix.AF_INET
		if a.Is6() {
			family = unix.AF_INET6
		}
		if err := f.RouteAdd(&netlink.Route{Dst: ipNet(to), LinkIndex: end.Attrs().Index, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("add route to %s: %w", a, err)
		}
		err := f.NeighSet(&netlink.Neigh{LinkIndex: end.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
			IP: net.IP(a.AsSlice()), HardwareAddr: mac})
		if err != nil {
			return fmt.Errorf("add neighbour %s: %w", a, err)
		}
	}
	if p.block.IsValid() {
		if err := addRoute(vpc, p.block, p.via); err != nil {
			return err
		}
	}
	return nil
}
