// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// translatePriority comes before that of kube-proxy's rules and of other people's: while both are
// there, what is in our maps is ours, and what is not is theirs.
const translatePriority = "dstnat-1"

// Chains of Services, by who asks and what.
const (
	askedChain       = "asked"       // from outside, for a frontend with an address
	ownChainOutside  = "own-outside" // from outside, for an address of this node
	nodeChainOutside = "node-outside"
	ownChainInside   = "own-inside" // pods and the node's own processes
	nodeChainInside  = "node-inside"
	loopbackChain    = "at-loopback" // the node's own processes, for a loopback address
)

// serviceChains make the chains and sets of Services. Only the first packet of a flow comes by
// translate.
func serviceChains(f table.Family, t *table.Table, s *nodestate.State) {
	const front = "$ip daddr . meta l4proto . th dport"
	const atPort = "meta l4proto . th dport"
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	nat := func(name string, hook knftables.BaseChainHook, rules ...string) {
		t.Chains[name] = table.Chain{Type: knftables.NATType, Hook: hook, Priority: translatePriority, Rules: expr.Expand(f, s, rules...)}
	}
	nat("translate", knftables.PreroutingHook,
		ifFloating(s, "jump "+floatingChain),
		"meta l4proto != { tcp, udp, sctp } return",
		"iifname $pods goto inside",
		"meta mark and $mask != 0 $ip saddr @"+expr.SetLocal+" drop", // see admitRules
		toDSR,
		"meta mark and $routed != 0 return",
		"udp dport $vxlan iifname != $tunnel meta mark and $mask != 0 fib daddr type local return", // see tunnelOuter
		"meta priority set "+front+" map @"+services.MapServicesOutside+" "+toAsked(s),
		"$ip daddr vmap @"+expr.MapPortals)
	nat("translate-own", knftables.OutputHook, expr.OwnSocket+"accept", ifFloating(s, "$ip daddr @"+expr.SetFloating+" goto "+floatChain), "$ports $ip daddr $loopback goto "+loopbackChain, "$ports goto inside")
	// With a loopback address as its source a packet reaches no pod, and what asks there by such a
	// source, which is what a process has that chose none, means a process of the node.
	chain(loopbackChain,
		"$ip saddr $loopback return",
		"meta priority set "+front+" map @"+services.MapLoopback+" goto choose")
	chain("inside",
		"meta priority set "+front+" map @"+services.MapServices+" goto choose",
		"$ip daddr vmap @"+expr.MapInside)
	chain(ownChainInside,
		"meta priority set "+atPort+" map @"+services.MapHostPorts+" goto choose",
		"$ip daddr != @"+expr.SetPorted+" return",
		"meta priority set "+atPort+" map @"+services.MapPorts+" goto choose")
	chain(nodeChainInside,
		atPort+" @"+services.SetPortsLocal+" return",
		"meta priority set "+atPort+" map @"+services.MapPorts+" goto choose")
	// What another node was asked for: one of this node's own backends answers, by way of the node
	// that was addressed, or that handed the packet on.
	own := fmt.Sprintf("meta priority set meta priority and %#x or %#x ", ^uint32(services.LocalList|services.HandList), services.LocalList)
	chain(askedChain,
		// Which of the other nodes it was that sent this, if any.
		"meta mark and $mask == 0 meta mark set ether saddr map @"+expr.MapLinks,
		"meta mark and $mask != 0 "+own,
		"goto choose")
	chain(ownChainOutside,
		"meta priority set "+atPort+" map @"+services.MapHostPorts+" goto choose",
		"$ip daddr != @"+expr.SetPorted+" return",
		"meta priority set "+atPort+" map @"+services.MapPortsOutside+" goto choose")
	chain(nodeChainOutside,
		"meta priority set "+atPort+" map @"+services.MapPorts+" goto "+handedChain)
	if s.Settings.KubeProxy {
		kubeProxyChains(f, chain, front, atPort, own)
	}
	chain(services.RangesChain,
		// nft 1.0.6 turns the bytes of meta l4proto round where a set has intervals, which there is
		// nothing to of one byte; Linux 7 refuses that.
		"$ip daddr . ct original protocol . th dport . $ip saddr != @"+services.SetRanges+" drop",
		fmt.Sprintf("meta priority set meta priority and %#x", ^uint32(services.RestrictedBit)),
		"meta priority vmap @"+services.MapRanged) // not lists, which lead here: the kernel refuses what may go in circles
	chain("choose",
		// A packet in the middle of a connection that nobody knows is no beginning of one.
		fmt.Sprintf("tcp flags & (fin | syn | rst | ack) != syn meta priority and %#x != %#x drop", services.HashList|services.HandList, services.HashList|services.HandList),
		"meta priority vmap @"+services.MapLists)
	handOnChains(f, t, s)
	floatingChains(f, t, s)
	chain("refuse",
		"$ports $ip daddr @"+expr.SetPorted+" "+atPort+" vmap @"+services.MapRefusedPorts,
		"$ports "+front+" vmap @"+services.MapRefused)

	const frontend, portal, backend = "$addr . inet_proto . inet_service", "inet_proto . inet_service", "$addr . inet_service"
	for name, set := range map[string]table.Set{
		services.MapServices: {Key: frontend, Value: "classid"}, services.MapServicesOutside: {Key: frontend, Value: "classid"}, services.MapLoopback: {Key: frontend, Value: "classid"},
		services.MapPorts: {Key: portal, Value: "classid"}, services.MapPortsOutside: {Key: portal, Value: "classid"}, services.MapHostPorts: {Key: portal, Value: "classid"},
		services.SetPortsLocal: {Key: portal}, services.MapLists: {Key: "classid", Value: "verdict"}, services.MapRanged: {Key: "classid", Value: "verdict"},
		services.MapBackends: {Key: "classid . mark", Value: backend}, services.MapSlots: {Key: "classid . mark", Value: "mark"}, services.MapLive: {Key: "classid . mark", Value: backend},
		services.MapRemote:   {Key: "classid . mark", Value: "mark"},
		services.MapAffinity: services.AffinitySet(f),
		services.SetRanges:   {Key: frontend + " . $addr", Interval: true},
		services.MapRefused:  {Key: frontend, Value: "verdict"}, services.MapRefusedPorts: {Key: portal, Value: "verdict"},
	} {
		table.AddSet(f, t, name, set)
	}
}

