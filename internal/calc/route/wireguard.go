// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What WireGuard adds to a packet of the tunnel: its header and tag 32, UDP 8, and the outer IP
// header, which is of the family that the device carries.
const (
	wireGuardOverhead  = 32 + 8 + 20
	wireGuardOverhead6 = 32 + 8 + 40
)

// encrypts reports whether all that goes to pods of another node in one family goes through
// WireGuard, as packets of the VXLAN tunnel: these carry what the node hands on for clients outside
// too, whose addresses no peer of WireGuard could have. Where only encrypted packets may go it is
// so for nodes without a key, too: they get nothing.
func encrypts(c *cluster.View, n *model.Node, six bool) bool {
	w := &c.Settings.WireGuard
	if !w.Of(six).Enabled || n == nil || n.Name == c.Local.Node {
		return false
	}
	return w.Strict || c.Local.WireGuard.Own.Of(six) != (model.WireGuardKey{}) &&
		c.Local.WireGuard.WireGuardKeyOf(n, six) != (model.WireGuardKey{})
}

// encryptsHosts reports whether what this node itself exchanges with another one in a family, at
// their primary addresses, goes through WireGuard as packets of the tunnel.
func encryptsHosts(c *cluster.View, n *model.Node, six bool) bool {
	return c.Settings.WireGuard.Hosts && ownAddr(c, six).IsValid() && encrypts(c, n, six)
}

// ownAddr is this node's primary address of a family.
func ownAddr(c *cluster.View, six bool) netip.Addr {
	n := c.Nodes[c.Local.Node]
	switch {
	case n == nil:
		return netip.Addr{}
	case six:
		return n.NodeAddr6()
	}
	return n.NodeAddr()
}

// nodeRoutes are the addresses of other nodes that are reached through the tunnel.
func nodeRoutes(c *cluster.View) map[netip.Prefix]int {
	out := map[netip.Prefix]int{}
	for _, n := range c.Nodes {
		for a, mtu := range map[netip.Addr]int{n.NodeAddr(): tunnelMTU(c), n.NodeAddr6(): max(tunnelMTU(c)-ipv6Extra, 0)} {
			if a.IsValid() && c.Carried(a) && encryptsHosts(c, n, a.Is6()) {
				out[netip.PrefixFrom(a, a.BitLen())] = mtu
			}
		}
	}
	return out
}

