// SPDX-License-Identifier: Apache-2.0

// Package egress renders what leads pods out of the cluster by egress gateways: the choice of a
// gateway for a flow that begins, the packets of an open flow to the node of its gateway, a
// gateway's address as the source on that node, and what drops everything that would leave
// otherwise. It ends flows whose gateway is no longer one of their client's (Flows), so that they
// begin anew. docs/design/nftables.md, "Egress gateways", says what holds for which packet.
package egress

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Maps and chains.
const (
	mapLists    = "egress-lists"    // client . number of a group → the chain of its gateways
	mapPolicies = "egress-policies" // client → the chain of its EgressGatewayPolicy
	mapSources  = "egress-sources"  // number of a gateway of this node → the chain that translates to its address

	leadChain    = "egress-lead"    // what a client begins
	transitChain = "egress-transit" // what begins, and comes from another node's pod by the tunnel
	ledChain     = "egress-led"     // what has a gateway
	backChain    = "egress-back"    // answers to that
	groupChain   = "egress-group"   // makes the packet's priority the number of the group that counts
	openChain    = "egress-open"    // does a flow's gateway still count?
	unledChain   = "egress-unled"   // of a client, and has no gateway
	strayChain   = "egress-stray"   // from another node's pod by the tunnel, and has none
	leaveChain   = "egress-leave"

	policyPrefix = "egress-policy-"
	groupPrefix  = "egress-group-"
	listPrefix   = "egress-list-"
	stayPrefix   = "egress-stay-"
	byPrefix     = "egress-by-"
	fromPrefix   = "egress-from-"

	// Drop drops what would leave the cluster without the gateway that it should have.
	Drop = "no-gateway"
)

// Numbers of groups that have one of their own, in the packet's priority; firstGroup is the least
// of the others.
const (
	annotationGroup = 1
	directGroup     = 2
	firstGroup      = 16
)

// led begins a rule for flows that leave by a gateway.
const led = "ct mark and $led == $led "

// outside are rules that return where the destination is in the cluster.
var outside = []string{"$ip daddr @" + expr.SetRouted + " return", "$ip daddr @" + expr.SetKnown + " return"}

// byList looks up the gateways of the client and the group.
const byList = "meta priority != none $ip saddr . meta priority vmap @" + mapLists

// AdmitOpen takes an open flow's packets that have a gateway out of the chain that it is in, before
// what is handed on to backends of Services; "" where there are no gateways.
func AdmitOpen(s *nodestate.State) string { return where(s, led+"goto "+ledChain) }

// AdmitBack is AdmitOpen for answers alone.
func AdmitBack(s *nodestate.State) string { return where(s, led+"goto "+backChain) }

// AdmitPod ends the chain of what a pod begins.
func AdmitPod(s *nodestate.State) string {
	return where(s, "$ip saddr @"+expr.SetGateways+" goto "+leadChain)
}

// AdmitTransit is for what others begin: that of other nodes' pods gets a gateway of this node.
func AdmitTransit(s *nodestate.State) string {
	return where(s, "iifname $tunnel ct status and dnat == 0 $ip saddr @"+expr.SetRouted+" jump "+transitChain)
}

// Guard begins the chain of what passes the node. It sees every packet, whatever connection
// tracking says of it, so that none leaves but as it should at that moment.
func Guard(s *nodestate.State) []string {
	if !s.Settings.Gateways {
		return nil
	}
	return []string{
		led + "ct direction original jump " + openChain,
		"$ip saddr @" + expr.SetGateways + " jump " + unledChain,
		"iifname $tunnel $ip saddr @" + expr.SetRouted + " jump " + strayChain,
	}
}

// Leave begins the chain that translates sources.
func Leave(s *nodestate.State) string { return where(s, led+"goto "+leaveChain) }

func where(s *nodestate.State, rule string) string {
	if !s.Settings.Gateways {
		return ""
	}
	return rule
}

