// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// looks is how often connection tracking is read after a change: what a packet began that was
// inside of a chain while the change took effect is found by the second one.
const looks = 2

// Flows ends flows of clients that leave otherwise than they would have to now. The rules drop
// their packets (Guard); without an entry of connection tracking they begin anew.
type Flows struct {
	f     table.Family
	sum   uint64 // of what was rendered last
	begun bool
	left  int // looks

	state  *nodestate.State
	nodes  *marks.Numbers
	inside table.ValuedPrefixes
}

// NewFlows are those of a family.
func NewFlows(f table.Family) *Flows { return &Flows{f: f} }

// Follow takes what was rendered of a state, which is to be written before End.
func (w *Flows) Follow(t *table.Table, s *nodestate.State, nodes *marks.Numbers) {
	var sum uint64 // in any order
	for name, c := range t.Chains {
		if strings.HasPrefix(name, listPrefix) || strings.HasPrefix(name, policyPrefix) || strings.HasPrefix(name, byPrefix) {
			sum += table.Hash(append([]string{name}, c.Rules...)...)
		}
	}
	for _, set := range []string{mapLists, mapPolicies, expr.SetGateways, expr.SetRouted, expr.SetNodes} {
		if !s.Settings.Gateways {
			break
		}
		for k, v := range t.Elements[set] {
			sum += table.Hash(set, k, v)
		}
	}
	if w.begun && sum == w.sum {
		w.state, w.nodes = s, nodes
		return
	}
	w.begun, w.sum, w.left, w.state, w.nodes = true, sum, looks, s, nodes
	var all table.Prefixes
	for p := range s.Routes {
		if w.f.Has(p.Addr()) {
			all.Add(p)
		}
	}
	w.inside = nil
	for _, p := range all.Disjoint() {
		w.inside = append(w.inside, table.ValuedPrefix{Prefix: p, Value: "inside"})
	}
}

// End deletes the entries of flows that are to end. What fails is tried again.
func (w *Flows) End() error {
	if w.left == 0 || w.state == nil {
		return nil
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(w.f.Number()), w); err != nil {
		return fmt.Errorf("ending flows whose egress gateway is another one now: %w", err)
	}
	w.left--
	return nil
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter: is the flow to end?
func (w *Flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	client, to, back := addr(flow.Forward.SrcIP), addr(flow.Reverse.SrcIP), addr(flow.Reverse.DstIP)
	isLed := flow.Mark&marks.EgressBits == marks.EgressBits
	s := w.state
	if !s.Settings.Gateways {
		return isLed
	}
	if !isLed {
		return w.outside(to) && s.MustLeaveByGateway(client, to)
	}
	if !w.outside(to) {
		return true
	}
	return !slices.ContainsFunc(s.GatewaysOf(client, to), func(g netip.Addr) bool {
		if s.Addrs[g].Kind == nodestate.AddrEndpoint {
			return flow.Mark&marks.TunnelBit == 0 && back == source(w.f, s, g)
		}
		number, ok := w.nodes.Of(s.HomeOf(g))
		return ok && flow.Mark&^uint32(marks.EpochMask) == mark(number, true)
	})
}

func (w *Flows) outside(a netip.Addr) bool {
	_, known := w.state.Addrs[a]
	return !known && !w.inside.Holds(a, "")
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
