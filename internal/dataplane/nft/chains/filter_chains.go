// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/policy"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// The chains of hooks that are no translation's are met by every packet. So each lets what belongs
// to an open flow, was evaluated under the policy in force and follows the routes pass first: the
// whole ct mark of such a flow is the policy's number. What comes after is for the others: what
// begins, what nobody knows, what is evaluated again, and what another node handed on or is handed
// on to.
const (
	admitOpenChain  = "admit-open"
	admitBackChain  = "admit-back"
	admitPodChain   = "admit-pod" // what pods begin
	admitNewChain   = "admit-new" // what others begin
	admitTranslated = "admit-translated"
	podTranslated   = "admit-pod-translated"
	podErrorsChain  = "admit-pod-related" // what pods report
	admitHanded     = "admit-handed"      // open, evaluated, and handed on
	handedNewChain  = "admit-handed-new"
	workloadChain   = "from-workload"
	OwnSourceChain  = "own-source"
	SenderPrefix    = "from-pod-" // and the name of a pod's interface: who comes by it
	ForwardedOpen   = "forwarded-open"
	forwardedAny    = "forwarded-any" // where ForwardedOpen does not know the interface
	toPodChain      = "forwarded-pod"
	forwardedOthers = "forwarded-others" // not open and evaluated
	unknownPodChain = "unknown-pod"
	departChain     = "depart" // ends a mark that a packet was routed by
	sentChain       = "sent"
	sentOpen        = "sent-open"
	sentAny         = "sent-any"  // where sentOpen does not know the interface
	sentHomeChain   = "sent-home" // what the node's own processes send to what has no route of its own: Services, and pods that are gone
	sentOthersChain = "sent-others"
	sentNewChain    = "sent-new"
	sentTranslated  = "sent-translated"
	sentOwnChain    = "sent-own" // what the agent's own sockets send
)

// goesOn are the words for a flow that was evaluated under a policy and has no route of its own.
func goesOn(s *nodestate.State, epoch uint16) string {
	mark := fmt.Sprintf("ct mark %#x", epoch)
	if s.Settings.Chained {
		mark = fmt.Sprintf("ct mark and %#x == %#x", ^uint32(marks.PluginBit), epoch)
	}
	return mark + " ct state == established "
}

// unmarked are the words for a packet without a mark of ours.
func unmarked(s *nodestate.State) string {
	if s.Settings.Chained {
		return fmt.Sprintf("meta mark and %#x == 0 ", ^uint32(marks.PluginBit))
	}
	return "meta mark 0 "
}

// answerByRoutes are the words behind which a flow's answers are led by the table main, where
// another CNI plugin's rules would lead them by the pod's address.
func answerByRoutes(s *nodestate.State, which string) string {
	if !s.Settings.Chained {
		return ""
	}
	return which + "ct mark set ct mark or " + marks.Hex(marks.RoutesNumber<<marks.NodeShift)
}

