// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// floatingFlows are the flows to floating addresses that lead to other pods than now, which begin
// anew as those of Services do: all but TCP.
type floatingFlows struct {
	now     map[netip.Addr]netip.Addr
	left    map[netip.Addr]map[netip.Addr]bool // floating addresses that nobody has: to whom they led
	changed bool                               // since flows were ended last
}

func (v *floatingFlows) follow(s *nodestate.State) {
	if maps.Equal(v.now, s.Floating) {
		return
	}
	if v.left == nil {
		v.left = map[netip.Addr]map[netip.Addr]bool{}
	}
	for a, to := range v.now {
		if s.Floating[a] != to {
			if v.left[a] == nil {
				v.left[a] = map[netip.Addr]bool{}
			}
			v.left[a][to] = true
		}
	}
	v.now, v.changed = s.Floating, true
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (v *floatingFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if model.Protocol(f.Forward.Protocol) == model.ProtocolTCP {
		return false
	}
	asked, got := addrPort(f.Forward.DstIP, 0).Addr(), addrPort(f.Reverse.SrcIP, 0).Addr()
	if asked == got {
		return false // not translated
	}
	to, floats := v.now[asked]
	return floats && to != got || v.left[asked][got]
}
