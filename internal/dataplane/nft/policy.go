package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/nodestate"
)

// Policy is judged by what connection tracking knows of a flow: the source before its translation, the destination after
// its translation, in whichever direction the packet goes. docs/nftables.md has the whole of it.
const (
	policyChain = "judge"      // every packet; one that needs no judgement leaves at its first rule
	flowChain   = "judge-flow" // the packets of flows that were not judged, or under another policy
	markChain   = "judged"
	strayChain  = "stray" // packets of no flow

	setIsolated = "isolated"   // pods with a set in any direction
	mapIngress  = "ingress-of" // pod → jump to its set's chain
	mapEgress   = "egress-of"
	mapPeers    = "peers"         // address → number of its class, as the lower half of a packet's priority
	mapPeerNets = "peer-networks" // the same for prefixes
	mapVerdicts = "verdicts"      // number of a set : number of a class → what the set says of it
)

// logGroup is where denied packets and those of Log rules are shown (nflog); the prefix has the rule's number.
const logGroup = 5184

// epochMask are the bits of a ct mark that say under which policy the flow was judged.
const epochMask = 0xffff

// policy is what a driver keeps of a family's policy between states.
type policy struct {
	sets, classes *smallNumbers
	epochs        epochs
}

func newPolicy() *policy {
	return &policy{sets: newSmallNumbers(), classes: newSmallNumbers(), epochs: epochs{sums: map[uint16]uint64{}}}
}

// policySets are the sets and maps of policy, which every node has.
func (f family) policySets(t *Table) {
	for name, set := range map[string]Set{
		setIsolated: {Key: "$addr"}, mapIngress: {Key: "$addr", Value: "verdict"}, mapEgress: {Key: "$addr", Value: "verdict"},
		mapPeers: {Key: "$addr", Value: "classid"}, mapPeerNets: {Key: "$addr", Value: "classid", Interval: true},
		mapVerdicts: {Key: "classid", Value: "verdict"},
	} {
		f.set(t, name, set)
	}
}

// renderPolicy makes the chains of policy, and the elements of its sets.
func (f family) renderPolicy(t *Table, s *nodestate.State, p *policy) {
	r := policyRender{family: f, table: t, policy: p, contents: contentsOf(s, f)}
	r.numbers()
	r.peers(s)
	r.endpoints(s)
	r.verdicts()
	f.judgeChains(t, s, p.epochs.of(r.sum))
}

// judgeChains are those that every node has.
func (f family) judgeChains(t *Table, s *nodestate.State, epoch uint16) {
	chain := func(name string, rules ...string) { t.Chains[name] = Chain{Rules: f.rules(s, rules...)} }
	chain(policyChain,
		fmt.Sprintf("ct state established ct mark and %#x == %#x return", epochMask, epoch),
		"goto "+flowChain)
	var link []string
	errors := "icmp type { destination-unreachable, time-exceeded, parameter-problem }"
	if f.six {
		link = []string{"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 return"}
		errors = "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }"
	}
	chain(flowChain, append(append([]string{"ct state related return"}, link...),
		// From a node it would be taken for another node's.
		"iifname @"+setWorkloads+" udp dport $vxlan $ip daddr @"+setOwn+" drop",
		"iifname @"+setWorkloads+" udp dport $vxlan $ip daddr @"+setNodes+" drop",
		"ct state invalid,untracked goto "+strayChain,
		"ct state new tcp flags & (syn | ack) != syn jump "+strayChain,
		"ct original $ip saddr . ct reply $ip saddr @"+setHairpin+" goto "+markChain,
		"ct original $ip saddr vmap @"+mapEgress,
		"ct original $ip saddr @"+setOwn+" goto "+markChain, // the node's own probes
		"ct reply $ip saddr vmap @"+mapIngress,
		"goto "+markChain)...)
	chain(markChain,
		fmt.Sprintf("ct mark set ct mark and %#x or %#x", ^uint32(epochMask), epoch),
		// The numbers of the look-ups, which were made for isolated pods alone.
		"ct original $ip saddr @"+setIsolated+" meta priority set none",
		"ct reply $ip saddr @"+setIsolated+" meta priority set none")
	chain(strayChain,
		errors+" $ip saddr @"+setPods+" drop",
		errors+" $ip saddr != @"+setOwn+" $ip daddr @"+setPods+" drop",
		"$ip saddr @"+setIsolated+" drop",
		"$ip daddr @"+setIsolated+" drop")
}

// policyRender makes the part of a table that follows from a state.
type policyRender struct {
	family
	table    *Table
	policy   *policy
	contents map[nodestate.SetID]map[nodestate.Class]*content
	sum      uint64 // of all that a verdict follows from
}

// add desires an element, which a verdict follows from.
func (r *policyRender) add(set, key, value string) {
	r.table.add(set, key, value)
	r.sum += hash64(set, key, value) // in any order
}

// chain desires a chain named by its rules.
func (r *policyRender) chain(prefix string, rules []string) (name string) {
	name = prefix + fmt.Sprintf("%016x", hash64(rules...))
	r.table.Chains[name] = Chain{Rules: rules}
	return name
}