// filterChains are the base chains that are no translation's, and those that belong to them.
func filterChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h policy.HostRules, at Indexes) {
	base := func(name string, typ knftables.BaseChainType, hook knftables.BaseChainHook, prio knftables.BaseChainPriority, rules ...string) {
		t.Chains[name] = table.Chain{Type: typ, Hook: hook, Priority: prio, Rules: expr.Expand(f, s, rules...)}
	}
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	sourceChains(f, t, s, at)
	base("admit", knftables.FilterType, knftables.PreroutingHook, "filter-50", admitRules(f, s, epoch)...)
	admitNewChains(f, t, s)
	chain(admitOpenChain,
		"ct direction reply goto "+admitBackChain,
		egress.AdmitOpen(s),
		routeOnward+" accept",
		"ct status dnat ct mark and $goal != 0 ct original $ip daddr @"+expr.SetNodes+" jump "+handedOpen,
		duringHandshake+"goto "+handshakeChain,
		// The node that is asked may change, but for a node port. Policy evaluates again.
		"ct state established ct status dnat ct mark and $goal != 0 ct original $ip daddr != @"+expr.SetNodes+" jump follow",
		"meta mark set meta mark and $rest")
	chain(admitBackChain, append(append(append([]string{egress.AdmitBack(s)}, handedBack()...), cameRules(f, s)...), duringHandshake+"goto "+admitHandshakeReply, routeBack+" accept", "meta mark set meta mark and $rest")...)
	begun := "$through"
	if s.Settings.Chained {
		begun = marks.Hex(marks.TunnelBit | marks.RoutesNumber<<marks.NodeShift)
	}
	chain("follow",
		"meta mark and $mask == 0 iifname != @"+expr.SetWorkloads+" meta mark set ether saddr map @"+expr.MapLinks,
		"meta mark and $mask == 0 ct mark set ct mark and $rest or "+begun+" return",
		"ct mark set meta mark and $mask")
	forwardedChains(f, t, s, epoch, h, at)
	if f.Six {
		chain(routingHeaderChain, routingHeaderRules()...)
	}
	base("received", knftables.FilterType, knftables.InputHook, "filter", slices.Concat(
		hasRoutingHeader(f), []string{goesOn(s, epoch) + "accept"}, notReceivedRules(f), []string{"ct state new goto " + h.FirstPacketChain(), expr.OwnFlow + "accept", "goto " + policy.MainChain})...)
	sentChains(f, t, s, epoch, h, at)
	chain(departChain,
		"oifname $tunnel "+opening+"rt mtu",
		// The outer packet is routed by the same mark.
		"meta mark set meta mark and $plain")
}

// notReceived drop what the node's processes never get: from outside what is for a loopback
// address, where somebody set route_localnet (of IPv6 the kernel takes none), and from pods what
// is for everybody.
func notReceivedRules(f table.Family) []string {
	if f.Six {
		return []string{
			"iifname $pods ip6 daddr ff00::/8 meta l4proto != icmpv6 drop",
			"iifname $pods ip6 daddr ff00::/8 icmpv6 type != { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, " +
				listeners + " } drop"}
	}
	return []string{`ip daddr 127.0.0.0/8 iifname != "lo" drop`, "iifname $pods fib daddr type != local drop"}
}

// forwardedChains are for what passes the node. Most of it is open and leaves by the uplink or to a
// pod, which their indexes identify faster than their names do.
func forwardedChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h policy.HostRules, at Indexes) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	var rules, open []string
	for _, index := range []int{at.uplink, at.tunnel} {
		if index > 0 {
			open = append(open, fmt.Sprintf("oif %d accept", index))
		}
	}
	if of := onwardInterfaces(f, s, at); of != "" {
		open = append(open, "oif "+of+" accept")
	}
	if p := expr.PodInterfaces(s); p != "" {
		rules = append(rules, "oifname "+p+" goto "+toPodChain)
		chain(toPodChain, "oifname != @"+expr.SetWorkloads+" goto "+unknownPodChain, goesOn(s, epoch)+"accept", "goto "+forwardedOthers)
		chain(unknownPodChain, noEndpoint, "drop")
	}
	rules = append(rules, goesOn(s, epoch)+"oifname != $host accept", toGone("oifname $host "), "goto "+forwardedOthers)
	if len(open) > 0 {
		chain(forwardedAny, rules...)
		chain(ForwardedOpen, append(open, "goto "+forwardedAny)...)
		rules = []string{goesOn(s, epoch) + "goto " + ForwardedOpen, "goto " + forwardedAny}
	}
	rules = append(egress.Guard(s), rules...)
	t.Chains["forwarded"] = table.Chain{Type: knftables.FilterType, Hook: knftables.ForwardHook, Priority: "filter", Rules: expr.Expand(f, s, rules...)}
	// Policy reads no mark, and may end the hook (olderPassChain): so the mark ends first.
	chain(forwardedOthers,
		"meta mark and $routed != 0 jump "+departChain,
		"ct state != new goto "+policy.MainChain,
		asksNeighbour(s),
		noEndpoint,
		"oifname $host jump refuse", // a datagram after the first that nobody answered
		"goto "+h.FirstPacketChain())
}