// clearPorts are the TCP ports that nodes reach on each other in clear whatever is encrypted: those
// that are failsafe, and those of API servers. A node that starts has to reach them before anything
// of Weir runs on it.
func clearPorts(c *cluster.View) []uint16 {
	var out []uint16
	for _, f := range c.Settings.FailsafeIn {
		if f.Protocol == model.ProtocolTCP {
			out = append(out, f.Port)
		}
	}
	if sl := cluster.APIServersOf(c.Cluster); sl != nil {
		for _, p := range sl.Ports {
			if p.Protocol == model.ProtocolTCP {
				out = append(out, p.Port)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// linkTo says how another node is reached at its primary address: on one link, which packets for
// its pods may use as they are, or not. Whether the network of another CNI plugin carries packets
// for others' addresses, nobody knows.
func linkTo(c *cluster.View, n *model.Node, a netip.Addr) (sameLink, encrypted bool) {
	if encrypts(c, n, a.Is6()) {
		return false, true
	}
	return !c.Settings.Chained && cluster.SameLink(c, a), false
}

// WireGuard returns what is encrypted in one family.
func WireGuard(c *cluster.View, six bool) nodestate.WireGuard {
	dev := c.Settings.WireGuard.Of(six)
	if !dev.Enabled || six && !c.Ipv6 {
		return nodestate.WireGuard{}
	}
	out := nodestate.WireGuard{Interface: dev.Interface, Port: dev.Port, MTU: wireGuardMTU(c, six), KeepAlive: c.Settings.WireGuard.KeepAlive,
		RulePriority: c.Settings.WireGuard.RulePriority, Peers: map[netip.Addr]nodestate.WireGuardPeer{}, Clear: map[netip.Addr]string{}}
	if c.Settings.WireGuard.Hosts {
		out.Hosts = nodestate.WireGuardHosts{Own: ownAddr(c, six), Clear: clearPorts(c), SNATFirst: c.Settings.SNATPortFirst, SNATLast: c.Settings.SNATPortLast}
	}
	own := c.Local.WireGuard.Own.Of(six)
	for _, n := range c.Nodes {
		a := n.NodeAddr()
		if six {
			a = n.NodeAddr6()
		}
		switch {
		case n.Name == c.Local.Node || !a.IsValid():
		case encrypts(c, n, six):
			// Of two nodes with one address the older is the peer.
			if have, ok := out.Peers[a]; ok && olderNode(c.Nodes[have.Node], n) {
				continue
			}
			p := nodestate.WireGuardPeer{Node: n.Name, UID: n.UID}
			if key := c.Local.WireGuard.WireGuardKeyOf(n, six); key != own && own != (model.WireGuardKey{}) {
				p.Key = key
			}
			if next := n.WireGuardNext.Of(six); next != own {
				p.Next = next
			}
			out.Peers[a] = p
		default:
			out.Clear[a] = n.Name
		}
	}
	holders := map[model.WireGuardKey]*model.Node{}
	for _, p := range out.Peers {
		if have := holders[p.Key]; have == nil || olderHolder(c, c.Nodes[p.Node], have) {
			holders[p.Key] = c.Nodes[p.Node]
		}
	}
	next := map[model.WireGuardKey]int{}
	for a, p := range out.Peers {
		if holders[p.Key].Name != p.Node {
			p.Key = model.WireGuardKey{}
			out.Peers[a] = p
		}
		next[p.Next]++
	}
	for a, p := range out.Peers {
		// What is another node's, or may be, is nobody's next key.
		if holder := holders[p.Next]; p.Key == (model.WireGuardKey{}) || next[p.Next] > 1 || holder != nil {
			p.Next = model.WireGuardKey{}
			out.Peers[a] = p
		}
	}
	return out
}

// olderHolder reports whether a key that two nodes publish is a's rather than b's: it is that of
// the node for which it was used before, else the older node's. The other gets nothing.
func olderHolder(c *cluster.View, a, b *model.Node) bool {
	used := func(n *model.Node) bool {
		k, ok := c.Local.WireGuard.Known[n.Name]
		return ok && k.UID == n.UID && k.Keys == n.WireGuard
	}
	if used(a) != used(b) {
		return used(a)
	}
	return olderNode(a, b)
}

func olderNode(a, b *model.Node) bool {
	return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.Name, b.Name)) < 0
}

// wireGuardMTU returns the MTU of the device that carries a family, 0 when neither the settings nor
// the uplink say.
func wireGuardMTU(c *cluster.View, six bool) int {
	if mtu := c.Settings.WireGuard.Of(six).MTU; mtu > 0 {
		return mtu
	}
	if six {
		return max(c.Local.LinkMTU-wireGuardOverhead6, 0)
	}
	return max(c.Local.LinkMTU-wireGuardOverhead, 0)
}

// encryptedMTU returns the bytes of an inner IPv4 packet of the tunnel where something is
// encrypted: that of IPv6 is less by ipv6Extra, as always.
func encryptedMTU(c *cluster.View, mtu int) int {
	w := &c.Settings.WireGuard
	if m := wireGuardMTU(c, false); w.IPv4.Enabled && m > 0 {
		mtu = min(mtu, max(m-vxlanOverhead, 0))
	}
	if m := wireGuardMTU(c, true); w.IPv6.Enabled && c.Ipv6 && m > 0 {
		mtu = min(mtu, max(m-vxlanOverhead, 0))
	}
	return mtu
}