// numbers gives numbers to sets and classes.
func (r *policyRender) numbers() {
	sets, classes := map[uint64]bool{}, map[uint64]bool{}
	for set, byClass := range r.contents {
		sets[uint64(set)] = true
		for class := range byClass {
			if class != 0 {
				classes[uint64(class)] = true
			}
		}
	}
	r.policy.sets.follow(sets)
	r.policy.classes.follow(classes)
}

// peers makes look-up 1. A class that no set here knows needs no number: it is as class 0 for all of them. Where an address
// is in a prefix of a known class, it has to say so itself.
func (r *policyRender) peers(s *nodestate.State) {
	number := func(c nodestate.Class) (string, bool) {
		n, ok := r.policy.classes.of(uint64(c))
		if !ok && r.policy.classes.full && c != 0 {
			n = unknownNumber
		}
		return priorityText(0, n), n != 0
	}
	var nets valuedPrefixes
	for p, c := range s.PeerCIDRs {
		if r.has(p.Addr()) {
			text, _ := number(c)
			nets = append(nets, valuedPrefix{p.Masked(), text})
		}
	}
	zero := priorityText(0, 0)
	nets = nets.disjoint()
	for _, n := range nets {
		if n.value != zero {
			r.add(mapPeerNets, prefixText(n.prefix), n.value)
		}
	}
	for a, c := range s.Peers.All() {
		if !r.has(a) {
			continue
		}
		if text, known := number(c); known || nets.holds(a, zero) {
			r.add(mapPeers, a.String(), text)
		}
	}
}

// endpoints makes what leads from a pod to its sets.
func (r *policyRender) endpoints(s *nodestate.State) {
	for a, v := range s.Addrs {
		if v.Kind != nodestate.AddrEndpoint || !r.has(a) {
			continue
		}
		if v.Ingress.Set != 0 || v.Egress.Set != 0 {
			r.add(setIsolated, a.String(), "")
		}
		if v.Ingress.Set != 0 {
			r.add(mapIngress, a.String(), "jump "+r.setChain("in-", "ct original $ip saddr", v.Ingress))
		}
		if v.Egress.Set != 0 {
			r.add(mapEgress, a.String(), "jump "+r.setChain("out-", "ct reply $ip saddr", v.Egress))
		}
	}
}

// setChain makes the chain of an isolation in one direction, where the peer is the given end of the flow.
func (r *policyRender) setChain(prefix, peer string, iso nodestate.Isolation) string {
	deny := r.verdict(nodestate.PolicyValue{Rule: iso.Rule})
	n, ok := r.policy.sets.of(uint64(iso.Set))
	rules := []string{deny} // a set without entries, or without a number
	if ok {
		rules = []string{
			"meta priority set " + priorityText(0, 0),
			"meta priority set " + peer + " map @" + mapPeerNets,
			"meta priority set " + peer + " map @" + mapPeers,
			fmt.Sprintf("meta priority set meta priority or %#x", uint32(n)<<16),
			"meta priority vmap @" + mapVerdicts,
		}
		if others := r.contents[iso.Set][0]; others != nil {
			rules = append(rules, "goto "+r.contentChain(others))
		} else {
			rules = append(rules, deny)
		}
	}
	ip := r.words().ip
	for i := range rules {
		rules[i] = strings.ReplaceAll(rules[i], "$ip", ip)
	}
	name := r.chain(prefix, rules)
	r.sum += hash64(name)
	return name
}

// verdicts makes look-up 2.
func (r *policyRender) verdicts() {
	for _, set := range slices.Sorted(maps.Keys(r.contents)) {
		n, ok := r.policy.sets.of(uint64(set))
		if !ok {
			continue
		}
		for class, c := range r.contents[set] {
			if number, ok := r.policy.classes.of(uint64(class)); ok {
				r.add(mapVerdicts, priorityText(n, number), "goto "+r.contentChain(c))
			}
		}
		if r.policy.classes.full {
			// Peers of classes without a number: nobody knows what they may do.
			r.add(mapVerdicts, priorityText(n, unknownNumber), r.verdict(nodestate.PolicyValue{}))
		}
	}
}

// verdict is a verdict in words; the chain that it leads to is made.
func (r *policyRender) verdict(v nodestate.PolicyValue) string {
	name := fmt.Sprintf("deny-%d", v.Rule)
	switch {
	case v.Allow && !v.Log:
		return "return"
	case v.Allow:
		name = fmt.Sprintf("log-%d", v.Rule)
		r.table.Chains[name] = Chain{Rules: []string{logRule("allow", v.Rule)}}
	default:
		r.table.Chains[name] = Chain{Rules: []string{
			logRule("deny", v.Rule),
			// The connection was open: both ends are told.
			"ct state established meta l4proto tcp tcp flags & (syn | rst) == 0 reject with tcp reset",
			"drop",
		}}
	}
	return "goto " + name
}

func logRule(what string, rule nodestate.RuleID) string {
	return fmt.Sprintf("limit rate 1000/second burst 256 packets log prefix \"weir %s %d\" snaplen 128 group %d", what, rule, logGroup)
}

// priorityText is a pair of numbers as nft writes a packet's priority.
func priorityText(set, class uint16) string {
	if set == 0 && class == 0 {
		return "none"
	}
	return fmt.Sprintf("%x:%x", set, class)
}
