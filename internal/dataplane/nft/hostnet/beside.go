// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"crypto/sha1"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Beside has a network work together with nodes that still have another network plugin: what goes
// to a node through the tunnel bears the MAC address that the node's device has with that plugin.
// The stack leaves frames to other addresses alone; nodes with Weir take them all.
func (m *Network) Beside(mac func(node string) ([6]byte, error)) { m.beside = mac }

// CalicoMAC is the MAC address of the device vxlan.calico on a node where nothing sets another one:
// Felix makes it out of the node's name.
func CalicoMAC(node string) ([6]byte, error) {
	sum := sha1.Sum([]byte(node))
	out := [6]byte{'f'}
	copy(out[1:], sum[:5])
	return out, nil
}

// tunnelNeighbours enters the MAC addresses of nodes at the tunnel's device, by which routes lead
// to them. Entries go with the device. What is not known yet is an error, so that it is looked for
// again.
func (m *Network) tunnelNeighbours(s *nodestate.State) []error {
	if m.beside == nil || m.tunnel == nil {
		return nil
	}
	if m.remade || m.neighbours == nil {
		m.neighbours = map[netip.Addr][6]byte{}
	}
	var errs []error
	for a, v := range s.Addrs {
		if v.Kind != nodestate.AddrNode || v.Node != a || !a.Is4() {
			continue
		}
		mac, err := m.beside(v.Owner.Name)
		if err == nil && m.neighbours[a] == mac {
			continue
		}
		if err == nil {
			err = netlink.NeighSet(&netlink.Neigh{LinkIndex: m.tunnel.index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]})
		}
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "neighbours", Key: a.String(), Err: err})
			continue
		}
		m.neighbours[a] = mac
	}
	return errs
}

// haveBeside gives the device of IP in IP the address that this node has inside of the tunnel with
// the other plugin. What a kube-proxy masquerades has it, as it is the device's, and what the
// node's own processes send to nodes with that plugin (sourceBeside): these answer it through the
// tunnel, and would answer the node's address past it.
func haveBeside(d *device, own netip.Addr) error {
	l, err := netlink.LinkByIndex(d.index)
	if err == nil {
		err = netlink.AddrReplace(l, &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(own.BitLen(), own.BitLen())}})
	}
	if err != nil {
		return fmt.Errorf("giving %s the address %s: %w", IPIPDevice, own, err)
	}
	return nil
}

// addressBeside is that address; invalid = the device has none.
func addressBeside(d *device) (netip.Addr, error) {
	l, err := netlink.LinkByIndex(d.index)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("looking at %s: %w", IPIPDevice, err)
	}
	found, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing the addresses of %s: %w", IPIPDevice, err)
	}
	for _, a := range found {
		if own, ok := netip.AddrFromSlice(a.IP); ok && !own.Unmap().IsLinkLocalUnicast() { // TrustDevice's
			return own.Unmap(), nil
		}
	}
	return netip.Addr{}, nil
}

// sourceBeside is the source of what this node's own processes send by IP in IP to a node with the
// other plugin, and to pods there; invalid = the node's address. Nodes with Weir publish a MAC
// address.
func (m *Network) sourceBeside(s *nodestate.State, node netip.Addr) netip.Addr {
	if s.Addrs[node].MAC != [6]byte{} {
		return netip.Addr{}
	}
	return m.ownBeside
}
