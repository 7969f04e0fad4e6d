// SPDX-License-Identifier: Apache-2.0

package route

import (
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// asksForIPIP reports whether a pool is to use IP in IP, by which only IPv4 goes.
func asksForIPIP(c *cluster.View, pool *model.Pool) bool {
	return pool != nil && pool.IPIP.Encapsulates() && c.Settings.IPIP != model.Off && pool.CIDR.Addr().Is4()
}

// ipip says when traffic to a pool's addresses on other nodes goes by IP in IP; pool may be nil.
// Where WireGuard is on it never does: what is encrypted are the packets of VXLAN.
func ipip(c *cluster.View, pool *model.Pool) model.EncapMode {
	if !asksForIPIP(c, pool) || c.Settings.WireGuard.IPv4.Enabled {
		return model.EncapNever
	}
	return pool.IPIP
}

// vxlan says when traffic to a pool's addresses on other nodes goes by VXLAN, which has the place
// of IP in IP where WireGuard is on; pool may be nil.
func vxlan(c *cluster.View, pool *model.Pool) model.EncapMode {
	switch {
	case pool == nil:
		return model.EncapNever
	case asksForIPIP(c, pool) && c.Settings.WireGuard.IPv4.Enabled:
		return pool.IPIP
	}
	return pool.VXLAN
}

// toByIPIP reports whether traffic to a pool's addresses on another node goes by IP in IP. A node
// that cannot take it gets VXLAN in its place; pool may be nil.
func toByIPIP(c *cluster.View, pool *model.Pool, n *model.Node, sameLink bool) bool {
	return !n.NoIPIP && ipip(c, pool).To(sameLink)
}

// ipipMTU returns the bytes of an inner packet, 0 when neither the settings nor the uplink say.
// Where a node cannot take IP in IP it is what fits VXLAN too: a pod has one MTU for all its peers.
func ipipMTU(c *cluster.View) int {
	mtu := c.Settings.IPIPMTU
	if mtu <= 0 {
		mtu = max(c.Local.LinkMTU-ipipOverhead, 0)
	}
	for _, n := range c.Nodes {
		if n.NoIPIP && n.NodeAddr().IsValid() {
			return min(mtu, tunnelMTU(c))
		}
	}
	return mtu
}

// ipipSettings returns what of IP in IP is no single route's. A pool that asks for it towards some
// nodes makes all of them take it. Nodes hand on by it where the network may be open to nothing
// else: where a pool uses it, and none of IPv4 uses VXLAN.
func ipipSettings(c *cluster.View) nodestate.IPIP {
	var asked, used, byVXLAN bool
	for _, p := range c.Pools {
		asked = asked || asksForIPIP(c, p)
		used = used || ipip(c, p).Encapsulates()
		byVXLAN = byVXLAN || p.VXLAN.Encapsulates() && p.CIDR.Addr().Is4()
	}
	if !asked && c.Settings.IPIP != model.On || !takesClear(c) {
		return nodestate.IPIP{}
	}
	return nodestate.IPIP{Accept: true, HandOn: used && !byVXLAN, MTU: ipipMTU(c)}
}

// takesClear reports whether some node may send IP in IP to this one, which is never encrypted:
// where WireGuard is on, only nodes without a key do, if they may.
func takesClear(c *cluster.View) bool {
	if !c.Settings.WireGuard.IPv4.Enabled {
		return true
	}
	for _, n := range c.Nodes {
		if n.Name != c.Local.Node && n.NodeAddr().IsValid() && !encrypts(c, n, false) {
			return true
		}
	}
	return false
}