// Chains of floating addresses: what comes in for one, and translation.
const (
	floatingChain = "floating-in"
	floatChain    = "float"
)

// ifFloating is a rule where there are floating addresses, so that without them no packet pays.
func ifFloating(s *nodestate.State, rule string) string {
	if !s.Settings.Floating {
		return ""
	}
	return rule
}

// floatingChains translate what is for floating addresses, of every protocol: what begins at pods
// and at the node itself, and what comes from outside where the pod is.
func floatingChains(f table.Family, t *table.Table, s *nodestate.State) {
	if !s.Settings.Floating {
		return
	}
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	chain(floatingChain,
		"iifname $pods $ip daddr @"+expr.SetFloating+" goto "+floatChain,
		"iifname $pods return",
		"$ip daddr != @"+expr.SetFloatsHere+" return",
		"meta mark and $mask != 0 $ip saddr @"+expr.SetLocal+" drop", // see admitRules
		"goto "+floatChain)
	chain(floatChain,
		"tcp flags & (fin | syn | rst | ack) != syn drop", // in the middle of a connection that nobody knows
		"dnat to $ip daddr map @"+expr.MapFloating)
	for _, set := range []string{expr.SetFloating, expr.SetFloatsHere} {
		table.AddSet(f, t, set, table.Set{Key: "$addr"})
	}
	table.AddSet(f, t, expr.MapFloating, table.Set{Key: "$addr", Value: "$addr"})
}

// renderFloating makes the elements of floating addresses.
func renderFloating(f table.Family, t *table.Table, s *nodestate.State) {
	if !s.Settings.Floating {
		return
	}
	for a, to := range s.Floating {
		if f.Has(a) {
			t.Add(expr.SetFloating, a.String(), "")
			t.Add(expr.MapFloating, a.String(), to.String())
			if s.FloatingAt(a, true).IsValid() {
				t.Add(expr.SetFloatsHere, a.String(), "")
			}
		}
	}
}
