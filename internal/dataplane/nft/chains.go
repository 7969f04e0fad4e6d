package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
)

// Names of sets and maps that more than one file speaks of.
const (
	setWorkloads  = "workloads"     // pods' interfaces
	setEndpoints  = "endpoints"     // interface . address of each pod
	setPods       = "pods"          // addresses of this node's pods
	setOwn        = "own"           // the node's own addresses
	setLocal      = "local-sources" // own and pods: nobody else's sources
	setNodes      = "nodes"         // other nodes' addresses
	mapNodes      = "node-marks"    // other nodes' addresses → their mark
	mapLinks      = "link-marks"    // other nodes' MAC addresses → their mark
	setPorted     = "node-port-addresses"
	setBlocks     = "local-blocks" // where only endpoints of this node live
	setKnown      = "known"        // addresses that somebody has, here or elsewhere
	setRouted     = "cluster"      // prefixes of pods, and the node's own addresses: what is not masqueraded
	setPodRanges  = "pod-ranges"   // prefixes of pods
	setOutgoing   = "nat-outgoing" // pods whose source is translated when they leave the cluster
	setHairpin    = "hairpin"      // address . address of each pod
	setKeepSource = "keep-source"  // nodes' addresses that pods reach with their own
	setDirect     = "direct"       // lists whose answers to outside clients go straight to them
	setOptOut     = "never-direct" // clients to whom they do not
)

// nodeMask are the bits of marks that hold the number of a node; lowest is where it begins.
const (
	nodeMask  = 0x1fff0000
	nodeShift = 16
	maxNodes  = nodeMask >> nodeShift
)

// words are what of a rule depends on the family.
type words struct {
	ip          string // "ip", "ip6"
	addr        string // type
	icmp        string // of reject
	unreachable string // host
}

func (f family) words() words {
	if f.six {
		return words{ip: "ip6", addr: "ipv6_addr", icmp: "icmpv6", unreachable: "addr-unreachable"}
	}
	return words{ip: "ip", addr: "ipv4_addr", icmp: "icmp", unreachable: "host-unreachable"}
}

// rules writes the words of the family and of the state into rules.
func (f family) rules(s *nodestate.State, lines ...string) []string {
	w := f.words()
	r := strings.NewReplacer("$ip", w.ip, "$icmp", w.icmp, "$unreachable", w.unreachable,
		"$ports", "meta l4proto { tcp, udp, sctp }",
		"$node", f.node(s).String(),
		"$mask", hex(nodeMask), "$rest", hex(^uint32(nodeMask)),
		"$tunnel", tunnelDevice, "$host", hostDevice, "$way", hex(wayBit), "$through", hex(throughBit), "$handed", hex(handedBit), "$came", hex(cameBit),
		"$goal", hex(nodeMask|throughBit), "$plain", hex(^uint32(wayMarked)),
		"$vxlan", fmt.Sprint(s.Settings.Tunnel.Port), "$vni", fmt.Sprint(s.Settings.Tunnel.VNI))
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		out = append(out, r.Replace(l))
	}
	return out
}

func hex(bits uint32) string { return fmt.Sprintf("%#x", bits) }

