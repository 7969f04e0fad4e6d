// SPDX-License-Identifier: Apache-2.0

package route

import (
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ipip says when traffic to a pool's addresses on other nodes goes by IP in IP; pool may be nil.
func ipip(c *cluster.View, pool *model.Pool) model.EncapMode {
	if pool == nil || c.Settings.IPIP == model.Off || pool.CIDR.Addr().Is6() {
		return model.EncapNever
	}
	return pool.IPIP
}

// ipipMTU returns the bytes of an inner packet, 0 when neither the settings nor the uplink say.
func ipipMTU(c *cluster.View) int {
	if c.Settings.IPIPMTU > 0 {
		return c.Settings.IPIPMTU
	}
	return max(c.Local.LinkMTU-ipipOverhead, 0)
}

// ipipSettings returns what of IP in IP is no single route's. A pool that asks for it towards some
// nodes makes all of them take it. Nodes hand on by it where the network may be open to nothing
// else: where a pool uses it, and none of IPv4 uses VXLAN.
func ipipSettings(c *cluster.View) nodestate.IPIP {
	var used, vxlan bool
	for _, p := range c.Pools {
		used = used || ipip(c, p).Encapsulates()
		vxlan = vxlan || p.VXLAN.Encapsulates() && p.CIDR.Addr().Is4()
	}
	if !used && c.Settings.IPIP != model.On {
		return nodestate.IPIP{}
	}
	return nodestate.IPIP{Accept: true, HandOn: used && !vxlan, MTU: ipipMTU(c)}
}
