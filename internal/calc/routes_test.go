// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
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
