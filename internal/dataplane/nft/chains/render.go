// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net/netip"
	"strconv"

	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/policy"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Render makes the table of a family from a state alone. A node that the state's makers never saw
// before gets the number that marks gives it.
func Render(s *nodestate.State, six bool) *table.Table {
	f := table.Family{Six: six}
	t := table.New(f.NFT())
	epoch, hosts := policy.Render(f, t, s, policy.New())
	RenderChains(f, t, s, epoch, hosts, SetSizeFor(f, s, 0), Indexes{Connections: 1 << 18}) // the kernel's default
	n := marks.NewNumbers()
	RenderElements(f, t, s, n, Indexes{})
	services.New(f, n).Render(t, s)
	return t
}

// RenderElements makes the elements of sets that follow addresses and routes.
func RenderElements(f table.Family, t *table.Table, s *nodestate.State, numbers *marks.Numbers, at Indexes) {
	renderAddrs(f, t, s, numbers, at)
	renderRoutes(f, t, s)
	renderSources(f, t, s)
	renderFloating(f, t, s)
	renderRemote(f, t, s, numbers)
	egress.Render(f, t, s, numbers, func(to netip.Addr) []string { return asGatewayRules(f, s, to) })
}

// renderAddrs makes the elements that follow nodestate.State.Addrs.
func renderAddrs(f table.Family, t *table.Table, s *nodestate.State, numbers *marks.Numbers, at Indexes) {
	numbers.Follow(f, s)
	addWorkloads(t, s)
	through := reachesNodesByTunnel(f, s)
	for a, v := range s.Addrs {
		if !f.Has(a) {
			continue
		}
		t.Add(expr.SetKnown, a.String(), "")
		switch v.Kind {
		case nodestate.AddrHost:
			t.Add(expr.SetOwn, a.String(), "")
			t.Add(expr.MapPortals, a.String(), "goto "+ownChainOutside)
			t.Add(expr.MapInside, a.String(), "goto "+ownChainInside)
			t.Add(expr.SetLocal, a.String(), "")
			t.Add(expr.MapSenders, a.String(), "goto "+OwnSourceChain)
		case nodestate.AddrEndpoint:
			t.Add(expr.SetPods, a.String(), "")
			t.Add(expr.SetLocal, a.String(), "")
			t.Add(expr.SetHairpin, table.Key(a, a), "")
			addSender(f, t, a, v, at)
			if v.NATOutgoing {
				t.Add(expr.SetOutgoing, a.String(), "")
			}
		case nodestate.AddrNode:
			t.Add(expr.SetNodes, a.String(), "")
			n, ok := numbers.Of(v.Node)
			addNode(f, t, a, v, n, ok, through)
			if ok {
				mark := strconv.Itoa(n << marks.NodeShift)
				t.Add(expr.MapNodes, a.String(), mark)
				if v.SameLink && v.MAC != [6]byte{} {
					t.Add(expr.MapLinks, table.MACText(v.MAC), mark)
				}
			}
			if v.KeepSource {
				t.Add(expr.SetKeepSource, a.String(), "")
			}
		}
		if v.Kind == nodestate.AddrPod {
			t.Add(expr.MapSenders, a.String(), "goto "+podSource)
			addRemote(f, t, s, numbers, ofSinglePods, a, v.Node, v.SameLink, v.Tunnel)
		}
		if v.NodePorts {
			t.Add(expr.SetPorted, a.String(), "")
			if v.Kind == nodestate.AddrNode {
				t.Add(expr.MapPortals, a.String(), "goto "+nodeChainOutside)
				t.Add(expr.MapInside, a.String(), "goto "+nodeChainInside)
			}
		}
	}
}

// renderRoutes makes the elements that follow routes: prefixes of pods.
func renderRoutes(f table.Family, t *table.Table, s *nodestate.State) {
	var pods, routed, blocks table.Prefixes
	for p, r := range s.Routes {
		if !f.Has(p.Addr()) {
			continue
		}
		pods.Add(p)
		routed.Add(p)
		if r.Local {
			blocks.Add(p)
		}
	}
	for a, v := range s.Addrs {
		if !f.Has(a) {
			continue
		}
		switch v.Kind {
		case nodestate.AddrEndpoint, nodestate.AddrPod:
			pods.Add(netip.PrefixFrom(a, a.BitLen()))
			routed.Add(netip.PrefixFrom(a, a.BitLen()))
		case nodestate.AddrHost:
			routed.Add(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	optOut := table.DisjointOf(f, s.Settings.DSROptOut)
	for set, of := range map[string]table.Prefixes{expr.SetOptOut: optOut, expr.SetPodRanges: pods, expr.SetRouted: routed, expr.SetBlocks: blocks} {
		for _, p := range of.Disjoint() {
			t.Add(set, table.PrefixText(p), "")
		}
	}
}
