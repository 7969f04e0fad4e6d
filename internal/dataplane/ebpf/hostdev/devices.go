// SPDX-License-Identifier: Apache-2.0

package hostdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
)

// Devices of our own. All carry the alias; a device of one of these names without it belongs to
// somebody else and is left alone.
const (
	HostDevice    = kernel.HostDevice // host processes reach pool addresses through it
	HostPeer      = kernel.HostPeer   // its other end, in the same network namespace; nothing arrives there
	TunnelDevice  = kernel.TunnelDevice
	RouteProtocol = kernel.RouteProtocol // marks our routes
)

// VxlanOverhead is what an IPv4 packet grows by: inner Ethernet, VXLAN, UDP and outer IPv4 headers.
const VxlanOverhead = 14 + 8 + 8 + 20

// Device is one of our devices as it is in the kernel.
type Device struct {
	Index int
	up    bool
	mtu   int
	port  int // VXLAN
}

// FindDevice returns one of our devices, nil when there is none.
func FindDevice(name string) (*Device, error) {
	l, err := kernel.FindDevice(name)
	if err != nil || l == nil {
		return nil, err
	}
	attrs := l.Attrs()
	d := &Device{Index: attrs.Index, up: attrs.Flags&net.FlagUp != 0, mtu: attrs.MTU}
	if v, ok := l.(*netlink.Vxlan); ok {
		d.port = v.Port
	}
	return d, nil
}

// EnsureHostDevice makes weir0 and its other end, down, and returns weir0 and whether it was made.
func EnsureHostDevice(mtu int) (*Device, bool, error) {
	d, err := FindDevice(HostDevice)
	if err != nil {
		return nil, false, err
	}
	if d != nil {
		if peer, err := FindDevice(HostPeer); err != nil || peer != nil {
			return d, false, err
		}
		if err := RemoveDevice(HostDevice); err != nil {
			return nil, false, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = HostDevice, mtu, kernel.HostSideMAC[:]
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: HostPeer, PeerMTU: uint32(mtu)})
	if err != nil {
		return nil, false, explainDevice(HostDevice, "veth", "CONFIG_VETH, since Linux 2.6.24", err)
	}
	for _, name := range []string{HostPeer, HostDevice} {
		if err := kernel.DressDevice(name); err != nil {
			return nil, false, errors.Join(err, RemoveDevice(HostDevice))
		}
	}
	// Nothing that came out of weir0 may be routed again, and what the programs put into it was
	// checked by them.
	if _, err := kernel.SetSysctl(0, "net", "ipv4", "conf", HostPeer, "forwarding"); err != nil {
		return nil, false, errors.Join(err, RemoveDevice(HostDevice))
	}
	if _, err := kernel.SetSysctl(0, "net", "ipv4", "conf", HostDevice, "rp_filter"); err != nil {
		return nil, false, errors.Join(err, RemoveDevice(HostDevice))
	}
	d, err = FindDevice(HostDevice)
	return d, true, err
}

// EnsureTunnel makes the VXLAN device, down, and returns it and whether it was made. It is in
// external mode (since Linux 4.3): programs give each packet its remote end and VNI, the device
// knows no peers.
func EnsureTunnel(port uint16, mtu int) (*Device, bool, error) {
	d, err := FindDevice(TunnelDevice)
	if err != nil {
		return nil, false, err
	}
	if d != nil {
		if d.port == int(port) {
			if d.mtu != mtu {
				return d, false, setMTU(TunnelDevice, mtu)
			}
			return d, false, nil
		}
		if err := RemoveDevice(TunnelDevice); err != nil {
			return nil, false, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = TunnelDevice, mtu
	err = netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Learning: false, Port: int(port)})
	if err != nil {
		return nil, false, explainDevice(TunnelDevice, "vxlan", "CONFIG_VXLAN, since Linux 4.3", err)
	}
	if err := kernel.DressDevice(TunnelDevice); err != nil {
		return nil, false, errors.Join(err, RemoveDevice(TunnelDevice))
	}
	d, err = FindDevice(TunnelDevice)
	return d, true, err
}

func explainDevice(name, kind, config string, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("making device %s: the kernel has no %s devices (%s): %w", name, kind, config, err)
	}
	return fmt.Errorf("making device %s: %w", name, err)
}

// SetUp brings a device up when it is not, and reports whether it had to.
func SetUp(name string) (bool, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("bringing %s up: %w", name, err)
	}
	if l.Attrs().Flags&net.FlagUp != 0 {
		return false, nil
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return false, fmt.Errorf("bringing %s up: %w", name, err)
	}
	return true, nil
}

func setMTU(name string, mtu int) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(l, mtu)
	}
	if err != nil {
		return fmt.Errorf("setting the MTU of %s to %d: %w", name, mtu, err)
	}
	return nil
}

// RemoveDevice deletes one of our devices when it is there.
func RemoveDevice(name string) error {
	d, err := FindDevice(name)
	if err != nil || d == nil {
		return err
	}
	if err := netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: d.Index}}); err != nil {
		return fmt.Errorf("removing device %s: %w", name, err)
	}
	return nil
}

// EnsureRoutes makes the routes of a device in a table, of one family (netlink's number), equal to
// want (prefix to MTU), all with source src, and returns how many it changed. Routes of others are
// not touched, on other devices neither: a prefix that somebody else routes is an error, but in
// kernel.NodeRouteTable, where it was the other data plane.
func EnsureRoutes(family, index, table int, want map[netip.Prefix]int, src netip.Addr) (int, []error) {
	have, err := kernel.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: index, Protocol: RouteProtocol, Table: table},
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return 0, []error{fmt.Errorf("listing the routes of %s: %w", HostDevice, err)}
	}
	changes, errs := 0, []error(nil)
	present := map[netip.Prefix]netlink.Route{}
	for _, r := range have {
		p := kernel.RoutePrefix(r.Dst, family)
		if _, ok := want[p]; ok {
			present[p] = r
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, routeError(p, "removing", err))
			continue
		}
		changes++
	}
	for p, mtu := range want {
		r, ok := present[p]
		if ok && r.MTU == mtu && r.Src.Equal(src.AsSlice()) {
			continue
		}
		put := netlink.RouteAdd
		if ok || table == kernel.NodeRouteTable {
			put = netlink.RouteReplace
		}
		if err := put(hostRoute(index, table, p, mtu, src)); err != nil {
			errs = append(errs, routeError(p, "adding", err))
			continue
		}
		changes++
	}
	return changes, errs
}

func hostRoute(index, table int, p netip.Prefix, mtu int, src netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: index, Table: table, Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol, MTU: mtu,
		Dst: &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Src: src.AsSlice(),
	}
}

func routeError(p netip.Prefix, doing string, err error) error {
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("somebody else routes this prefix (ip route show %s); remove that route, or the pool: %w", p, err)
	}
	return &dataplane.KeyError{Table: "routes of " + HostDevice, Key: p.String(), Err: fmt.Errorf("%s: %w", doing, err)}
}
