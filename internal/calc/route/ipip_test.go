// SPDX-License-Identifier: Apache-2.0

package route

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestIPIPSettings: a pool makes nodes take IP in IP, ipipEnabled overrides that, and nodes hand on
// by it while no pool of IPv4 uses VXLAN.
func TestIPIPSettings(t *testing.T) {
	t.Parallel()
	ipip := &model.Pool{Name: "a", CIDR: netip.MustParsePrefix("10.0.0.0/16"), IPIP: model.EncapCrossSubnet}
	vxlan := &model.Pool{Name: "b", CIDR: netip.MustParsePrefix("10.1.0.0/16"), VXLAN: model.EncapAlways}
	vxlan6 := &model.Pool{Name: "c", CIDR: netip.MustParsePrefix("fd00::/64"), VXLAN: model.EncapAlways}
	for _, c := range []struct {
		name  string
		pools []*model.Pool
		on    model.Toggle
		mtu   int
		want  nodestate.IPIP
	}{
		{"no pool asks", []*model.Pool{vxlan}, model.Unset, 0, nodestate.IPIP{}},
		{"before a pool asks", []*model.Pool{vxlan}, model.On, 0, nodestate.IPIP{Accept: true, MTU: 1480}},
		{"a pool asks", []*model.Pool{ipip}, model.Unset, 0, nodestate.IPIP{Accept: true, HandOn: true, MTU: 1480}},
		{"VXLAN of IPv6", []*model.Pool{ipip, vxlan6}, model.Unset, 1400, nodestate.IPIP{Accept: true, HandOn: true, MTU: 1400}},
		{"both", []*model.Pool{ipip, vxlan}, model.Unset, 0, nodestate.IPIP{Accept: true, MTU: 1480}},
		{"switched off", []*model.Pool{ipip}, model.Off, 0, nodestate.IPIP{}},
	} {
		m := model.NewCluster()
		m.Local.LinkMTU = 1500
		m.Settings.IPIP, m.Settings.IPIPMTU = c.on, c.mtu
		for _, p := range c.pools {
			m.Pools[p.Name] = p
		}
		v := cluster.ViewOf(m)
		if got := ipipSettings(v); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if off := c.on == model.Off; tunnelled(v, ipip, false) == off || tunnelled(v, ipip, true) {
			t.Errorf("%s: a pool of CrossSubnet is tunnelled on the link, or not across subnets", c.name)
		}
	}
}

// TestIPIPReplaced: a node that published that it cannot take IP in IP gets VXLAN in its place, and
// others go on to get IP in IP; nodes that are handed on to are told apart, too, and a pod has the
// smaller MTU of both tunnels.
func TestIPIPReplaced(t *testing.T) {
	t.Parallel()
	m := model.NewCluster()
	m.Local.LinkMTU, m.Local.Node = 1500, "own"
	pool := &model.Pool{Name: "a", CIDR: netip.MustParsePrefix("10.0.0.0/16"), IPIP: model.EncapAlways, Workload: true}
	m.Pools["a"] = pool
	blocks := map[string]netip.Prefix{}
	for i, name := range []string{"own", "takes", "lacks"} {
		m.Nodes[name] = &model.Node{Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, NoIPIP: name == "lacks"}
		blocks[name] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 26)
		m.Blocks[blocks[name]] = &model.Block{CIDR: blocks[name], Node: name}
	}
	view := func() *cluster.View {
		v := cluster.ViewOf(m)
		v.Covered = cluster.CoveredBy(v)
		return v
	}
	v := view()
	routes, addrs := Routes(v), Addrs(v, nil, nil)
	if r := routes[blocks["takes"]]; !r.Tunnel || !r.IPIP {
		t.Errorf("the route to a node that takes IP in IP: %+v", r)
	}
	if r := routes[blocks["lacks"]]; !r.Tunnel || r.IPIP {
		t.Errorf("the route to a node that does not: %+v", r)
	}
	if addrs[m.Nodes["takes"].Addrs[0]].NoIPIP || !addrs[m.Nodes["lacks"].Addrs[0]].NoIPIP {
		t.Errorf("nodes: %+v", addrs)
	}
	if s := Settings(v); s.IPIP != (nodestate.IPIP{Accept: true, HandOn: true, MTU: 1450}) || s.PodMTU != 1450 {
		t.Errorf("settings %+v, pods' MTU %d", s.IPIP, s.PodMTU)
	}
	m.Nodes["lacks"].NoIPIP = false
	if s := Settings(view()); s.IPIP.MTU != 1480 || s.PodMTU != 1480 {
		t.Errorf("without such a node: %+v, pods' MTU %d", s.IPIP, s.PodMTU)
	}
}
