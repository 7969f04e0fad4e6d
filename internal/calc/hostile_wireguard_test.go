// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func wireGuardKeys(i byte) model.WireGuardKeys {
	return model.WireGuardKeys{IPv4: model.WireGuardKey{i, 4}, IPv6: model.WireGuardKey{i, 6}}
}

// encrypting is a cluster of two families in which all nodes have keys, as worker sees it.
func encrypting() *model.Cluster {
	c := evil()
	c.Local.LinkMTU = 1500
	c.Settings.WireGuard.IPv4.Enabled, c.Settings.WireGuard.IPv6.Enabled = true, true
	for i, name := range []string{"control", "worker", "far", "near"} {
		with := *c.Nodes[name]
		with.WireGuard = wireGuardKeys(byte(i + 1))
		if name == "control" {
			with.Addrs = append(slices.Clone(with.Addrs), addr("fd00:31:1::8"))
		}
		c.Nodes[name] = &with
	}
	c.Local.WireGuard.Own = c.Nodes["worker"].WireGuard
	return c
}

// with changes one node of a cluster.
func with(c *model.Cluster, name string, change func(*model.Node)) {
	n := *c.Nodes[name]
	change(&n)
	c.Nodes = maps.Clone(c.Nodes)
	c.Nodes[name] = &n
}

// inTunnel says whether all that is on a node is reached through the tunnel, and nothing of it is
// handed on as it is; it is an error where both is so.
func inTunnel(t *testing.T, s *nodestate.State, node *model.Node, six bool) bool {
	t.Helper()
	a := node.NodeAddr()
	if six {
		a = node.NodeAddr6()
	}
	in, out := 0, 0
	note := func(tunnel, sameLink bool) {
		if tunnel && !sameLink {
			in++
		} else {
			out++
		}
	}
	for _, r := range s.Routes {
		if r.Node == a {
			note(r.Tunnel, r.SameLink)
		}
	}
	for _, v := range s.Addrs {
		if v.Node != a {
			continue
		}
		switch v.Kind {
		case nodestate.AddrPod:
			note(v.Tunnel, v.SameLink)
		case nodestate.AddrNode:
			note(true, v.SameLink)
		}
	}
	if in == 0 && out == 0 || in > 0 && out > 0 {
		t.Errorf("node %s: %d ways by the tunnel, %d past it", node.Name, in, out)
	}
	return in > 0
}

func peersOf(s *nodestate.State, six bool) map[netip.Addr]nodestate.WireGuardPeer {
	if six {
		return s.WireGuard6.Peers
	}
	return s.WireGuard4.Peers
}

func TestWireGuard(t *testing.T) {
	t.Parallel()
	c := encrypting()
	s := Calc(c)
	if s.Settings.Tunnel.MTU != 1500-80-50 {
		t.Errorf("the tunnel's MTU is %d", s.Settings.Tunnel.MTU)
	}
	if s.WireGuard4.MTU != 1440 || s.WireGuard6.MTU != 1420 || s.WireGuard4.Port != 51820 || s.WireGuard6.Interface != "wg-v6.cali" {
		t.Errorf("devices %+v, %+v", s.WireGuard4, s.WireGuard6)
	}
	for p, mtu := range s.Settings.PoolRoutes {
		if _, pool := s.Routes[p]; pool && (p.Addr().Is4() && mtu != 1370 || p.Addr().Is6() && mtu != 1350) {
			t.Errorf("the route of %s has MTU %d", p, mtu)
		}
	}
	c = encrypting()
	c.Settings.WireGuard.IPv6.Enabled = false
	s = Calc(c)
	for _, n := range c.Nodes {
		if n.Name == "worker" {
			continue
		}
		if !inTunnel(t, s, n, false) {
			t.Errorf("what goes to node %s is not encrypted", n.Name)
		}
		if got := s.WireGuard4.Peers[n.NodeAddr()]; got.Key != n.WireGuard.IPv4 || got.Node != n.Name || got.UID != n.UID {
			t.Errorf("the peer at %s is %+v", n.NodeAddr(), got)
		}
	}
	if s.WireGuard6.On() || len(s.WireGuard6.Peers) > 0 || s.Settings.Tunnel.MTU != 1390 {
		t.Errorf("IPv6 is encrypted, too: %+v, MTU %d", s.WireGuard6, s.Settings.Tunnel.MTU)
	}

	// Nodes without keys are sent packets in clear; where only encrypted ones may go, none.
	for _, strict := range []bool{false, true} {
		c = encrypting()
		c.Settings.WireGuard.Strict = strict
		with(c, "control", func(n *model.Node) { n.WireGuard = model.WireGuardKeys{} })
		s = Calc(c)
		control := c.Nodes["control"]
		peer, is := s.WireGuard4.Peers[control.NodeAddr()]
		if is != strict || peer.Key != (model.WireGuardKey{}) || (s.WireGuard4.Clear[control.NodeAddr()] == "control") == strict || inTunnel(t, s, control, false) != strict {
			t.Errorf("strict %t: peer %+v (%t), in clear %v", strict, peer, is, s.WireGuard4.Clear)
		}
		// Nor is anything encrypted while this node's own device is not ready.
		c.Local.WireGuard.Own = model.WireGuardKeys{}
		if s = Calc(c); inTunnel(t, s, control, false) != strict {
			t.Errorf("strict %t, without a key of its own: %+v", strict, s.WireGuard4)
		}
	}
}

