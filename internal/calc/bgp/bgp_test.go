// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// racks is a cluster of three nodes on two racks, seen from node a, with BGP by an empty
// BGPConfiguration.
func racks() *model.Cluster {
	c := model.NewCluster()
	for i, name := range []string{"a", "b", "c"} {
		c.Nodes[name] = &model.Node{Name: name, Labels: map[string]string{"rack": []string{"1", "1", "2"}[i]},
			Addrs: []netip.Addr{addr(fmt.Sprintf("192.0.2.%d", i+1)), addr(fmt.Sprintf("2001:db8::%d", i+1))}}
		for _, cidr := range []string{fmt.Sprintf("10.65.%d.0/26", i), fmt.Sprintf("fd00:65::%d00/122", i+1)} {
			c.Blocks[prefix(cidr)] = &model.Block{CIDR: prefix(cidr), Node: name}
		}
	}
	c.Pools["four"] = &model.Pool{Name: "four", CIDR: prefix("10.65.0.0/16"), BlockBits: 26, Workload: true}
	c.Pools["six"] = &model.Pool{Name: "six", CIDR: prefix("fd00:65::/64"), BlockBits: 122, Workload: true}
	c.BGPConfigs["default"] = &model.BGPConfig{Name: "default"}
	c.Local.Node = "a"
	c.Local.HostAddrs = c.Nodes["a"].Addrs
	return c
}

// state is that of a cluster without Services.
func state(c *model.Cluster) *nodestate.BGP {
	return State(cluster.ViewOf(c), slices.Values([]cluster.ServiceAddr(nil)))
}

func peersOf(s *nodestate.BGP) string {
	var out []string
	for _, p := range s.Peers {
		out = append(out, fmt.Sprintf("%s/%d:%d", p.Addr, p.ASN, p.Port))
	}
	return strings.Join(out, " ")
}

func TestNotInUse(t *testing.T) {
	c := racks()
	delete(c.BGPConfigs, "default")
	c.BGPConfigs["node.a"] = &model.BGPConfig{Name: "node.a", ListenPort: 1179}
	if s := state(c); s != nil {
		t.Errorf("BGP is in use: %+v", s)
	}
	c.BGPPeers["tor"] = &model.BGPPeer{Name: "tor", Addr: addr("192.0.2.9"), ASN: 64999}
	if s := state(c); s == nil || s.ListenPort != 1179 {
		t.Errorf("BGP is %+v", s)
	}
	c.Local.Node = "nobody"
	if s := state(c); s != nil {
		t.Errorf("a node that is not known has %+v", s)
	}
}

func TestSessions(t *testing.T) {
	mesh := "192.0.2.2/64512:179 192.0.2.3/64512:179 2001:db8::2/64512:179 2001:db8::3/64512:179"
	for name, c := range map[string]struct {
		change func(*model.Cluster)
		want   string
	}{
		"mesh":              {func(*model.Cluster) {}, mesh},
		"mesh switched off": {func(c *model.Cluster) { c.BGPConfigs["default"].MeshDisabled = true }, ""},
		"numbers and ports": {func(c *model.Cluster) {
			c.BGPConfigs["default"].ASN, c.BGPConfigs["default"].ListenPort = 65000, 1179
			c.Nodes["b"].ASN = 65001
			c.BGPConfigs["node.c"] = &model.BGPConfig{Name: "node.c", ListenPort: 2179}
		}, "192.0.2.2/65001:1179 192.0.2.3/65000:2179 2001:db8::2/65001:1179 2001:db8::3/65000:2179"},
		"a node without IPv6":            {func(c *model.Cluster) { c.Nodes["b"].Addrs = c.Nodes["b"].Addrs[:1] }, "192.0.2.2/64512:179 192.0.2.3/64512:179 2001:db8::3/64512:179"},
		"this node without IPv6":         {func(c *model.Cluster) { c.Nodes["a"].Addrs = c.Nodes["a"].Addrs[:1] }, "192.0.2.2/64512:179 192.0.2.3/64512:179"},
		"reflectors are not in the mesh": {func(c *model.Cluster) { c.Nodes["b"].ClusterID = addr("224.0.0.1") }, "192.0.2.3/64512:179 2001:db8::3/64512:179"},
		"a reflector has no mesh":        {func(c *model.Cluster) { c.Nodes["a"].ClusterID = addr("224.0.0.1") }, ""},
		"a router of all": {func(c *model.Cluster) {
			c.BGPConfigs["default"].MeshDisabled = true
			c.BGPPeers["tor"] = &model.BGPPeer{Name: "tor", Addr: addr("192.0.2.9"), ASN: 64999}
		}, "192.0.2.9/64999:179"},
		"of a rack, of this node, and of others": {func(c *model.Cluster) {
			c.BGPConfigs["default"].MeshDisabled = true
			c.BGPPeers["rack1"] = &model.BGPPeer{Name: "rack1", Addr: addr("192.0.2.9"), ASN: 64999, NodeSelector: "rack == '1'", Port: 1790}
			c.BGPPeers["rack2"] = &model.BGPPeer{Name: "rack2", Addr: addr("192.0.2.10"), ASN: 64999, NodeSelector: "rack == '2'"}
			c.BGPPeers["node"] = &model.BGPPeer{Name: "node", Addr: addr("2001:db8::9"), ASN: 64999, Node: "a"}
			c.BGPPeers["other"] = &model.BGPPeer{Name: "other", Addr: addr("192.0.2.11"), ASN: 64999, Node: "b"}
		}, "192.0.2.9/64999:1790 2001:db8::9/64999:179"},
		"the node itself is no peer": {func(c *model.Cluster) {
			c.BGPConfigs["default"].MeshDisabled = true
			c.BGPPeers["x"] = &model.BGPPeer{Name: "x", Addr: addr("192.0.2.1"), ASN: 64512}
		}, ""},
		"nodes by a selector": {func(c *model.Cluster) {
			c.BGPConfigs["default"].MeshDisabled = true
			c.BGPPeers["x"] = &model.BGPPeer{Name: "x", NodeSelector: "rack == '1'", PeerSelector: "rack == '2'"}
		}, "192.0.2.3/64512:179 2001:db8::3/64512:179"},
		"and back": {func(c *model.Cluster) {
			c.BGPConfigs["default"].MeshDisabled = true
			c.BGPPeers["x"] = &model.BGPPeer{Name: "x", NodeSelector: "rack == '2'", PeerSelector: "rack == '1'"}
		}, "192.0.2.3/64512:179 2001:db8::3/64512:179"},
		"not back": {func(c *model.Cluster) {
			c.BGPConfigs["default"].MeshDisabled = true
			c.BGPPeers["x"] = &model.BGPPeer{Name: "x", NodeSelector: "rack == '2'", PeerSelector: "rack == '1'", Manual: true}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := racks()
			c.change(k)
			if name == "this node without IPv6" { // it is not carried without a pool either
				delete(k.Pools, "six")
			}
			if got := peersOf(state(k)); got != c.want {
				t.Errorf("sessions with\n%s, want\n%s", got, c.want)
			}
		})
	}
}

