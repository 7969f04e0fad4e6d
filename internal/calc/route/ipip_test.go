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