// Chains makes the chains and sets that are there while pods may leave by gateways. room is the
// size of sets of this node's addresses; clamp are the rules by which an answer tells its client
// what fits into the tunnel.
func Chains(f table.Family, t *table.Table, s *nodestate.State, room uint64, clamp []string) {
	if !s.Settings.Gateways {
		return
	}
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	table.AddSet(f, t, expr.SetGateways, table.Set{Key: "$addr", Size: room})
	table.AddSet(f, t, mapPolicies, table.Set{Key: "$addr", Value: "verdict"})
	table.AddSet(f, t, mapLists, table.Set{Key: "$addr . classid", Value: "verdict"})
	table.AddSet(f, t, mapSources, table.Set{Key: "mark", Value: "verdict"})
	chain(Drop, "drop")
	chain(leadChain, join(
		// A datagram of a flow that nobody has answered is new to connection tracking, too.
		[]string{led + "goto " + ledChain},
		outside,
		[]string{"jump " + groupChain, byList, "meta priority set none"})...)
	chain(transitChain, join(
		[]string{led + "goto " + ledChain, "meta priority != none return"}, // the latter is for a Service
		outside,
		[]string{"jump " + groupChain, byList, "meta priority set none"})...)
	chain(ledChain,
		"ct direction reply goto "+backChain,
		"ct mark and $through != 0 meta mark set ct mark and $goal or $routed accept",
		"meta mark set meta mark and $rest accept")
	// What the client is to send goes through the tunnel: to the gateway's node, or from the
	// client's to this one.
	var answers []string
	for _, rule := range clamp {
		answers = append(answers, "ct original $ip saddr != @"+expr.SetPods+" "+rule, "ct mark and $through != 0 "+rule)
	}
	chain(backChain, append(answers, "meta mark set meta mark and $rest accept")...)
	chain(groupChain, "$ip saddr vmap @"+mapPolicies, "meta priority set "+group(annotationGroup))
	chain(openChain,
		"$ip daddr @"+expr.SetRouted+" goto "+Drop,
		"$ip daddr @"+expr.SetKnown+" goto "+Drop,
		"jump "+groupChain, byList, "goto "+Drop)
	chain(unledChain, join(
		// What has no flow is in no direction.
		[]string{"ct direction reply return", led + "return"},
		outside,
		[]string{"jump " + groupChain, "meta priority " + group(directGroup) + " meta priority set none return", "goto " + Drop})...)
	chain(strayChain, join([]string{"ct direction reply return", led + "return"}, outside, []string{"goto " + Drop})...)
	// A gateway of this node may have gone since the flow got it, in the hook before.
	chain(leaveChain, "ct mark and $through != 0 accept", "ct mark and $mask vmap @"+mapSources, "goto "+Drop)
}

func join(lists ...[]string) (out []string) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// group is a group's number as a packet's priority.
func group(n uint32) string { return expr.PriorityText(uint16(n>>16), uint16(n)) }

// mark is the ct mark of flows that leave by a gateway: through the tunnel to the node of a number,
// or by one of this node, whose number it is.
func mark(number int, through bool) uint32 {
	m := uint32(marks.EgressBits) | uint32(number)<<marks.NodeShift
	if through {
		m |= marks.TunnelBit
	}
	return m
}

// ByChain is the chain that a flow passes when it gets a gateway.
func ByChain(gateway netip.Addr) string { return byPrefix + hex.EncodeToString(gateway.AsSlice()) }

// Chosen reads the gateway from the chains that a packet has passed; invalid = it got none.
func Chosen(chains []string) (gateway netip.Addr) {
	for _, c := range chains {
		if text, ok := strings.CutPrefix(c, byPrefix); ok {
			if b, err := hex.DecodeString(text); err == nil {
				gateway, _ = netip.AddrFromSlice(b)
			}
		}
	}
	return gateway
}

// Translates reports whether a chain gives flows a gateway's address: its last rule alone does so
// whatever else the flow's client has open.
func Translates(chain string) bool { return strings.HasPrefix(chain, fromPrefix) }

// source is the address with which packets leave by a gateway of this node: that with which its own
// would.
func source(f table.Family, s *nodestate.State, gateway netip.Addr) netip.Addr {
	if s.Addrs[gateway].NATOutgoing {
		return f.Node(s)
	}
	return gateway
}

// policyName is the name of a policy's chain.
func policyName(id nodestate.EgressPolicyID) string {
	return fmt.Sprintf("%s%016x", policyPrefix, uint64(id))
}