// sourceChains evaluate who sends, before connection tracking acts on it. One look-up
// distinguishes what has an address of this node, which is most of what pods send, from the rest,
// which is most of what the uplink brings.
func sourceChains(f table.Family, t *table.Table, s *nodestate.State, at Indexes) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	any := []string{"iifname $pods goto " + workloadChain}
	if p := expr.PodInterfaces(s); p != "" && expr.FromPods(s) != p {
		any = append(any, "iifname "+p+" drop")
	}
	any = append(any, "udp dport $vxlan jump tunnel")
	ipip := ipipRules(f, s)
	any = append(any, ipip...)
	if s.NeedsTunnel() || len(ipip) > 0 { // else there is no such device
		// What comes out of the tunnel has the mark of the outer packet: which of the other nodes
		// it was that sent it.
		any = append(any, "iifname $tunnel meta mark and $mask == 0 drop")
	}
	rules := append([]string{"$ip saddr vmap @" + expr.MapSenders}, slices.Concat(fromNobody(f, s), fromPools(f, s), reversePathRules(f, s), ipip)...)
	if at.uplink > 0 {
		rules = append(rules, fmt.Sprintf("iif %d @th,16,16 != $vxlan accept", at.uplink))
	}
	if at.tunnel > 0 && s.NeedsTunnel() {
		rules = append(rules, fmt.Sprintf("iif %d @th,16,16 != $vxlan meta mark and $mask != 0 accept", at.tunnel))
	}
	t.Chains["from-network"] = table.Chain{Type: knftables.FilterType, Hook: knftables.PreroutingHook, Priority: "raw", Rules: expr.Expand(f, s, append(rules, any...)...)}
	chain(workloadChain, workloadRules(f, s)...)
	chain(podTunnelChain, podTunnelRules(f, s)...)
	chain(podLinkChain, "drop")
	chain(OwnSourceChain, append(any,
		`iifname "lo" return`,
		// An answer to what was handed on has an address of this node, which was asked.
		"iifname != $tunnel meta mark set ether saddr map @"+expr.MapLinks,
		// What the node itself sends to many comes back to it by the interface that it left by.
		"meta mark and $mask == 0 fib daddr type != { multicast, broadcast } drop")...)
	remoteChains(f, t, s, at, any)
	ipipChain(f, t, s)
	outer := " meta mark set $ip saddr map @" + expr.MapNodes + " accept"
	chain("tunnel",
		"fib daddr type != local return",
		"@th,96,24 != $vni drop",
		"$ip saddr . ether saddr @"+setNodeLinks+outer,
		"$ip saddr @"+setNodesFar+outer,
		"$ip saddr @"+setNodesBare+outer,
		"drop")
}

// fromNobody drops what pods send with addresses of egress-cni by interfaces that are not known
// yet: their names do not say that they are pods'.
func fromNobody(f table.Family, s *nodestate.State) (rules []string) {
	for _, p := range model.PerNode {
		if s.Settings.Chained && p.Addr().Is6() == f.Six {
			rules = append(rules, "$ip saddr "+table.PrefixText(p)+" drop")
		}
	}
	return rules
}

// addSender lets an address be sent from by a pod's interface alone.
func addSender(f table.Family, t *table.Table, a netip.Addr, v nodestate.Addr, at Indexes) {
	if v.Interface == "" {
		t.Add(expr.MapSenders, a.String(), "goto "+OwnSourceChain)
		return
	}
	var rules []string
	if v.IfIndex > 0 && (!at.named || !expr.PlainName(v.Interface)) {
		rules = append(rules, acceptFrom(f, fmt.Sprintf("iif %d ", v.IfIndex))...)
	}
	if expr.PlainName(v.Interface) {
		rules = append(rules, acceptFrom(f, fmt.Sprintf("iifname %q ", v.Interface))...)
	}
	name := SenderChain(v.Interface)
	t.Chains[name] = table.Chain{Rules: append(rules, "goto "+OwnSourceChain)}
	t.Add(expr.MapSenders, a.String(), "goto "+name)
}

// SenderChain is the chain of a pod's interface.
func SenderChain(name string) string {
	return SenderPrefix + expr.InterfaceID(name)
}

