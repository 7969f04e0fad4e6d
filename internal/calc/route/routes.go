// SPDX-License-Identifier: Apache-2.0

package route

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// vxlanOverhead is what VXLAN over IPv4 adds to an IP packet, in bytes: outer IPv4 20, UDP 8,
// VXLAN 8 (RFC 7348), inner Ethernet 14. The outer header is of the inner packet's family: IPv6's
// is longer by ipv6Extra.
const (
	vxlanOverhead = 50
	ipv6Extra     = 20

	ipipOverhead = 20 // of IP in IP: the outer IPv4 header
)

// Settings returns the node's scalars.
func Settings(c *cluster.View) nodestate.Settings {
	m := &c.Settings
	s := nodestate.Settings{
		DSR: m.DSR, ConnectTime: m.ConnectTime, SNATFirst: m.SNATPortFirst, SNATLast: m.SNATPortLast,
		Tunnel:     nodestate.Tunnel{Port: m.VXLANPort, VNI: m.VXLANVNI, MTU: tunnelMTU(c)},
		DataIfaces: m.DataIfaces, InterfacePrefix: m.InterfacePrefix, PoolRoutes: map[netip.Prefix]int{}, NodeRoutes: nodeRoutes(c), PodMTU: c.Local.LinkMTU,
		HostNAT: m.HostNAT, ToHost: m.ToHost, VXLANFromPods: m.VXLANFromPods, IPIPFromPods: m.IPIPFromPods, IPIP: ipipSettings(c), RPFStrict: m.RPFStrict, Chained: m.Chained, Gateways: m.Egress != model.EgressDisabled, Floating: m.FloatingIPs && !m.Chained, IPv6: c.Ipv6, MaxFlows: m.MaxFlows, Timeouts: m.Timeouts, DSRTimes: m.DSRTimes,
		KubeProxy: c.Local.KubeProxy, ProxyRules: c.Local.ProxyRules, HandOver: c.Local.HandOver,
	}
	for _, p := range m.DSROptOut {
		if c.CarriedPrefix(p) {
			s.DSROptOut = append(s.DSROptOut, p)
		}
	}
	if own := c.Nodes[c.Local.Node]; own != nil {
		s.Node = own.NodeAddr()
		if c.Ipv6 {
			s.Node6 = own.NodeAddr6()
		}
	}
	by := c.Covered
	for _, p := range c.Pools {
		if !c.CarriedPrefix(p.CIDR) || amongNodes(c, p) || m.Chained { // host processes reach pods by that plugin's routes
			continue
		}
		mtu := poolMTU(c, p)
		switch {
		case by.Overlap(p) != "":
			if p.Workload || !p.LoadBalancer {
				for _, b := range by.BlocksIn(c, p) {
					s.PoolRoutes[b] = mtu
				}
			}
			continue
		case p.Gives() || cluster.InUse(c, p):
			s.PoolRoutes[p.CIDR.Masked()] = mtu
		}
		if p.Gives() {
			s.PodMTU = min(s.PodMTU, mtu)
		}
	}
	for _, p := range c.ServiceCIDRs {
		if c.CarriedPrefix(p) && !by.Forbids(p) {
			s.PoolRoutes[p.Masked()] = s.PodMTU // countEndpoints a cluster IP may be a pod of any pool
		}
	}
	for _, p := range attracted(c) {
		if _, there := s.PoolRoutes[p]; !there {
			s.PoolRoutes[p] = s.PodMTU
		}
	}
	return s
}

// tunnelMTU returns the bytes of an inner IPv4 packet, 0 when neither the settings nor the uplink
// say.
func tunnelMTU(c *cluster.View) int {
	if c.Settings.VXLANMTU > 0 {
		return encryptedMTU(c, c.Settings.VXLANMTU)
	}
	return encryptedMTU(c, max(c.Local.LinkMTU-vxlanOverhead, 0))
}

