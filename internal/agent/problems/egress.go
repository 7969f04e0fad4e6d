// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"fmt"
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/nodestate"
)

// maxEgress bounds the names in a status, each list.
const maxEgress = 100

// EgressGateways is what a node's state says of egress gateways; nil where they are not in force.
func EgressGateways(s *nodestate.State) *weirv1.EgressGatewaysStatus {
	if s == nil || !s.Settings.Gateways {
		return nil
	}
	out := &weirv1.EgressGatewaysStatus{}
	clients := map[netip.Addr]int{}
	for _, list := range s.Gateways {
		for _, g := range list {
			clients[g]++
		}
	}
	for a, v := range s.Addrs {
		if v.Kind != nodestate.AddrEndpoint {
			continue
		}
		if n := clients[a]; n > 0 {
			out.Gateways = append(out.Gateways, fmt.Sprintf("%s %s, for %d addresses of pods", v.Owner, a, n))
		}
		if !v.Gateways {
			continue
		}
		out.Clients++
		if len(s.Gateways[a]) == 0 {
			out.Without = append(out.Without, fmt.Sprintf("%s %s", v.Owner, a))
		}
	}
	for a, down := range s.Probed {
		if down {
			out.Down = append(out.Down, a.String())
		}
	}
	for _, list := range []*[]string{&out.Gateways, &out.Without, &out.Down} {
		slices.Sort(*list)
		*list = (*list)[:min(len(*list), maxEgress)]
	}
	return out
}

// leadsNone reports whether a state asks a node without egress gateways to lead pods out by them.
func leadsNone(s *nodestate.State) bool {
	if e := EgressGateways(s); e != nil {
		return e.Clients > 0 || len(e.Gateways) > 0
	}
	return false
}
