package nft

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// translatePriority comes before that of kube-proxy's rules and of other people's: while both are there, what is in our maps is ours,
// and what is not is theirs.
const translatePriority = "dstnat-1"

// Chains of Services, by who asks and what.
const (
	askedChain       = "asked"       // from outside, for a frontend with an address
	ownChainOutside  = "own-outside" // from outside, for an address of this node
	nodeChainOutside = "node-outside"
	ownChainInside   = "own-inside" // pods and the node's own processes
	nodeChainInside  = "node-inside"
	rangesChain      = "ranges" // may the source ask
)

// serviceChains make the chains and sets of Services. Only the first packet of a flow comes by translate.
func serviceChains(f table.Family, t *table.Table, s *nodestate.State) {
	const front = "$ip daddr . meta l4proto . th dport"
	const atPort = "meta l4proto . th dport"
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	nat := func(name string, hook knftables.BaseChainHook, rules ...string) {
		t.Chains[name] = table.Chain{Type: knftables.NATType, Hook: hook, Priority: translatePriority, Rules: expr.Expand(f, s, rules...)}
	}
	nat("translate", knftables.PreroutingHook,
		"meta l4proto != { tcp, udp, sctp } return",
		"iifname $pods goto inside",
		"meta mark and $mask != 0 $ip saddr @"+expr.SetLocal+" drop", // see admitRules
		toDSR,
		"meta mark and $routed != 0 return",
		"udp dport $vxlan iifname != $tunnel meta mark and $mask != 0 fib daddr type local return", // see tunnelOuter
		"meta priority set "+front+" map @"+mapServicesOutside+" "+toAsked(s),
		"$ip daddr vmap @"+expr.MapPortals)
	nat("translate-own", knftables.OutputHook, expr.OwnSocket+"accept", "$ports goto inside")
	chain("inside",
		"meta priority set "+front+" map @"+mapServices+" goto choose",
		"$ip daddr vmap @"+expr.MapInside)
	chain(ownChainInside,
		"meta priority set "+atPort+" map @"+mapHostPorts+" goto choose",
		"$ip daddr != @"+expr.SetPorted+" return",
		"meta priority set "+atPort+" map @"+mapPorts+" goto choose")
	chain(nodeChainInside,
		atPort+" @"+setPortsLocal+" return",
		"meta priority set "+atPort+" map @"+mapPorts+" goto choose")
	// What another node was asked for: one of this node's own backends answers, by way of the node that was addressed, or that handed
	// the packet on.
	own := fmt.Sprintf("meta priority set meta priority and %#x or %#x ", ^uint32(localList|handList), localList)
	chain(askedChain,
		// Which of the other nodes it was that sent this, if any.
		"meta mark and $mask == 0 meta mark set ether saddr map @"+expr.MapLinks,
		"meta mark and $mask != 0 "+own,
		"goto choose")
	chain(ownChainOutside,
		"meta priority set "+atPort+" map @"+mapHostPorts+" goto choose",
		"$ip daddr != @"+expr.SetPorted+" return",
		"meta priority set "+atPort+" map @"+mapPortsOutside+" goto choose")
	chain(nodeChainOutside,
		"meta priority set "+atPort+" map @"+mapPorts+" goto "+handedChain)
	if s.Settings.KubeProxy {
		kubeProxyChains(f, chain, front, atPort, own)
	}
	chain(rangesChain,
		// nft 1.0.6 turns the bytes of meta l4proto round where a set has intervals, which there is nothing to of one byte; Linux 7 refuses that.
		"$ip daddr . ct original protocol . th dport . $ip saddr != @"+setRanges+" drop",
		fmt.Sprintf("meta priority set meta priority and %#x", ^uint32(restrictedBit)),
		"meta priority vmap @"+mapRanged) // not lists, which lead here: the kernel refuses what may go in circles
	chain("choose",
		// A packet in the middle of a connection that nobody knows is no beginning of one.
		fmt.Sprintf("tcp flags & (fin | syn | rst | ack) != syn meta priority and %#x != %#x drop", hashList|handList, hashList|handList),
		"meta priority vmap @"+mapLists)
	handOnChains(f, t, s)
	chain("refuse",
		"$ports $ip daddr @"+expr.SetPorted+" "+atPort+" vmap @"+mapRefusedPorts,
		"$ports "+front+" vmap @"+mapRefused)

	const frontend, portal, backend = "$addr . inet_proto . inet_service", "inet_proto . inet_service", "$addr . inet_service"
	for name, set := range map[string]table.Set{
		mapServices: {Key: frontend, Value: "classid"}, mapServicesOutside: {Key: frontend, Value: "classid"},
		mapPorts: {Key: portal, Value: "classid"}, mapPortsOutside: {Key: portal, Value: "classid"}, mapHostPorts: {Key: portal, Value: "classid"},
		setPortsLocal: {Key: portal}, mapLists: {Key: "classid", Value: "verdict"}, mapRanged: {Key: "classid", Value: "verdict"},
		mapBackends: {Key: "classid . mark", Value: backend}, mapSlots: {Key: "classid . mark", Value: "mark"}, mapLive: {Key: "classid . mark", Value: backend},
		mapRemote:   {Key: "classid . mark", Value: "mark"},
		mapAffinity: affinitySetOf(f),
		setRanges:   {Key: frontend + " . $addr", Interval: true},
		mapRefused:  {Key: frontend, Value: "verdict"}, mapRefusedPorts: {Key: portal, Value: "verdict"},
	} {
		table.AddSet(f, t, name, set)
	}
}