// poolMTU returns the MTU of the route to a pool's addresses. A pool that is tunnelled to some
// nodes only has the tunnel's MTU throughout: a pod has one MTU for all its peers.
func poolMTU(c *cluster.View, p *model.Pool) int {
	switch {
	case ipip(c, p).Encapsulates():
		return ipipMTU(c)
	case !vxlan(c, p).Encapsulates() && !c.Settings.WireGuard.Of(p.CIDR.Addr().Is6()).Enabled:
		return c.Local.LinkMTU
	case p.CIDR.Addr().Is6():
		return max(tunnelMTU(c)-ipv6Extra, 0)
	}
	return tunnelMTU(c)
}

// tunnelled reports whether traffic to an address of the pool on that node is encapsulated. pool
// may be nil: an address of no pool is not.
func tunnelled(c *cluster.View, pool *model.Pool, sameLink bool) bool {
	return vxlan(c, pool).To(sameLink) || ipip(c, pool).To(sameLink)
}

// learned reports whether packets for pods of another node go as the kernel routes the pods' own
// addresses where it was told how: behind a router, without a tunnel, while BGP is in use. On one
// link the node itself is the next hop, as its pods' packets are to bear its MAC address.
func learned(c *cluster.View, sameLink, through bool) bool {
	return c.BGPInUse() && !sameLink && !through
}

// Routes returns a route for every pool and every block. A block whose node is not known, or has no
// address, is part of its pool and no more: nothing is sent there.
func Routes(c *cluster.View) map[netip.Prefix]nodestate.Route {
	out := make(map[netip.Prefix]nodestate.Route, len(c.Pools)+len(c.Blocks))
	by := c.Covered
	for _, p := range c.Pools {
		if c.CarriedPrefix(p.CIDR) && !amongNodes(c, p) && by.Overlap(p) == "" {
			out[p.CIDR.Masked()] = nodestate.Route{Pool: true}
		}
	}
	for _, p := range attracted(c) {
		out[p] = nodestate.Route{Pool: true}
	}
	pools := cluster.PoolIndex(c)
	for _, b := range c.Blocks {
		if b.VM != nil { // an address, not a route: it may be in a block of this node
			continue
		}
		if !c.CarriedPrefix(b.CIDR) || b.Node == cluster.LoadBalancers || by.Forbids(b.CIDR) {
			continue
		}
		r := nodestate.Route{Pool: true}
		if b.Node == c.Local.Node && b.Node != "" {
			r.Local = true
		} else if n := c.Nodes[b.Node]; n != nil && n.AddrLike(b.CIDR.Addr()).IsValid() {
			pool, _ := pools.Lookup(b.CIDR.Addr())
			r.Node = n.AddrLike(b.CIDR.Addr())
			link, encrypted := linkTo(c, n, r.Node)
			r.SameLink, r.Tunnel, r.IPIP = link, encrypted || tunnelled(c, pool, link), toByIPIP(c, pool, n, link)
			r.Learned = learned(c, link, r.Tunnel)
		}
		out[b.CIDR.Masked()] = r
	}
	return out
}

// attracted are the ranges of Services' addresses for which routers send this node packets. What is
// no Service's there ends on the node: by its default route it would go back to the router.
func attracted(c *cluster.View) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range c.AdvertisedRanges() {
		if !c.Covered.Forbids(p) {
			out = append(out, p)
		}
	}
	return out
}

// amongNodes reports whether a pool that is only for load balancers has addresses of nodes in it,
// as one that is the whole of a subnet: it cannot be routed as one.
func amongNodes(c *cluster.View, p *model.Pool) bool {
	if !p.LoadBalancer || p.Workload {
		return false
	}
	for _, n := range c.Nodes {
		if slices.ContainsFunc(n.Addrs, p.CIDR.Contains) {
			return true
		}
	}
	return slices.ContainsFunc(c.Local.HostAddrs, p.CIDR.Contains)
}
