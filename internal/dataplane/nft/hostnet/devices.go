// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/kernel"
)

// Devices of our own: those that the eBPF data plane has, so that a node that changes its data
// plane keeps them. All carry the alias; a device of one of these names without it belongs to
// somebody else and is left alone.
const (
	HostDevice   = kernel.HostDevice // what is for pools and Services and has no other route ends there
	HostPeer     = kernel.HostPeer   // its other end, in the same network namespace; nothing arrives there
	TunnelDevice = kernel.TunnelDevice

	vxlanOverhead = 14 + 8 + 8 + 20 // bytes: inner Ethernet, VXLAN, UDP, IPv4
	defaultMTU    = 1500            // while the uplink's is not known
)

type device struct {
	index, mtu int
	port       int // VXLAN
}

// findDevice returns one of our devices, nil when there is none.
func findDevice(name string) (*device, error) {
	l, err := kernel.FindDevice(name)
	if err != nil || l == nil {
		return nil, err
	}
	d := &device{index: l.Attrs().Index, mtu: l.Attrs().MTU}
	if v, ok := l.(*netlink.Vxlan); ok {
		d.port = v.Port
	}
	return d, nil
}

// ensureHostDevice makes weir0 and its other end, down.
func ensureHostDevice(mtu int) (*device, error) {
	d, err := findDevice(HostDevice)
	if err != nil || d != nil {
		return d, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = HostDevice, mtu, kernel.HostSideMAC[:]
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: HostPeer, PeerMTU: uint32(mtu)}); err != nil {
		return nil, fmt.Errorf("making device %s: %w", HostDevice, err)
	}
	err = errors.Join(kernel.DressDevice(HostPeer), kernel.DressDevice(HostDevice))
	if err == nil { // nothing that came out of weir0 may be routed again
		_, err = kernel.SetSysctl(0, "net", "ipv4", "conf", HostPeer, "forwarding")
	}
	if err != nil {
		return nil, errors.Join(err, removeDevice(HostDevice))
	}
	return findDevice(HostDevice)
}

// ensureTunnel makes the VXLAN device, down. It is in external mode (since Linux 4.3): routes give
// each packet its remote end and VNI, the device knows no peers.
func ensureTunnel(port uint16, mtu int) (*device, error) {
	d, err := findDevice(TunnelDevice)
	if err != nil {
		return nil, err
	}
	if d != nil && d.port == int(port) {
		if d.mtu == mtu {
			return d, nil
		}
		return d, setMTU(TunnelDevice, mtu)
	}
	if d != nil {
		if err := removeDevice(TunnelDevice); err != nil {
			return nil, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = TunnelDevice, mtu
	if err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: int(port)}); err != nil {
		return nil, fmt.Errorf("making device %s: %w", TunnelDevice, err)
	}
	if err := kernel.DressDevice(TunnelDevice); err != nil {
		return nil, errors.Join(err, removeDevice(TunnelDevice))
	}
	return findDevice(TunnelDevice)
}

// setUp brings a device up when it is not.
func setUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err == nil && l.Attrs().Flags&net.FlagUp == 0 {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	return nil
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

// removeDevice deletes one of our devices when it is there.
func removeDevice(name string) error {
	d, err := findDevice(name)
	if err != nil || d == nil {
		return err
	}
	if err := netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: d.index}}); err != nil {
		return fmt.Errorf("removing device %s: %w", name, err)
	}
	return nil
}

// removeIfOurs leaves a foreign device of a tunnel's name alone: no tunnel is wanted, so it is
// nobody's concern.
func removeIfOurs(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil || l.Attrs().Alias != kernel.DeviceAlias {
		return nil
	}
	return removeDevice(name)
}

// carryIPv6 lets IPv6 pass one of our devices, which believes no router.
func carryIPv6(name string) error {
	for _, s := range []struct {
		setting string
		value   int
	}{{"accept_ra", 0}, {"addr_gen_mode", 1}, {"disable_ipv6", 0}, {"forwarding", 1}} {
		if _, err := kernel.SetSysctl(s.value, "net", "ipv6", "conf", name, s.setting); err != nil {
			return err
		}
	}
	return nil
}
