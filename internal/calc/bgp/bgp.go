// SPDX-License-Identifier: Apache-2.0

// Package bgp is the stage of the calculation that says what the node's BGP process should do: with
// whom it has sessions, what it advertises, and which learned routes it leaves alone.
package bgp

import (
	"crypto/sha256"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/selector"
)

// Inputs are the kinds that it is made from.
const Inputs = model.KindBGP | model.KindNodes | model.KindPools | model.KindBlocks | model.KindLocal | model.KindSettings

const (
	defaultPort    = 179
	defaultRestart = 120 // seconds
)

// State returns what the node's BGP process should do; nil = nothing, because nobody configured
// BGP, or the node is not known.
func State(c *cluster.View, services iter.Seq[cluster.ServiceAddr]) *nodestate.BGP {
	own := c.Nodes[c.Local.Node]
	if !c.BGPInUse() || own == nil {
		return nil
	}
	x := sessions{c: c, own: own, conf: model.BGPConfig{}, found: map[netip.Addr]nodestate.BGPPeer{}, by: map[netip.Addr]*model.BGPPeer{}}
	if d := c.BGPConfigs["default"]; d != nil {
		x.conf = *d
	}
	out := &nodestate.BGP{ASN: x.asn(own), RouterID: routerID(own), ListenPort: x.listenPort(own.Name)}
	bind := x.conf.BindMode
	if n := c.BGPConfigs["node."+own.Name]; n != nil && n.BindMode != "" {
		bind = n.BindMode
	}
	for _, a := range []netip.Addr{own.NodeAddr(), own.NodeAddr6()} {
		if a.IsValid() && c.Carried(a) {
			out.Sources = append(out.Sources, a)
			if bind == "NodeIP" {
				out.ListenAddrs = append(out.ListenAddrs, a)
			}
		}
	}
	x.find()
	for _, a := range slices.SortedFunc(maps.Keys(x.found), netip.Addr.Compare) {
		out.Peers = append(out.Peers, x.found[a])
	}
	x.filters(out)
	x.nextHops(out)
	prefixes(c, out)
	x.services(out, services)
	for _, list := range []*[]netip.Prefix{&out.Advertise, &out.Pass, &out.Reflect, &out.Keep} {
		slices.SortFunc(*list, netip.Prefix.Compare)
		*list = slices.Compact(*list)
	}
	x.tags(out)
	return out
}

// sessions are those of a node.
type sessions struct {
	c     *cluster.View
	own   *model.Node
	conf  model.BGPConfig
	found map[netip.Addr]nodestate.BGPPeer
	by    map[netip.Addr]*model.BGPPeer // the objects by which they are
}

func (x *sessions) asn(n *model.Node) uint32 {
	switch {
	case n.ASN != 0:
		return n.ASN
	case x.conf.ASN != 0:
		return x.conf.ASN
	}
	return model.DefaultASN
}

func (x *sessions) listenPort(node string) uint16 {
	if n := x.c.BGPConfigs["node."+node]; n != nil && n.ListenPort != 0 {
		return n.ListenPort
	}
	if x.conf.ListenPort != 0 {
		return x.conf.ListenPort
	}
	return defaultPort
}

// find finds them: of several with one address that of the object with the smallest name, and those
// of objects before those of the mesh.
func (x *sessions) find() {
	for _, name := range slices.Sorted(maps.Keys(x.c.BGPPeers)) {
		p := x.c.BGPPeers[name]
		if x.is(x.own, p) {
			if p.PeerSelector == "" {
				x.router(p)
			}
			x.nodes(p, func(n *model.Node) bool { return p.PeerSelector != "" && matches(p.PeerSelector, n) })
		}
		if p.PeerSelector != "" && !p.Manual && matches(p.PeerSelector, x.own) {
			x.nodes(p, func(n *model.Node) bool { return x.is(n, p) })
		}
	}
	if !x.conf.MeshDisabled && !x.own.ClusterID.IsValid() {
		x.nodes(&model.BGPPeer{Name: "mesh", Password: x.conf.MeshPassword, Restart: x.conf.MeshRestart}, func(n *model.Node) bool { return !n.ClusterID.IsValid() })
	}
}

// is reports whether an object is for a node.
func (x *sessions) is(n *model.Node, p *model.BGPPeer) bool {
	switch {
	case p.Node != "":
		return p.Node == n.Name
	case p.NodeSelector != "":
		return matches(p.NodeSelector, n)
	}
	return true
}

func matches(expression string, n *model.Node) bool {
	s, err := selector.Parse(expression)
	return err == nil && s.Matches(n.Labels)
}

// nodes adds sessions with other nodes, in each family that both have.
func (x *sessions) nodes(p *model.BGPPeer, which func(*model.Node) bool) {
	for _, n := range x.c.Nodes {
		if n.Name == x.own.Name || !which(n) {
			continue
		}
		for _, own := range []netip.Addr{x.own.NodeAddr(), x.own.NodeAddr6()} {
			a := own
			if own.IsValid() {
				a = n.AddrLike(own)
			}
			if !a.IsValid() || !x.c.Carried(a) {
				continue
			}
			s := x.session(p, a)
			s.Name, s.ASN, s.Port = p.Name+" "+n.Name, x.asn(n), x.listenPort(n.Name)
			s.Passive = own.Less(a) // one of them begins, so that they do not meet
			x.reflects(&s, n)
			x.add(s, p)
		}
	}
}