// Who can write or delete objects must not make nodes send in clear that encrypted before.
func TestHostileWireGuardDowngrade(t *testing.T) {
	hostile.Record(t, "a node's published key is deleted, so that others send in clear", hostile.Operator, hostile.ControlPlane, hostile.Both)
	for _, six := range []bool{false, true} {
		c := encrypting()
		c.Local.WireGuard.Known = map[string]model.KnownWireGuard{}
		for name, n := range c.Nodes {
			c.Local.WireGuard.Known[name] = model.KnownWireGuard{UID: n.UID, Keys: n.WireGuard}
		}
		key := c.Nodes["control"].WireGuard.Of(six)
		with(c, "control", func(n *model.Node) { n.WireGuard = model.WireGuardKeys{} })
		s := Calc(c)
		control := c.Nodes["control"]
		a := control.NodeAddr()
		if six {
			a = control.NodeAddr6()
		}
		if !inTunnel(t, s, control, six) || peersOf(s, six)[a].Key != key {
			t.Errorf("IPv6 %t: the peer is %+v", six, peersOf(s, six)[a])
		}
		// Another node of the name is another node.
		with(c, "control", func(n *model.Node) { n.UID = "another" })
		if s = Calc(c); inTunnel(t, s, c.Nodes["control"], six) {
			t.Errorf("IPv6 %t: a node that was replaced has the key of the one before", six)
		}
	}
}

// A node must not get what is meant for another one by publishing its key, nor keep others from it.
func TestHostileWireGuardKeyOfAnother(t *testing.T) {
	hostile.Record(t, "a node publishes the key of another one", hostile.Node, hostile.ControlPlane, hostile.Both)
	for _, name := range []string{"control", "worker"} {
		for _, six := range []bool{false, true} {
			c := encrypting()
			stolen := c.Nodes[name].WireGuard
			with(c, "far", func(n *model.Node) { n.WireGuard = stolen; n.Created = 1 })
			c.Local.WireGuard.Known = map[string]model.KnownWireGuard{"control": {UID: c.Nodes["control"].UID, Keys: c.Nodes["control"].WireGuard}}
			s := Calc(c)
			for _, p := range peersOf(s, six) {
				want := c.Nodes[p.Node].WireGuard.Of(six)
				if p.Node == "far" {
					want = model.WireGuardKey{}
				}
				if p.Key != want {
					t.Errorf("key of %s, IPv6 %t: the peer %s has key %s, want %s", name, six, p.Node, p.Key, want)
				}
			}
			if !inTunnel(t, s, c.Nodes["far"], six) {
				t.Error(fmt.Sprint("what goes to the node goes in clear; IPv6 ", six))
			}
		}
	}
}