// renderChains makes the chains and sets that every node has.
func (f family) renderChains(t *Table, s *nodestate.State) {
	base := func(name string, typ knftables.BaseChainType, hook knftables.BaseChainHook, prio knftables.BaseChainPriority, rules ...string) {
		t.Chains[name] = Chain{Type: typ, Hook: hook, Priority: prio, Rules: f.rules(s, rules...)}
	}
	chain := func(name string, rules ...string) { t.Chains[name] = Chain{Rules: f.rules(s, rules...)} }

	// A pod's interface that the state does not name has no addresses and no policy: nothing from it, nothing to it.
	var fromUnknown []string
	if p := podInterfaces(s); p != "" {
		fromUnknown = []string{"iifname " + p + " drop"}
	}
	base("from-network", knftables.FilterType, knftables.PreroutingHook, "raw", slices.Concat([]string{
		"iifname @" + setWorkloads + " goto from-workload"}, fromUnknown, []string{
		// Which of the other nodes it was that sent this. What comes out of the tunnel has the mark of the outer packet.
		"iifname $tunnel meta mark and $mask == 0 drop",
		"iifname != $tunnel meta mark set ether saddr map @" + mapLinks,
		"udp dport $vxlan jump tunnel",
		"iifname != \"lo\" meta mark and $mask == 0 $ip saddr @" + setLocal +
			// What the node itself sends to many comes back to it by the interface that it left by.
			" fib daddr type != { multicast, broadcast } drop"})...)
	chain("from-workload", f.workloadRules()...)
	chain("tunnel",
		"fib daddr type != local return",
		"@th,96,24 != $vni drop",
		"meta mark set $ip saddr map @"+mapNodes+" accept",
		"drop")
	base("leave", knftables.NATType, knftables.PostroutingHook, "srcnat", f.masqueradeRules(s)...)
	chain(asNodeChain, f.asNodeRules(s)...)
	base("admit", knftables.FilterType, knftables.PreroutingHook, "filter-50", append(f.wayRules(),
		"ct state new ct status and dnat == 0 jump refuse",
		"ct state new ct status and dnat != 0 meta priority set none", // the number of the list
		"ct state new ct mark and $handed != 0 meta priority set none",
		"ct state new $ip daddr @"+setBlocks+" $ip daddr != @"+setKnown+" goto no-endpoint")...)
	base("answer-own", knftables.RouteType, knftables.OutputHook, "mangle", wayBack)
	base("depart", knftables.FilterType, knftables.PostroutingHook, "mangle", f.departRules(s)...)
	base("admit-own", knftables.FilterType, knftables.OutputHook, "filter-50",
		"ct state new ct mark set 0",
		"ct state new ct status and dnat == 0 jump refuse",
		"ct state new ct status and dnat != 0 meta priority set none", // the number of the list
		"ct state new $ip daddr @"+setBlocks+" $ip daddr != @"+setKnown+" goto no-endpoint")
	chain("follow",
		"meta mark and $mask == 0 ct mark set ct mark and $rest return",
		"ct mark set meta mark and $mask")
	chain("no-endpoint", "meta l4proto tcp reject with tcp reset", "reject with $icmp type $unreachable")
	chain("refused", "meta l4proto tcp reject with tcp reset", "reject with $icmp type port-unreachable")
	base("forwarded", knftables.FilterType, knftables.ForwardHook, "filter", append(slices.Concat(toUnknown(s), toGone("oifname $host")), "jump "+policyChain)...)
	base("received", knftables.FilterType, knftables.InputHook, "filter", "jump "+policyChain)
	base("sent", knftables.FilterType, knftables.OutputHook, "filter", append(f.sentRules(s), "jump "+policyChain)...)
	f.serviceChains(t, s)
	f.policySets(t)

	sets := map[string]Set{
		setWorkloads: {Key: "ifname"}, setEndpoints: {Key: "ifname . $addr"}, setPods: {Key: "$addr"}, setOwn: {Key: "$addr"},
		setLocal: {Key: "$addr"}, setNodes: {Key: "$addr"}, mapNodes: {Key: "$addr", Value: "mark"}, mapLinks: {Key: "ether_addr", Value: "mark"},
		setPorted: {Key: "$addr"}, setBlocks: {Key: "$addr", Interval: true}, setRouted: {Key: "$addr", Interval: true},
		setKnown:     {Key: "$addr"},
		setPodRanges: {Key: "$addr", Interval: true}, setOutgoing: {Key: "$addr"}, setHairpin: {Key: "$addr . $addr"}, setKeepSource: {Key: "$addr"},
	}
	sets[setDirect], sets[setOptOut] = Set{Key: "classid"}, Set{Key: "$addr", Interval: true}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		f.set(t, name, sets[name])
	}
}

// toUnknown drops what would go to a pod's interface that the state does not name.
func toUnknown(s *nodestate.State) []string {
	if p := podInterfaces(s); p != "" {
		return []string{"oifname " + p + " oifname != @" + setWorkloads + " drop"}
	}
	return nil
}

// toGone refuses what belongs to an open flow whose pod is gone. What goes to addresses of pods that no route leads to goes to weir0.
func toGone(which string) []string {
	return []string{which + " ct state established $ip daddr @" + setBlocks + " $ip daddr != @" + setKnown + " goto no-endpoint"}
}

// sentRules are for what the node itself sends, before it is judged.
func (f family) sentRules(s *nodestate.State) []string {
	// By which interface a packet leaves is told here by the destination that it had before a Service gave it another one.
	rules := slices.Concat(toUnknown(s), toGone("oifname $host"), toGone("oifname != $host ct direction original ct status dnat"))
	if f.six {
		return rules
	}
	// What is handed on leaves by the link that it came by. The kernel would tell the client to ask the other node in our place.
	return append(rules, "icmp type redirect drop")
}

// wayBack gives an answer the way to the node that handed its flow on.
const wayBack = "ct direction reply ct mark and $handed == 0 ct mark and $mask != 0 meta mark set ct mark and $goal or $way"

// wayOn leads what this node hands on to the node of the backend.
const wayOn = "ct direction original ct mark and $handed != 0 meta mark set ct mark and $goal or $way"

