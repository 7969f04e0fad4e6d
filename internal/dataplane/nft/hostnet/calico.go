// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"crypto/sha1"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
)

// BesideCalico has a network work together with nodes that still have Calico: what goes to a node
// through the tunnel bears the MAC address that the node's device has with Calico. The stack leaves
// frames to other addresses alone; nodes with Weir take them all.
func (m *Network) BesideCalico() { m.calico = true }

// calicoMAC is the MAC address of the device vxlan.calico on a node where nothing sets another one:
// Felix makes it out of the node's name.
func calicoMAC(node string) [6]byte {
	sum := sha1.Sum([]byte(node))
	out := [6]byte{'f'}
	copy(out[1:], sum[:5])
	return out
}

// tunnelNeighbours enters the MAC addresses of nodes at the tunnel's device, by which routes lead
// to them. Entries go with the device.
func (m *Network) tunnelNeighbours(s *nodestate.State) []error {
	if !m.calico || m.tunnel == nil {
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
		mac := calicoMAC(v.Owner.Name)
		if m.neighbours[a] == mac {
			continue
		}
		err := netlink.NeighSet(&netlink.Neigh{LinkIndex: m.tunnel.index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac[:]})
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "neighbours", Key: a.String(), Err: err})
			continue
		}
		m.neighbours[a] = mac
	}
	return errs
}