// workloadRules are for what a pod sends and has not its own address as its source, which addSender
// lets pass. Of IPv6 neighbour discovery and reports of multicast listeners pass, which are between
// it and the node alone. A pod's interface that the state does not name has no addresses: nothing
// comes from it.
func workloadRules(f table.Family, s *nodestate.State) []string {
	var rules []string
	if f.Six {
		rules = append(rules, "iifname != @"+expr.SetWorkloads+" drop",
			"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 ip6 saddr fe80::/10 goto "+podDiscoveryChain,
			"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 ip6 saddr :: ip6 daddr { fe80::/10, ff00::/8 } return",
			"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 ip6 daddr @"+expr.SetOwn+" return",
			"icmpv6 type { "+listeners+" } ip6 saddr fe80::/10 return",
			"icmpv6 type mld2-listener-report ip6 saddr :: return")
	}
	if len(s.Sources) > 0 {
		rules = append(rules, "iifname vmap @"+expr.MapGrants)
	}
	return append(rules, "drop")
}

// tunnelOuter begins a rule for the tunnel's own packets: what comes out of it gets their mark.
// What was translated to its port is none.
const tunnelOuter = "udp dport $vxlan iifname != $tunnel meta mark and $mask != 0 ct status and dnat == 0 fib daddr type local "

// admitRules let pass what is open, and lead what is not to its chain.
func admitRules(f table.Family, s *nodestate.State, epoch uint16) []string {
	return []string{
		goesOn(s, epoch) + unmarked(s) + "accept",
		unprovenAnswer,
		fmt.Sprintf("ct mark and %#x == %#x ct state == established goto %s", uint32(marks.HandedBit|marks.EpochMask), marks.HandedBit|uint32(epoch), admitHanded),
		"ct state new iifname $pods goto " + admitPodChain,
		"ct state new goto " + admitNewChain,
		tunnelOuter + "accept",
		ipipOuter(f, s),
		goesOn(s, epoch) + "meta mark set meta mark and $rest accept",
		"ct state related iifname $pods goto " + podErrorsChain,
		"ct state established,related goto " + admitOpenChain,
		// Of another node with an address of ours comes what is known alone.
		"meta mark and $mask != 0 ct state invalid $ip saddr @" + expr.SetLocal + " drop",
		"meta mark and $routed == 0 ct state invalid iifname != $pods " + toDSR,
		"meta mark and $routed != 0 accept", // see dsrChains
		"meta mark set meta mark and $rest"}
}

// admitNewChains end the marks of translation and begin those of routing: which node handed a flow
// on is kept in its ct mark.
func admitNewChains(f table.Family, t *table.Table, s *nodestate.State) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	chain(admitHanded,
		slices.Concat([]string{egress.AdmitOpen(s), "ct direction original meta mark set ct mark and $goal or $routed accept"}, handedBack(), []string{"meta mark set meta mark and $rest"})...)
	chain(admitPodChain,
		"ct status and confirmed == 0 jump "+podBeginsChain, // a datagram of a flow that nobody has answered is new, too
		"meta mark set meta mark and $rest",
		"ct status dnat goto "+podTranslated,
		hasList+"jump refuse",
		egress.AdmitPod(s))
	// An ICMP error is about a flow of the pod's own: it bears the address that the pod has in the
	// flow.
	chain(podErrorsChain,
		"ct original $ip saddr . $ip saddr @"+expr.SetHairpin+" goto "+admitOpenChain,
		"ct reply $ip saddr . $ip saddr @"+expr.SetHairpin+" goto "+admitOpenChain,
		"drop")
	chain(podTranslated,
		hasList+"ct mark set 0x0",
		"meta priority set none",
		egress.AdmitPod(s))
	chain(admitNewChain,
		tunnelOuter+"accept",
		ipipOuter(f, s),
		"meta mark and $mask != 0 $ip saddr @"+expr.SetLocal+" drop", // see admitRules
		egress.AdmitTransit(s),
		"meta mark and $routed == 0 "+toDSR,
		"meta mark and $routed != 0 accept",
		"ct status dnat goto "+admitTranslated,
		"ct mark and $handed != 0 goto "+handedNewChain,
		// What a node sent with its own address through the tunnel is answered through it.
		"iifname $tunnel $ip saddr @"+expr.SetNodes+" ct mark set $ip saddr map @"+expr.MapNodes+" ct mark set ct mark or $through",
		"meta mark set meta mark and $rest",
		hasList+"jump refuse")
	chain(handedNewChain, routeOnward, "meta priority set none")
	chain(admitTranslated,
		// Whom this node would hand on, and somebody else translated, is theirs: it is no flow of
		// another node's.
		"ct mark and $handed != 0 ct mark set 0x0 meta mark set meta mark and $plain meta priority set none",
		// Answers of Services that want it go directly to the client (direct server return).
		"meta mark and $mask != 0 meta priority @"+expr.SetDirect+" $ip saddr != @"+expr.SetOptOut+" jump "+dsrOpenChain,
		// What translate left in the ct mark ends here.
		hasList+"ct mark set meta mark and $goal",
		hasList+"iifname $tunnel ct mark set ct mark or $came",
		answerByRoutes(s, hasList+"ct mark and $mask == 0 "),
		"meta mark set meta mark and $plain",
		"meta priority set none")
}