// BFD is for a peer on a link of the node, where its object asks for it.
func TestBFD(t *testing.T) {
	c := racks()
	c.Local.Subnets = []netip.Prefix{prefix("192.0.2.0/24"), prefix("2001:db8::/64")}
	c.BGPPeers["near"] = &model.BGPPeer{Name: "near", Addr: addr("192.0.2.9"), ASN: 64999, BFD: true}
	c.BGPPeers["near6"] = &model.BGPPeer{Name: "near6", Addr: addr("2001:db8::9"), ASN: 64999, BFD: true}
	c.BGPPeers["far"] = &model.BGPPeer{Name: "far", Addr: addr("198.51.100.9"), ASN: 64999, BFD: true}
	c.BGPPeers["without"] = &model.BGPPeer{Name: "without", Addr: addr("192.0.2.10"), ASN: 64999}
	var got []string
	for _, p := range state(c).Peers {
		if p.BFD {
			got = append(got, p.Name)
		}
	}
	if text := strings.Join(got, " "); text != "near near6" {
		t.Errorf("BFD is with %s", text)
	}
}

// Of the two ends of a session between nodes one begins; an object wins over the mesh.
func TestEnds(t *testing.T) {
	c := racks()
	c.BGPPeers["b"] = &model.BGPPeer{Name: "b", Addr: addr("192.0.2.2"), ASN: 64512, Keepalive: 7, Restart: 30, Password: model.SecretKey{Name: "s", Key: "k"}, TTLHops: 2, LocalASN: 65001, AllowedAS: 3}
	c.BGPConfigs["default"].MeshPassword = model.SecretKey{Name: "mesh", Key: "k"}
	passive := map[string]bool{}
	for _, name := range []string{"a", "b", "c"} {
		c.Local.Node = name
		for _, p := range state(c).Peers {
			passive[name+" "+p.Addr.String()] = p.Passive
		}
	}
	if passive["a 192.0.2.3"] == passive["c 192.0.2.1"] || passive["a 2001:db8::3"] == passive["c 2001:db8::1"] {
		t.Errorf("both ends begin, or none: %v", passive)
	}
	c.Local.Node = "a"
	want := nodestate.BGPPeer{Addr: addr("192.0.2.2"), Name: "b", Port: 179, ASN: 64512, LocalASN: 65001, Source: addr("192.0.2.1"), Password: model.SecretKey{Name: "s", Key: "k"},
		Restart: 30, Keepalive: 7, TTLHops: 2, AllowedAS: 3}
	peers := state(c).Peers
	if peers[0] != want {
		t.Errorf("the session is\n%+v, want\n%+v", peers[0], want)
	}
	if peers[1].Password.Name != "mesh" || peers[1].Restart != defaultRestart || peers[1].Name != "mesh c" {
		t.Errorf("the mesh has %+v", peers[1])
	}
	c.BGPPeers["b"].AnySource = true
	if p := state(c).Peers[0]; p.Source.IsValid() {
		t.Errorf("sourceAddress None has source %s", p.Source)
	}
}

