package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
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

// linkAddresses returns the link addresses of the nodes and gateways that are known on this machine's links.
func (l *local) linkAddresses(nodes map[string]*model.Node, gateways []netip.Addr) map[netip.Addr][6]byte {
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

// refusePodAddr says why a pod cannot have an address, "" when it can: it is a node's, a gateway's or a Service's.
func (c *cluster) refusePodAddr(a netip.Addr) string {
	snap := c.snapshot()
	switch {
	case slices.Contains(snap.gateways, a):
		return "it is the address of a gateway"
	case model.Within(snap.serviceCIDRs, a):
		return "it is in a range of cluster IPs"
	case snap.state == nil:
		return ""
	}
	switch v := snap.state.Addrs[a]; v.Kind {
	case nodestate.AddrHost:
		return "it is an address of this machine"
	case nodestate.AddrNode:
		return "it is an address of node " + v.Owner.Name
	}
	return ""
}
