// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
)

// deviceWish is what of a state our devices and their routes are made from.
type deviceWish struct {
	made   bool
	tunnel nodestate.Tunnel
	needed bool // the tunnel
	node   netip.Addr
	six    bool
	node6  netip.Addr
	routes map[netip.Prefix]int
}

func wish(s *nodestate.State) deviceWish {
	return deviceWish{made: true, tunnel: s.Settings.Tunnel, needed: s.NeedsTunnel(), node: s.Settings.Node,
		six: s.Settings.IPv6, node6: s.Settings.Node6, routes: s.Settings.PoolRoutes}
}

func (w deviceWish) equal(o deviceWish) bool {
	return w.made == o.made && w.tunnel == o.tunnel && w.needed == o.needed && w.node == o.node &&
		w.six == o.six && w.node6 == o.node6 && maps.Equal(w.routes, o.routes)
}
