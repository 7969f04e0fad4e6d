// SPDX-License-Identifier: Apache-2.0

// Package chains renders the chains and sets that every node has: the base chains in the order in
// which packets meet them, who may send with which address, translation for Services and its static
// chains, handing on and direct server return, source NAT, and the quotas of pods. It puts the
// parts of policy and services together; the package comment of internal/dataplane/nft draws the
// order. Names and texts of rules are what an earlier run left in the kernel: they change only when
// what they do changes.
package chains

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/policy"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// RenderChains makes the chains and sets that every node has; those of the hooks are in
// filter_chains.go. room is of SetSizeFor, at of FindIndexes.
func RenderChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h policy.HostRules, room uint64, at Indexes) {
	filterChains(f, t, s, epoch, h, at)
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	leave := knftables.BaseChainPriority("srcnat")
	if s.Settings.Chained { // before the source NAT of another CNI plugin, in whose place natOutgoing is
		leave = "srcnat-1"
	}
	t.Chains["leave"] = table.Chain{Type: knftables.NATType, Hook: knftables.PostroutingHook, Priority: leave, Rules: expr.Expand(f, s, masqueradeRules(f, s)...)}
	chain(asNodeChain, asNodeRules(f, s, s.Settings.SNATFirst, s.Settings.SNATLast)...)
	outsideChains(f, t, s)
	portShareChains(f, t, s)
	connectionShareChains(f, t, s, at.Connections)
	resolveChains(f, t, s)
	chain("no-endpoint", "meta l4proto tcp reject with tcp reset", "reject with $icmp type $unreachable")
	chain("refused", "meta l4proto tcp reject with tcp reset", "reject with $icmp type port-unreachable")
	serviceChains(f, t, s)
	dsrFallbackChains(f, t, s, at)
	policy.AddSets(f, t, room)

	sets := map[string]table.Set{
		expr.SetWorkloads: {Key: "ifname", Size: room}, expr.MapSenders: {Key: "$addr", Value: "verdict", Size: room}, expr.SetPods: {Key: "$addr", Size: room}, expr.SetOwn: {Key: "$addr", Size: room},
		expr.SetLocal: {Key: "$addr", Size: room}, expr.SetNodes: {Key: "$addr"}, expr.MapNodes: {Key: "$addr", Value: "mark"}, expr.MapLinks: {Key: "ether_addr", Value: "mark"},
		expr.SetPorted: {Key: "$addr"}, expr.SetBlocks: {Key: "$addr", Interval: true}, expr.SetRouted: {Key: "$addr", Interval: true},
		expr.SetKnown: {Key: "$addr"}, expr.MapGrants: {Key: "ifname", Value: "verdict", Size: room}, expr.SetGranted: {Key: "$addr", Interval: true},
		expr.SetPodRanges: {Key: "$addr", Interval: true}, expr.SetOutgoing: {Key: "$addr", Size: room}, expr.SetHairpin: {Key: "$addr . $addr", Size: room}, expr.SetKeepSource: {Key: "$addr"},
	}
	egress.Chains(f, t, s, room, clampRules(f, s))
	sets[expr.MapPortals], sets[expr.MapInside] = table.Set{Key: "$addr", Value: "verdict"}, table.Set{Key: "$addr", Value: "verdict"}
	sets[expr.SetDirect], sets[expr.SetOptOut] = table.Set{Key: "classid"}, table.Set{Key: "$addr", Interval: true}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		table.AddSet(f, t, name, sets[name])
	}
}

// minSetSize is the size of sets of what is on this node, up to half as many pods.
const minSetSize = 4096

// SetSizeFor is the size of sets of what is on this node, at least as it was: the kernel finds an
// element of a set with a size faster. It is twice what they hold, because a transaction that
// replaces all has both. Where it changes the table is made anew, and what packets taught it is
// lost: so it is generous, and never less than it was.
func SetSizeFor(f table.Family, s *nodestate.State, was uint64) uint64 {
	held, interfaces := 0, map[string]bool{} // SetWorkloads has those of either family
	for a, v := range s.Addrs {
		if f.Has(a) { // also those of other nodes, and their pods outside of blocks: MapSenders has them
			held++
		}
		if v.Kind == nodestate.AddrEndpoint {
			interfaces[v.Interface] = true
		}
	}
	room := max(was, minSetSize)
	for room < uint64(2*max(held, len(interfaces))) {
		room *= 2
	}
	return room
}

// asNodeChain gives a flow the node's address, and a port of the range that is for that; an echo's
// identifier plays the port.
const asNodeChain = "as-node"

func asNodeRules(f table.Family, s *nodestate.State, first, last uint16) []string {
	if !f.Node(s).IsValid() {
		return nil
	}
	return asAddrRules(f.Node(s), first, last)
}

// asAddrRules give a flow an address, and a port of a range: of protocols with ports, of echo
// requests, and of all others.
func asAddrRules(a netip.Addr, first, last uint16) []string {
	alone := "snat to " + a.String()
	if last < first || first == 0 {
		return []string{alone}
	}
	to := netip.AddrPortFrom(a, first).String() + "-" + fmt.Sprint(last)
	return []string{"$ports snat to " + to, "$icmp type echo-request snat to " + to, alone}
}

// keepInTunnel gives what leaves by the tunnel the source that it has, so that the source NAT of
// another CNI plugin does not see it: the kernel asks no more chains once a flow has a source.
func keepInTunnel(s *nodestate.State) string {
	if !s.Settings.Chained {
		return ""
	}
	return "oifname $tunnel snat to $ip saddr"
}

// masqueradeRules translate sources. A node without an address of the family translates none.
func masqueradeRules(f table.Family, s *nodestate.State) []string {
	if !f.Node(s).IsValid() {
		return nil
	}
	rules := []string{
		keepInTunnel(s),
		egress.Leave(s),
		"ct status dnat $ip saddr . $ip daddr @" + expr.SetHairpin + " goto " + asNodeChain,
		"$ip saddr @" + expr.SetOutgoing + " $ip daddr != @" + expr.SetRouted + " $ip daddr != @" + expr.SetKeepSource + " goto " + asNodePod,
	}
	if s.Settings.KubeProxy {
		return rules // whose source a Service's flow has is said by who translated it
	}
	return append(rules,
		// A client outside whose backend is on another node, or outside of the cluster: the answers
		// have to come by here.
		"ct status dnat iifname != $pods $ip saddr != @"+expr.SetOwn+" $ip daddr != @"+expr.SetLocal+" goto "+asNodeOutside)
}