func TestReflectors(t *testing.T) {
	c := racks()
	c.Nodes["a"].ClusterID, c.Nodes["b"].ClusterID = addr("224.0.0.1"), addr("224.0.0.1")
	c.BGPPeers["all"] = &model.BGPPeer{Name: "all", PeerSelector: "all()"}
	c.BGPPeers["tor"] = &model.BGPPeer{Name: "tor", Addr: addr("192.0.2.9"), ASN: 64999}
	got := map[string]bool{}
	for _, p := range state(c).Peers {
		got[p.Addr.String()] = p.ClusterID == addr("224.0.0.1")
	}
	if want := map[string]bool{"192.0.2.2": false, "2001:db8::2": false, "192.0.2.3": true, "2001:db8::3": true, "192.0.2.9": false}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("reflected to %v, want %v", got, want)
	}
}

func TestPrefixes(t *testing.T) {
	has := func(what string, list []netip.Prefix, want ...string) {
		t.Helper()
		var texts []string
		for _, p := range list {
			texts = append(texts, p.String())
		}
		if !slices.Equal(texts, want) {
			t.Errorf("%s %v, want %v", what, texts, want)
		}
	}
	c := racks()
	// A pod that came with its address from a block of another node, and one of this node's.
	c.Local.Endpoints = map[netip.Addr]*model.LocalEndpoint{addr("10.65.1.7"): {}, addr("10.65.0.7"): {}}
	s := state(c)
	has("advertised", s.Advertise, "10.65.0.0/26", "10.65.1.7/32", "fd00:65::100/122")
	has("handed on", s.Pass, "10.65.0.0/16", "fd00:65::/64")
	has("kept", s.Keep, "10.65.0.0/26", "10.65.1.7/32", "192.0.2.1/32", "2001:db8::1/128", "fd00:65::100/122")

	c.Pools["four"].NoBGPExport = true
	c.Pools["six"].VXLAN = model.EncapCrossSubnet
	s = state(c)
	has("advertised", s.Advertise, "fd00:65::100/122")
	has("handed on", s.Pass, "fd00:65::/64")
	has("kept", s.Keep, "10.65.0.0/26", "10.65.1.7/32", "192.0.2.1/32", "2001:db8::1/128", "fd00:65::/64", "fd00:65::100/122")
}

func TestListens(t *testing.T) {
	c := racks()
	c.BGPConfigs["default"].BindMode = "NodeIP"
	if s := state(c); fmt.Sprint(s.ListenAddrs) != "[192.0.2.1 2001:db8::1]" {
		t.Errorf("listens at %v", s.ListenAddrs)
	}
	c.BGPConfigs["node.a"] = &model.BGPConfig{Name: "node.a", BindMode: "None"}
	if s := state(c); s.ListenAddrs != nil {
		t.Errorf("listens at %v", s.ListenAddrs)
	}
	c.Nodes["a"].Addrs = c.Nodes["a"].Addrs[1:]
	if s := state(c); !s.RouterID.Is4() || s.RouterID.IsUnspecified() {
		t.Errorf("a node without IPv4 is router %s", s.RouterID)
	}
}

// TestTunnelsAreLeftAlone: learned routes lead no packet past a tunnel, whichever the data plane
// uses, WireGuard's among them, which encrypts pools without encapsulation, too.
func TestTunnelsAreLeftAlone(t *testing.T) {
	four, six := prefix("10.65.0.0/16"), prefix("fd00:65::/64")
	for _, x := range []struct {
		name      string
		change    func(*model.Cluster)
		four, six bool
	}{
		{"none", func(*model.Cluster) {}, false, false},
		{"VXLAN", func(c *model.Cluster) { c.Pools["six"].VXLAN = model.EncapCrossSubnet }, false, true},
		{"IP in IP", func(c *model.Cluster) { c.Pools["four"].IPIP = model.EncapAlways }, true, false},
		{"no IP in IP", func(c *model.Cluster) { c.Pools["four"].IPIP, c.Settings.IPIP = model.EncapAlways, model.Off }, false, false},
		{"WireGuard", func(c *model.Cluster) { c.Settings.WireGuard.IPv4.Enabled = true }, true, false},
		{"WireGuard of IPv6", func(c *model.Cluster) { c.Settings.WireGuard.IPv6.Enabled = true }, false, true},
	} {
		c := racks()
		x.change(c)
		s := state(c)
		if got := [2]bool{slices.Contains(s.Keep, four), slices.Contains(s.Keep, six)}; got != [2]bool{x.four, x.six} {
			t.Errorf("%s: kept %v", x.name, s.Keep)
		}
	}
}