// departRules are the last for a packet with a mark of ours.
func (f family) departRules(s *nodestate.State) []string {
	// Both ends of a connection learn what fits into the tunnel. The option is the first, as all send it: at an odd place the kernel
	// would write a wrong checksum.
	const opening = "@th,160,8 2 tcp flags & (syn | rst) == syn tcp option maxseg size set "
	rules := []string{"oifname $tunnel meta mark and $way != 0 " + opening + "rt mtu"}
	if segment := s.Settings.Tunnel.MTU - f.headers(); segment > 0 {
		rules = append(rules, "ct direction reply ct mark and $came != 0 "+opening+fmt.Sprint(segment))
	}
	// The outer packet is routed by the same mark.
	return append(rules, "meta mark and $way != 0 meta mark set meta mark and $plain")
}

// headers are the bytes of IP and TCP, and those that the tunnel's header is longer by than one of IPv4.
func (f family) headers() int {
	if f.six {
		return 20 + 60
	}
	return 40
}

// wayRules end the marks of translation and begin those of routing: which node handed a flow on is kept in its ct mark.
func (f family) wayRules() []string {
	return []string{
		"meta mark and $way != 0 return", // see straightChains
		// The tunnel's own packet: what comes out of it gets its mark. What was translated to its port is none.
		"ct status and dnat == 0 iifname != $tunnel udp dport $vxlan meta mark and $mask != 0 fib daddr type local return",
		// Whom this node would hand on, and somebody else translated, is theirs: it is no flow of another node's.
		"ct state new ct status dnat ct mark and $handed != 0 ct mark set 0x0 meta mark set meta mark and $plain meta priority set none",
		// Answers of Services that want it go straight to the client (direct server return).
		"ct state new ct status dnat meta priority @" + setDirect + " $ip saddr != @" + setOptOut + " meta mark set meta mark and $rest",
		// The first packet of a translated flow, the only one with a list's number: what translate left in the ct mark ends here.
		"ct state new ct status dnat meta priority != none ct mark set meta mark and $mask",
		"ct state new ct status dnat meta priority != none iifname $tunnel ct mark set ct mark or $came",
		// What a node sent with its own address through the tunnel is answered through it.
		"ct state new iifname $tunnel $ip saddr @" + setNodes + " ct status and dnat == 0 ct mark and $handed == 0 ct mark set $ip saddr map @" + mapNodes +
			" ct mark set ct mark or $through",
		// The node that is asked may change, but for a node port. Policy judges again.
		"ct state established ct direction original ct status dnat ct mark and $mask != 0 ct original $ip daddr != @" + setNodes + " jump follow",
		"meta mark and $mask != 0 meta mark set meta mark and $rest",
		wayBack,
		wayOn,
	}
}

// set adds a set whose types are written with $addr.
func (f family) set(t *Table, name string, s Set) {
	addr := f.words().addr
	s.Key, s.Value = strings.ReplaceAll(s.Key, "$addr", addr), strings.ReplaceAll(s.Value, "$addr", addr)
	t.Sets[name] = s
}

// workloadRules are for what a pod sends: its own addresses only. Of IPv6 neighbour discovery and reports of multicast
// listeners pass, which are between it and the node alone.
func (f family) workloadRules() []string {
	rules := []string{"iifname . $ip saddr @" + setEndpoints + " return"}
	if f.six {
		rules = append(rules,
			"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 ip6 daddr { fe80::/10, ff00::/8 } return",
			"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 ip6 daddr @"+setOwn+" return",
			"icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } ip6 saddr fe80::/10 return",
			"icmpv6 type mld2-listener-report ip6 saddr :: return")
	}
	return append(rules, "drop")
}

// asNodeChain gives a flow the node's address, and a port of the range that is for that; an echo's identifier plays the port.
const asNodeChain = "as-node"

func (f family) asNodeRules(s *nodestate.State) []string {
	if !f.node(s).IsValid() {
		return nil
	}
	set := s.Settings
	if set.SNATLast < set.SNATFirst || set.SNATFirst == 0 {
		return []string{"snat to $node"}
	}
	to := netip.AddrPortFrom(f.node(s), set.SNATFirst).String() + "-" + fmt.Sprint(set.SNATLast)
	return []string{"$ports snat to " + to, "$icmp type echo-request snat to " + to, "snat to $node"}
}

// masqueradeRules translate sources. A node without an address of the family translates none.
func (f family) masqueradeRules(s *nodestate.State) []string {
	if !f.node(s).IsValid() {
		return nil
	}
	rules := []string{
		"$ip saddr . $ip daddr @" + setHairpin + " ct status dnat goto " + asNodeChain,
		"$ip saddr @" + setOutgoing + " $ip daddr != @" + setRouted + " $ip daddr != @" + setKeepSource + " goto " + asNodeChain,
	}
	if s.Settings.KubeProxy {
		return rules // whose source a Service's flow has is said by who translated it
	}
	return append(rules,
		// A client outside whose backend is on another node, or outside of the cluster: the answers have to come by here.
		"ct status dnat iifname != @"+setWorkloads+" $ip saddr != @"+setOwn+" $ip daddr != @"+setLocal+" goto "+asNodeChain)
}