// What a node says to be its next key is its own only where no other node has it, or is about to.
func TestHostileWireGuardNextKeyOfAnother(t *testing.T) {
	hostile.Record(t, "a node publishes the key of another one as its next", hostile.Node, hostile.ControlPlane, hostile.Both)
	for _, six := range []bool{false, true} {
		c := encrypting()
		next := wireGuardKeys(99)
		with(c, "far", func(n *model.Node) { n.WireGuardNext = next })
		s := Calc(c)
		far := c.Nodes["far"]
		a := far.NodeAddr()
		if six {
			a = far.NodeAddr6()
		}
		if got := peersOf(s, six)[a]; got.Key != far.WireGuard.Of(six) || got.Next != next.Of(six) {
			t.Fatalf("IPv6 %t: the peer is %+v", six, got)
		}
		for what, stolen := range map[string]model.WireGuardKeys{"another node's": c.Nodes["control"].WireGuard, "this node's": c.Nodes["worker"].WireGuard, "another node's next": wireGuardKeys(98)} {
			c := encrypting()
			with(c, "control", func(n *model.Node) { n.WireGuardNext = wireGuardKeys(98) })
			with(c, "far", func(n *model.Node) { n.WireGuardNext = stolen })
			s := Calc(c)
			for _, p := range peersOf(s, six) {
				if p.Key != c.Nodes[p.Node].WireGuard.Of(six) || p.Node == "far" && p.Next != (model.WireGuardKey{}) {
					t.Errorf("%s, IPv6 %t: the peer %s has key %s, next %s", what, six, p.Node, p.Key, p.Next)
				}
			}
		}
	}
}

// Nothing goes by IP in IP, which no device of WireGuard carries, from a node that encrypts, and
// nothing is taken that came by it where no node may send in clear.
func TestHostileWireGuardIPIP(t *testing.T) {
	hostile.Record(t, "pools ask for IP in IP where nodes encrypt, so that packets pass by WireGuard", hostile.Operator, hostile.ControlPlane, hostile.Both)
	for _, mode := range []model.EncapMode{model.EncapAlways, model.EncapCrossSubnet} {
		for _, keys := range []bool{true, false} {
			for _, strict := range []bool{false, true} {
				c := encrypting()
				c.Settings.WireGuard.Strict = strict
				c.Settings.IPIP = model.On
				pools := 0
				for name, p := range c.Pools {
					if p.CIDR.Addr().Is4() {
						asks := *p
						asks.VXLAN, asks.IPIP = model.EncapNever, mode
						c.Pools[name] = &asks
						pools++
					}
				}
				if !keys {
					with(c, "control", func(n *model.Node) { n.WireGuard = model.WireGuardKeys{} })
				}
				s := Calc(c)
				for p, r := range s.Routes {
					if r.IPIP {
						t.Errorf("%s, keys %t, strict %t: %s goes by IP in IP", mode, keys, strict, p)
					}
				}
				for a, v := range s.Addrs {
					if v.IPIP {
						t.Errorf("%s, keys %t, strict %t: %s goes by IP in IP", mode, keys, strict, a)
					}
				}
				clear := !keys && !strict
				if got := s.Settings.IPIP; got.Accept != clear || got.HandOn || pools == 0 {
					t.Errorf("%s, keys %t, strict %t, %d pools: %+v", mode, keys, strict, pools, got)
				}
				for _, n := range c.Nodes {
					if n.Name != "worker" && !(clear && n.Name == "control") && !inTunnel(t, s, n, false) {
						t.Errorf("%s, keys %t, strict %t: what goes to %s is not encrypted", mode, keys, strict, n.Name)
					}
				}
				for p, mtu := range s.Settings.PoolRoutes {
					if _, pool := s.Routes[p]; pool && p.Addr().Is4() && mtu != 1370 {
						t.Errorf("the route of %s has MTU %d", p, mtu)
					}
				}
			}
		}
	}
}

// Of a pool that asks for IP in IP, what goes to a node without a key has VXLAN where it would have
// had IP in IP, and no tunnel elsewhere.
func TestWireGuardIPIPInClear(t *testing.T) {
	t.Parallel()
	c := encrypting()
	c.Local.WireGuard.Own = model.WireGuardKeys{}
	for name, p := range c.Pools {
		if p.CIDR.Addr().Is4() {
			asks := *p
			asks.VXLAN, asks.IPIP = model.EncapNever, model.EncapCrossSubnet
			c.Pools[name] = &asks
		}
	}
	s, seen := Calc(c), 0
	for p, r := range s.Routes {
		if !r.Node.IsValid() || !p.Addr().Is4() {
			continue
		}
		if seen++; r.IPIP || r.Tunnel == r.SameLink {
			t.Errorf("%s: %+v", p, r)
		}
	}
	if seen == 0 {
		t.Error("no routes to other nodes")
	}
}
