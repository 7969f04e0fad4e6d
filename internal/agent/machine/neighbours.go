// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// readNeighbours reads the kernel's neighbour table; links says which interfaces are not pods'.
func readNeighbours(links map[int]bool) (map[netip.Addr][6]byte, error) {
	out := map[netip.Addr][6]byte{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		neighs, err := kernel.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, family) })
		if err != nil {
			return nil, fmt.Errorf("listing neighbours: %w", err)
		}
		for _, n := range neighs {
			a, ok := netip.AddrFromSlice(n.IP)
			if ok && links[n.LinkIndex] && len(n.HardwareAddr) == 6 && n.State&(unix.NUD_INCOMPLETE|unix.NUD_FAILED|unix.NUD_NOARP) == 0 {
				out[a.Unmap()] = [6]byte(n.HardwareAddr)
			}
		}
	}
	return out, nil
}

// LinkAddresses returns the link addresses of the nodes and gateways that are known on this
// machine's links.
func (l *Watcher) LinkAddresses(nodes map[string]*model.Node, gateways []netip.Addr) map[netip.Addr][6]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[netip.Addr][6]byte{}
	keep := func(list []netip.Addr) {
		for _, a := range list {
			if mac, ok := l.neighbours[a]; ok {
				out[a] = mac
			}
		}
	}
	for _, n := range nodes {
		keep(n.Addrs)
	}
	keep(gateways)
	return out
}
