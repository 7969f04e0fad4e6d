// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
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
	addr  netip.Prefix   // that the machine has there; none where its own daemon sets it
	owned []netip.Addr   // that the network knows to be there
	block netip.Prefix   // of an overlay, at the address of owned; none elsewhere
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
			p := port{ns: at(m.Name), name: m.Name, iface: e.Name, mac: e.MAC, owned: append([]netip.Addr{e.Addr}, e.Pods...)}
			if i == 0 {
				p.addr = m.Addr
				if l.Overlay && m.IsNode() {
					p.block = m.Families[0].PodCIDR
				}
			} else {
				p.name += "-" + e.Name
			}
			if err := p.attach(vpc); err != nil {
				return fmt.Errorf("attach %s of %s: %w", e.Name, m.Name, err)
			}
		}
		if len(m.Interfaces) > 0 {
			gateway := m.Families[0].Gateway
			if err := addRoute(at(m.Name), everything(gateway), gateway); err != nil {
				return fmt.Errorf("default route of %s: %w", m.Name, err)
			}
		}
	}
	// The router is the VPC's way out.
	router := port{ns: at(plan.Router), name: plan.Router, iface: plan.Uplink, addr: l.Gateways(false)[0], owned: []netip.Addr{plan.Gateway}}
	if err := router.attach(vpc); err != nil {
		return fmt.Errorf("attach the router: %w", err)
	}
	n, err := netlink.NewHandleAt(vpc)
	if err != nil {
		return fmt.Errorf("reach the VPC: %w", err)
	}
	defer n.Close()
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(everything(plan.Gateway)), Gw: net.IP(plan.Gateway.AsSlice())}); err != nil {
		return fmt.Errorf("make the router the VPC's way out: %w", err)
	}
	if err := n.RouteAdd(&netlink.Route{Dst: ipNet(plan.VPC), Type: unix.RTN_UNREACHABLE}); err != nil {
		return fmt.Errorf("have the VPC refuse addresses that nobody has: %w", err)
	}
	if l.Overlay {
		return hideOverlay(l, n)
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
	var own []netip.Prefix
	if p.addr.IsValid() {
		own = []netip.Prefix{p.addr}
	}
	if err := addAddresses(p.ns, p.iface, own); err != nil {
		return err
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
		to := netip.PrefixFrom(a, 32)
		if err := f.RouteAdd(&netlink.Route{Dst: ipNet(to), LinkIndex: end.Attrs().Index, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("add route to %s: %w", a, err)
		}
		err := f.NeighSet(&netlink.Neigh{LinkIndex: end.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP: net.IP(a.AsSlice()), HardwareAddr: mac})
		if err != nil {
			return fmt.Errorf("add neighbour %s: %w", a, err)
		}
	}
	if p.block.IsValid() {
		if err := addRoute(vpc, p.block, p.owned[0]); err != nil {
			return err
		}
	}
	return nil
}
