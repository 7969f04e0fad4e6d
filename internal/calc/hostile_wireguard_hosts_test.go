// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// hostsOf returns what is said of nodes' own exchange in a family.
func hostsOf(s *nodestate.State, six bool) nodestate.WireGuardHosts {
	if six {
		return s.WireGuard6.Hosts
	}
	return s.WireGuard4.Hosts
}

// TestWireGuardHosts: with the setting nodes' primary addresses are reached through the tunnel, of
// those nodes whose pods are, and the ports that a starting node needs are named.
func TestWireGuardHosts(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{false, true} {
		c := encrypting()
		c.Settings.WireGuard.Hosts, c.Settings.WireGuard.IPv6.Enabled = on, false
		with(c, "far", func(n *model.Node) { n.WireGuard = model.WireGuardKeys{} })
		c.Slices[cluster.APIServerSlice] = &model.EndpointSlice{Name: cluster.APIServerSlice, Service: cluster.APIService,
			Ports: []model.EndpointPort{{Name: "https", Protocol: model.ProtocolTCP, Port: 7443}}}
		s := Calc(c)
		for _, n := range c.Nodes {
			a := n.NodeAddr()
			want := on && n.Name != "worker" && n.Name != "far"
			mtu, routed := s.Settings.NodeRoutes[netip.PrefixFrom(a, a.BitLen())]
			if s.Addrs[a].Tunnel != want || routed != want || routed && mtu != s.Settings.Tunnel.MTU {
				t.Errorf("on %t: node %s: %+v, route %t, MTU %d", on, n.Name, s.Addrs[a], routed, mtu)
			}
			if six := n.NodeAddr6(); six.IsValid() && s.Addrs[six].Tunnel {
				t.Errorf("on %t: node %s is reached through the tunnel by IPv6, which is not encrypted", on, n.Name)
			}
		}
		h := hostsOf(s, false)
		if h.On() != on || on && (h.Own != c.Nodes["worker"].NodeAddr() || !slices.Contains(h.Clear, 6443) || !slices.Contains(h.Clear, 7443) || !slices.IsSorted(h.Clear) ||
			h.SNATFirst != c.Settings.SNATPortFirst || h.SNATLast != c.Settings.SNATPortLast) {
			t.Errorf("on %t: %+v", on, h)
		}
	}
}

// What nodes exchange must not go in clear again because a key is gone, and of two nodes with one
// address the one that was there first is the peer.
func TestHostileWireGuardHosts(t *testing.T) {
	hostile.Record(t, "a node bears the address of another one, to get what nodes send there", hostile.Node, hostile.ControlPlane, hostile.Both)
	for _, six := range []bool{false, true} {
		c := encrypting()
		c.Settings.WireGuard.Hosts = true
		with(c, "control", func(n *model.Node) { n.Created = 1 })
		control := c.Nodes["control"]
		a := control.NodeAddr()
		if six {
			a = control.NodeAddr6()
		}
		for _, name := range []string{"far", "near"} {
			with(c, name, func(n *model.Node) { n.Addrs, n.Created = slices.Clone(control.Addrs), 2 })
		}
		for range 20 { // whatever the order of the nodes
			s := Calc(c)
			if p := peersOf(s, six)[a]; p.Node != "control" || p.Key != control.WireGuard.Of(six) {
				t.Fatalf("IPv6 %t: the peer at %s is %+v", six, a, p)
			}
		}
		c.Local.WireGuard.Known = map[string]model.KnownWireGuard{"control": {UID: control.UID, Keys: control.WireGuard}}
		with(c, "control", func(n *model.Node) { n.WireGuard = model.WireGuardKeys{} })
		if s := Calc(c); !s.Addrs[a].Tunnel {
			t.Errorf("IPv6 %t: without its key the node is reached in clear: %+v", six, s.Addrs[a])
		}
	}
}
