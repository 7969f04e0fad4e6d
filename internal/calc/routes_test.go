// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestMTUs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		mode                model.EncapMode
		disabled            bool
		vxlanMTU, link      int
		pods, pool, tunnels int
	}{
		{"never", model.EncapNever, false, 0, 1500, 1500, 1500, 1450},
		{"not said", "", false, 0, 1500, 1500, 1500, 1450},
		{"always", model.EncapAlways, false, 0, 1500, 1450, 1450, 1450},
		{"cross subnet", model.EncapCrossSubnet, false, 0, 9001, 8951, 8951, 8951},
		{"disabled pool", model.EncapAlways, true, 0, 1500, 1500, 1450, 1450},
		{"set by hand", model.EncapAlways, false, 1400, 1500, 1400, 1400, 1400},
		{"link not known", model.EncapAlways, false, 0, 0, 0, 0, 0},
	} {
		c := base()
		c.Local.LinkMTU, c.Settings.VXLANMTU = tt.link, tt.vxlanMTU
		p := *c.Pools["main"]
		p.VXLAN, p.Disabled = tt.mode, tt.disabled
		c.Pools["main"] = &p
		services := prefix("10.96.0.0/16")
		c.ServiceCIDRs = []netip.Prefix{services, prefix("fd01::/112")}
		s := Calc(c).Settings
		if s.PoolRoutes[services] != tt.pods || len(s.PoolRoutes) != 2 {
			t.Errorf("%s: routes %v, want the services' by the MTU of pods", tt.name, s.PoolRoutes)
		}
		if s.PodMTU != tt.pods || s.PoolRoutes[p.CIDR] != tt.pool || s.Tunnel.MTU != tt.tunnels {
			t.Errorf("%s: pods %d, pool %d, tunnel %d; want %d, %d, %d", tt.name, s.PodMTU, s.PoolRoutes[p.CIDR], s.Tunnel.MTU,
				tt.pods, tt.pool, tt.tunnels)
		}
	}
}

// TestLearned: what goes to pods behind a router as it is follows learned routes while BGP is in
// use; what goes by a tunnel, or to a node on the link, does not.
func TestLearned(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		bgp         bool
		mode        model.EncapMode
		far, single bool // a block behind the router, a pod outside of its node's blocks
	}{
		{"without BGP", false, model.EncapNever, false, false},
		{"with BGP", true, model.EncapNever, true, true},
		{"through a tunnel", true, model.EncapCrossSubnet, false, false},
	} {
		c := base()
		p := *c.Pools["main"]
		p.VXLAN = tt.mode
		c.Pools["main"] = &p
		run(c, "default", "fixed", "far", "10.244.200.9", nil)
		editPod(c, model.Name{Namespace: "default", Name: "fixed"}, func(p *model.Pod) { p.Asked = p.Addrs })
		c.Reservations = []netip.Prefix{prefix("10.244.200.9/32")}
		k := New()
		k.Update(c, model.AllDirty())
		if tt.bgp {
			c.BGPPeers["router"] = &model.BGPPeer{Name: "router", Addr: addr("172.31.1.1"), ASN: 64999}
		}
		s, _ := k.Update(c, func() (d model.Dirty) { d.Add(model.KindBGP); return }())
		if got := s.Routes[prefix("10.244.2.0/26")].Learned; got != tt.far {
			t.Errorf("%s: behind a router %v, want %v", tt.name, got, tt.far)
		}
		if s.Routes[prefix("10.244.0.0/26")].Learned || s.Routes[prefix("10.244.1.0/26")].Learned {
			t.Errorf("%s: a block on the link, or the node's own, is learned", tt.name)
		}
		if got := s.Addrs[addr("10.244.200.9")]; got.Kind != nodestate.AddrPod || got.Learned != tt.single {
			t.Errorf("%s: a pod outside of blocks is %+v, want %v", tt.name, got, tt.single)
		}
	}
}