// asked begins a rule for the first packet of a flow to a frontend, the only one with a list's
// number. Programs may give theirs any.
const hasList = "meta priority != none "

// noEndpoint refuses what begins and goes to an address of this node's blocks that nobody has.
const noEndpoint = "$ip daddr @" + expr.SetBlocks + " $ip daddr != @" + expr.SetKnown + " goto no-endpoint"

// sentChains are for what the node itself sends. Where a rule gives a packet a route, it is routed
// again at the end of the chain.
func sentChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h policy.HostRules, at Indexes) {
	// By which interface a packet leaves is known here by the destination that it had before a
	// Service gave it another one.
	evaluate := policy.MainChain
	begin := h.FirstPacketChain()
	if h.HasEndpoints() {
		evaluate, begin = policy.OwnChain, policy.OwnChain
	}
	open := goesOn(s, epoch) + "ct status and dnat == 0 oifname != $host "
	if p := expr.PodInterfaces(s); p != "" {
		open += "oifname != " + p + " "
	}
	rules := append([]string{open + "accept", ownSent}, toUnknown(s)...)
	rules = append(rules,
		"ct state new goto "+sentNewChain,
		"oifname $host goto "+sentHomeChain,
		goesOn(s, epoch)+"ct status and dnat == 0 accept",
		goesOn(s, epoch)+"ct direction reply accept",
		"goto "+sentOthersChain)
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	if by := sentByIndex(f, s, at); len(by) > 0 {
		chain(sentAny, rules...)
		chain(sentOpen, append(by, "goto "+sentAny)...)
		rules = []string{goesOn(s, epoch) + "goto " + sentOpen, "goto " + sentAny}
	}
	t.Chains[sentChain] = table.Chain{Type: knftables.RouteType, Hook: knftables.OutputHook, Priority: "filter", Rules: expr.Expand(f, s, rules...)}
	chain(sentOwnChain, sentOwn...)
	chain(sentHomeChain, toGone(""), goesOn(s, epoch)+"accept", "goto "+sentOthersChain)
	chain(sentNewChain,
		"ct mark set 0",
		"ct status dnat goto "+sentTranslated,
		hasList+"jump refuse",
		"oifname $host jump refuse", // see forwardedOthers
		noEndpoint,
		"goto "+begin)
	chain(sentTranslated,
		"meta priority set none",
		noEndpoint,
		"goto "+begin)
	others := []string{toGone("oifname != $host ct direction original ct status dnat ")}
	if !f.Six {
		// What is handed on leaves by the link that it came by. The kernel would direct the client
		// to ask the other node in our place.
		others = append(others, "icmp type redirect drop")
	}
	for _, rule := range append(cameRules(f, s), duringHandshake+"goto "+sentHandshakeChain, routeBack) {
		others = append(others, "ct direction reply "+rule)
	}
	chain(sentOthersChain, append(others, "jump "+evaluate)...)
	chain(sentHandshakeChain, "jump "+handshakeReplyChain, "jump "+evaluate)
	// The packet was routed again, and by which interface it leaves now is not known.
	t.Chains["sent-on"] = table.Chain{Type: knftables.FilterType, Hook: knftables.OutputHook, Priority: "filter+1", Rules: expr.Expand(f, s,
		"meta mark and $routed == 0 accept",
		opening+"rt mtu",
		"meta mark set meta mark and $plain")}
}