// handOnChain ends the choice for a flow that is handed on. What cannot be returns, and is translated.
const handOnChain = "hand-on"

// pickName is the chain that chooses from a list.
func (p *port) pickName(l list) string {
	if l.number&hashList != 0 {
		return p.hashName(l)
	}
	name := fmt.Sprintf("pick-%d", len(l.slots))
	if l.number&handList != 0 {
		name = fmt.Sprintf("pick-on-%d", len(l.slots))
	}
	if a := p.affinity(); a > 0 {
		name += fmt.Sprintf("-for-%d", a)
	}
	return name
}

// chains are those that a port's lists choose by, with their rules.
func (v *services) chains(p *port) map[string][]string {
	out := map[string][]string{}
	for _, l := range p.lists() {
		switch {
		case len(l.slots) == 0:
		case l.number&hashList != 0:
			out[p.pickName(l)] = hashRules(v.f, l, len(p.table), p.affinity())
		default:
			out[p.pickName(l)] = pickRules(v.f, len(l.slots), p.affinity(), l.number&handList != 0)
		}
	}
	return out
}

// pickRules choose one of n backends of the list whose number is the packet's priority. The new flow's ct mark holds the
// slot meanwhile. With affinity the backend that the client had last is taken again while it is live; the ct mark holds its
// number. With handOn a flow whose backend is on another node is not translated: its ct mark becomes that node's.
func pickRules(f table.Family, n int, affinity uint32, handOn bool) []string {
	const tr = "meta l4proto { tcp, udp, sctp } dnat $ip to meta priority . ct mark map @"
	random := fmt.Sprintf("ct mark set numgen random mod %d", n)
	var rules []string
	if handOn {
		rules = append(rules, "jump "+handOnChain)
	}
	if affinity == 0 {
		rules = slices.Concat([]string{random}, rules, []string{tr + mapBackends})
	} else {
		client := "meta priority . " + clientExpression(f)
		remember := fmt.Sprintf("update @%s { %s timeout %ds : ct mark }", mapAffinity, client, affinity)
		known := "ct mark set " + client + " map @" + mapAffinity
		live := []string{known + " " + remember + " " + tr + mapLive}
		if handOn {
			live = []string{known + " " + remember + " jump " + handOnChain, known + " " + tr + mapLive}
		}
		// Where the set is full the rule that remembers ends, and the flow goes on all the same.
		rules = slices.Concat(live, []string{
			fmt.Sprintf("delete @%s { %s : ct mark }", mapAffinity, client),
			random,
			"ct mark set meta priority . ct mark map @" + mapSlots,
			remember,
		}, rules, []string{tr + mapLive})
	}
	for i, r := range rules {
		rules[i] = strings.ReplaceAll(r, "$ip", f.Words().IP)
	}
	return rules
}

// clientExpression is what a client with affinity is known by. An address of IPv6 does not fit beside the number of the list (nft
// before 1.0.8 gives a map's value to the registers of a key of more than 16 bytes), so it is hashed.
func clientExpression(f table.Family) string {
	if f.Six {
		return "jhash ip6 saddr mod 4294967295 seed 0x57656972"
	}
	return "ip saddr"
}

func affinitySetOf(f table.Family) table.Set {
	s := table.Set{Key: "classid . ipv4_addr", Value: "mark", Learned: true, Size: affinitySize}
	if f.Six { // a number of no named type
		s.Key, s.Value, s.TypeOf = "meta priority . numgen random mod 65536", "ct mark", true
	}
	return s
}

// serviceSets are those whose elements services follows, or packets add.
var serviceSets = map[string]bool{
	mapServices: true, mapServicesOutside: true, mapPorts: true, mapPortsOutside: true, mapHostPorts: true, setPortsLocal: true,
	mapLists: true, mapRanged: true, mapBackends: true, mapSlots: true, mapLive: true, mapRemote: true, mapAffinity: true, setRanges: true,
	mapRefused: true, mapRefusedPorts: true, expr.SetDirect: true,
}