// router adds a session with what is no node, or one that is named by its address.
func (x *sessions) router(p *model.BGPPeer) {
	if !x.c.Carried(p.Addr) || slices.Contains(x.own.Addrs, p.Addr) {
		return
	}
	s := x.session(p, p.Addr)
	s.Name, s.ASN, s.Port = p.Name, p.ASN, p.Port
	var node *model.Node
	for _, n := range x.c.Nodes {
		if n.AddrLike(p.Addr) == p.Addr {
			node = n
		}
	}
	if s.Port == 0 {
		s.Port = defaultPort
		if node != nil {
			s.Port = x.listenPort(node.Name)
		}
	}
	x.reflects(&s, node)
	x.add(s, p)
}

func (x *sessions) session(p *model.BGPPeer, a netip.Addr) nodestate.BGPPeer {
	s := nodestate.BGPPeer{Addr: a, LocalASN: p.LocalASN, Password: p.Password, Restart: p.Restart, LongLived: p.LongLived, Keepalive: p.Keepalive, TTLHops: p.TTLHops, AllowedAS: p.AllowedAS}
	if s.Restart == 0 {
		s.Restart = defaultRestart
	}
	s.BFD = p.BFD && !p.Via.IsValid() && cluster.SameLink(x.c, a)
	if !p.AnySource {
		s.Source = x.own.AddrLike(a)
	}
	return s
}

// reflects says whether the node reflects routes to a peer, node where it is one: to all in its own
// AS but the reflectors of its own cluster.
func (x *sessions) reflects(s *nodestate.BGPPeer, node *model.Node) {
	own := x.asn(x.own)
	if s.LocalASN != 0 {
		own = s.LocalASN
	}
	if x.own.ClusterID.IsValid() && s.ASN == own && (node == nil || node.ClusterID != x.own.ClusterID) {
		s.ClusterID = x.own.ClusterID
	}
}

func (x *sessions) add(s nodestate.BGPPeer, by *model.BGPPeer) {
	if _, there := x.found[s.Addr]; !there {
		x.found[s.Addr], x.by[s.Addr] = s, by
	}
}

// nextHops says what the peers of out are sent as next hops, and by which routers they are reached.
func (x *sessions) nextHops(out *nodestate.BGP) {
	for _, p := range out.Peers {
		by := x.by[p.Addr]
		switch by.NextHop {
		case "Self":
			out.Self = append(out.Self, p.Addr)
		case "Keep":
			out.Unchanged = append(out.Unchanged, p.Addr)
		}
		if by.Via.IsValid() && by.Addr == p.Addr {
			out.Gateways = append(out.Gateways, nodestate.BGPGateway{Peer: p.Addr, Via: by.Via})
		}
	}
}

// routerID is the node's IPv4 address, or made from its name.
func routerID(n *model.Node) netip.Addr {
	if a := n.NodeAddr(); a.IsValid() {
		return a
	}
	sum := sha256.Sum256([]byte(n.Name))
	sum[0] |= 1 // 0.0.0.0 is none
	return netip.AddrFrom4([4]byte(sum[:4]))
}

// inTunnel reports whether the data plane carries a pool in a tunnel, to some nodes at least: by a
// learned route its packets would go past it, in clear where WireGuard encrypts the tunnel.
func inTunnel(c *cluster.View, p *model.Pool) bool {
	return p.VXLAN.Encapsulates() || p.IPIP.Encapsulates() && c.Settings.IPIP != model.Off || c.Settings.WireGuard.Of(p.CIDR.Addr().Is6()).Enabled
}

// prefixes says what is advertised, handed on and left alone.
func prefixes(c *cluster.View, out *nodestate.BGP) {
	pools := cluster.PoolIndex(c)
	exported := func(a netip.Addr) bool {
		p, ok := pools.Lookup(a)
		return ok && p != nil && !p.NoBGPExport && p.Workload
	}
	for _, p := range c.Pools {
		if !c.CarriedPrefix(p.CIDR) {
			continue
		}
		if !p.NoBGPExport && p.Workload {
			out.Pass = append(out.Pass, p.CIDR.Masked())
		}
		if inTunnel(c, p) {
			out.Keep = append(out.Keep, p.CIDR.Masked())
		}
	}
	held := func(a netip.Addr) bool {
		node, ok := c.Owners.ByAddr.Lookup(a)
		return ok && node == c.Local.Node
	}
	for _, b := range c.Blocks {
		if b.Node != c.Local.Node || !c.CarriedPrefix(b.CIDR) || c.Covered != nil && c.Covered.Forbids(b.CIDR) {
			continue
		}
		out.Keep = append(out.Keep, b.CIDR.Masked())
		if exported(b.CIDR.Addr()) {
			out.Advertise = append(out.Advertise, b.CIDR.Masked())
		}
	}
	for a := range c.Local.Endpoints {
		if !c.Carried(a) || held(a) {
			continue
		}
		p := netip.PrefixFrom(a, a.BitLen())
		out.Keep = append(out.Keep, p)
		if exported(a) {
			out.Advertise = append(out.Advertise, p)
		}
	}
	for a, f := range c.EachFloating() {
		if f.Node == c.Local.Node {
			p := netip.PrefixFrom(a, a.BitLen())
			out.Keep = append(out.Keep, p)
			if exported(a) {
				out.Advertise = append(out.Advertise, p)
			}
		}
	}
	for _, a := range c.Local.HostAddrs {
		if c.Carried(a) {
			out.Keep = append(out.Keep, netip.PrefixFrom(a, a.BitLen()))
		}
	}
}