// sentByIndex are the rules for open flows of the node's own processes by interfaces that indexes
// identify.
func sentByIndex(f table.Family, s *nodestate.State, at Indexes) []string {
	var rules []string
	for _, index := range []int{at.uplink, at.tunnel} {
		if index > 0 {
			rules = append(rules, fmt.Sprintf("oif %d ct status and dnat == 0 accept", index))
		}
	}
	if at.host > 0 {
		rules = append(rules, fmt.Sprintf("oif %d goto %s", at.host, sentHomeChain))
	}
	if of := onwardInterfaces(f, s, at); of != "" {
		rules = append(rules, "oif "+of+" ct status and dnat == 0 accept")
	}
	return rules
}

// toUnknown drops what would go to a pod's interface that the state does not name.
func toUnknown(s *nodestate.State) []string {
	if p := expr.PodInterfaces(s); p != "" {
		return []string{"oifname " + p + " oifname != @" + expr.SetWorkloads + " drop"}
	}
	return nil
}

// toGone refuses what belongs to an open flow whose pod is gone. What goes to addresses of pods
// that no route leads to goes to weir0.
func toGone(which string) string {
	return which + "ct state established $ip daddr @" + expr.SetBlocks + " $ip daddr != @" + expr.SetKnown + " goto no-endpoint"
}

// routeBack gives an answer the route to the node that handed its flow on.
const routeBack = "ct mark and $handed == 0 ct mark and $mask != 0 meta mark set ct mark and $goal or $routed"

// routeOnward leads what this node hands on, in the first direction, to the node of the backend.
const routeOnward = "ct mark and $handed != 0 meta mark set ct mark and $goal or $routed"

// opening begins a rule that says what fits into the tunnel, so that both ends of a connection
// learn it. The option is the first, as all send it: at an odd place the kernel would write a wrong
// checksum.
const opening = "@th,160,8 2 tcp flags & (syn | rst) == syn tcp option maxseg size set "

// cameRules are for what answers a flow that came through the tunnel: the client learns what fits
// there, too.
func cameRules(f table.Family, s *nodestate.State) []string {
	mtu := s.Settings.Tunnel.MTU
	if !f.Six && s.Settings.IPIP.HandOn {
		mtu = s.Settings.IPIP.MTU
	}
	return clamped("ct mark and $came != 0 ", f, mtu)
}

// clampRules are those for what answers a client of an egress gateway.
func clampRules(f table.Family, s *nodestate.State) []string {
	return clamped("", f, s.Settings.Tunnel.MTU)
}

func clamped(which string, f table.Family, mtu int) []string {
	if segment := mtu - tcpHeaders(f); segment > 0 {
		return []string{which + opening + fmt.Sprint(segment)}
	}
	return nil
}

// tcpHeaders are the bytes of IP and TCP, and those that the tunnel's header is longer by than one
// of IPv4.
func tcpHeaders(f table.Family) int {
	if f.Six {
		return 20 + 60
	}
	return 40
}

// ownSent takes what such a socket sends out of the chain that it is in.
var ownSent = expr.OwnSocket + "goto " + sentOwnChain

// sentOwn lets it pass. What the node sends to itself keeps its mark on the return path in, where
// the same bits name the node whose tunnel a packet came by: it would be taken for a packet of
// another node with this node's source, and be dropped. It goes on without the mark.
var sentOwn = []string{
	fmt.Sprintf("ct mark set %#x", marks.AgentEpoch),
	"oifname lo meta mark set meta mark and " + marks.Hex(^uint32(kernel.OwnMask)),
	"accept",
}
