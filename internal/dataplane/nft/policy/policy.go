// SPDX-License-Identifier: Apache-2.0

// Package policy renders the policy of a state as chains, sets and maps: that of pods, of host
// endpoints, and untracked policy. It is evaluated by what connection tracking knows of a flow: the
// source before its translation, the destination after it, in whichever direction the packet goes.
// Look-up 1 gives a peer its class, look-up 2 gives a set and a class their chain, which decides by
// ports. A flow remembers the number of the policy that it was evaluated under.
// docs/design/nftables.md has the whole of it.
package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Chains, sets and maps of policy.
const (
	MainChain         = "judge"      // every packet; one that needs no evaluation leaves at its first rule
	FirstPacketsChain = "judge-new"  // first packets, where there are no host endpoints
	flowChain         = "judge-flow" // the packets of flows that were not evaluated, or under another policy
	markChain         = "judged"
	strayChain        = "stray" // packets of no flow

	TunnelPortChain = "to-tunnel" // what is for the tunnel's port

	setIsolated = "isolated"   // pods with a set in any direction
	MapIngress  = "ingress-of" // pod → jump to its set's chain
	MapEgress   = "egress-of"
	// Of pods that may send with sources that are not their own, by their interfaces, what they
	// send so: that is not found by its source.
	mapGranted  = "granted-egress"
	setGranters = "granted-isolated"
	mapPeers    = "peers"         // address → number of its class, as the lower half of a packet's priority
	mapPeerNets = "peer-networks" // the same for prefixes
	mapVerdicts = "verdicts"      // number of a set : number of a class → what the set says of it
)

// State is what a driver keeps of a family's policy between states.
type State struct {
	sets, classes *smallNumbers
	epochs        epochs
	Listening     bool // every flow that is evaluated is shown
}

// Epoch is the number of the policy in force; 0 = there is none yet.
func (p *State) Epoch() uint16 { return p.epochs.current }

// New is of no policy yet.
func New() *State {
	return &State{sets: newSmallNumbers(), classes: newSmallNumbers(), epochs: newEpochs()}
}

// AddSets are the sets and maps of policy, which every node has.
func AddSets(f table.Family, t *table.Table, room uint64) {
	for name, set := range map[string]table.Set{
		setIsolated: {Key: "$addr", Size: room}, MapIngress: {Key: "$addr", Value: "verdict", Size: room}, MapEgress: {Key: "$addr", Value: "verdict", Size: room},
		mapGranted: {Key: "ifname", Value: "verdict", Size: room}, setGranters: {Key: "ifname", Size: room},
		mapPeers: {Key: "$addr", Value: "classid"}, mapPeerNets: {Key: "$addr", Value: "classid", Interval: true},
		mapVerdicts: {Key: "classid", Value: "verdict"}, mapNamed: {Key: "classid", Value: "verdict"},
	} {
		table.AddSet(f, t, name, set)
	}
	names.AddSets(f, t)
}

// Render makes the chains of policy, and the elements of its sets. It returns the policy's number,
// and what host endpoints apply to.
func Render(f table.Family, t *table.Table, s *nodestate.State, p *State) (epoch uint16, hosts HostRules) {
	r := policyRender{Family: f, table: t, policy: p, whys: whysOf(s, f), sum: new(uint64)}
	r.names, r.tried = namesOf(s, r.whys)
	r.contents = contentsOf(s, r.whys, r.tried)
	r.numbers()
	r.peers(s)
	r.endpoints(s)
	r.verdicts()
	r.nameChains()
	hosts = r.hosts(s)
	epoch = p.epochs.of(*r.sum)
	policyChains(f, t, s, epoch, hosts, p.Listening)
	hostEndpointChains(f, t, s, epoch, hosts)
	return epoch, hosts
}

// evaluated is the first rule wherever policy evaluates: it says that a flow needs no evaluation.
func evaluated(epoch uint16) string {
	return fmt.Sprintf("ct state established ct mark and %#x == %#x return", marks.EpochMask, epoch)
}

// linkRules let neighbour discovery pass, which is between the ends of a link.
func linkRules(f table.Family) []string {
	if !f.Six {
		return nil
	}
	return []string{"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } ip6 hoplimit 255 return"}
}

// icmpErrors are those that are about flows.
func icmpErrors(f table.Family) string {
	if f.Six {
		return "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }"
	}
	return "icmp type { destination-unreachable, time-exceeded, parameter-problem }"
}

// policyChains are those that every node has.
func policyChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h HostRules, listening bool) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	errors, end := icmpErrors(f), markChain
	var granted, answered, stray string // sources that are not the senders' own
	if len(s.Sources) > 0 {
		granted = "ct direction original $ip saddr != @" + expr.SetLocal + " iifname vmap @" + mapGranted
		// An answer does not show which pod's policy the flow is under: the next packet of the
		// first direction evaluates that.
		answered = "ct direction reply ct original $ip saddr @" + expr.SetGranted + " return"
		stray = "$ip saddr != @" + expr.SetLocal + " iifname @" + setGranters + " drop"
	}
	if h.any() {
		end = hostChain
	}
	chain(MainChain, evaluated(epoch), "goto "+flowChain)
	flow := func(end string) []string {
		return append(append([]string{"ct state related return"}, linkRules(f)...),
			"udp dport $vxlan jump "+TunnelPortChain,
			"ct state invalid,untracked goto "+strayChain,
			"ct state new tcp flags & (syn | ack) != syn jump "+strayChain,
			"ct original $ip saddr . ct reply $ip saddr @"+expr.SetHairpin+" goto "+markChain,
			"ct original $ip saddr vmap @"+MapEgress,
			granted,
			"ct original $ip saddr @"+expr.SetOwn+" goto "+end, // the node's own probes
			"ct reply $ip saddr vmap @"+MapIngress,
			answered,
			"goto "+end)
	}
	chain(flowChain, flow(end)...)
	if !h.any() {
		begin := []string{"udp dport $vxlan jump " + TunnelPortChain, "tcp flags & (syn | ack) != syn jump " + strayChain}
		if len(t.Elements[setIsolated]) > 0 {
			begin = append(begin, "ct original $ip saddr vmap @"+MapEgress, granted, "ct reply $ip saddr vmap @"+MapIngress)
		}
		chain(FirstPacketsChain, append(begin, "goto "+markChain)...)
	}
	chain(TunnelPortChain, toTunnelRules(s)...)
	if h.HasEndpoints() {
		// Where a flow of the node's own leaves by is known after its destination was translated:
		// leaving evaluates that, and marks it.
		chain(OwnChain, evaluated(epoch), "goto "+ownFlowChain)
		chain(ownFlowChain, flow(openChain)...)
		chain(openChain, openFlowRules(f, s, h)...)
	}
	if h.HasEndpoints() {
		chain(clearChain, "return")
	}
	mark := []string{fmt.Sprintf("ct mark set ct mark and %#x or %#x", ^uint32(marks.EpochMask), epoch)}
	if listening {
		mark = append(mark, events.ShowRules(events.Pass, 0, 0)...)
	}
	chain(markChain, mark...)
	chain(strayChain, append([]string{
		errors + " $ip saddr @" + expr.SetPods + " drop",
		errors + " $ip saddr != @" + expr.SetOwn + " $ip daddr @" + expr.SetPods + " drop",
		"$ip saddr @" + setIsolated + " drop",
		stray,
		"$ip daddr @" + setIsolated + " drop"}, strayHostRules(f, h)...)...)
}

// policyRender makes the part of a table that follows from a state.
type policyRender struct {
	table.Family
	table    *table.Table
	policy   *State
	whys     map[nodestate.SetID]reason.Reason // what a packet that a set denies is dropped for
	contents map[nodestate.SetID]map[nodestate.Class]*content
	sum      *uint64 // of all that a verdict follows from
	// turned: chains evaluate the return path of the flow at hand, and neither deny nor mark.
	turned bool
	// names are the patterns that sets have, tried the sets that these lead to. byName: chains are of
	// such a set, and say that they allow.
	names  map[nodestate.SetID][]patternOf
	tried  map[nodestate.SetID]bool
	byName bool
	// silent: chains of host endpoints' sets are for postrouting, where the kernel lets no rule
	// answer.
	silent bool
}

// add desires an element, which a verdict follows from.
func (r *policyRender) add(set, key, value string) {
	r.table.Add(set, key, value)
	*r.sum += table.Hash(set, key, value) // in any order
}

// chain desires a chain named by its rules.
func (r *policyRender) chain(prefix string, rules []string) (name string) {
	name = prefix + fmt.Sprintf("%016x", table.Hash(rules...))
	r.table.Chains[name] = table.Chain{Rules: rules}
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
	r.policy.sets.assign(sets)
	r.policy.classes.assign(classes)
}

// peers makes look-up 1. A class that no set here knows needs no number: it is as class 0 for all
// of them. Where an address is in a prefix of a known class, it has to say so itself.
func (r *policyRender) peers(s *nodestate.State) {
	number := func(c nodestate.Class) (string, bool) {
		n, ok := r.policy.classes.of(uint64(c))
		if !ok && r.policy.classes.full && c != 0 {
			n = unknownNumber
		}
		return expr.PriorityText(0, n), n != 0
	}
	var nets table.ValuedPrefixes
	for p, c := range s.PeerCIDRs {
		if r.Has(p.Addr()) {
			text, _ := number(c)
			nets = append(nets, table.ValuedPrefix{Prefix: p.Masked(), Value: text})
		}
	}
	zero := expr.PriorityText(0, 0)
	nets = nets.Disjoint()
	for _, n := range nets {
		if n.Value != zero {
			r.add(mapPeerNets, table.PrefixText(n.Prefix), n.Value)
		}
	}
	for a, c := range s.Peers.All() {
		if !r.Has(a) {
			continue
		}
		if text, known := number(c); known || nets.Holds(a, zero) {
			r.add(mapPeers, a.String(), text)
		}
	}
}

// endpoints makes what leads from a pod to its sets.
func (r *policyRender) endpoints(s *nodestate.State) {
	for a, v := range s.Addrs {
		if v.Kind != nodestate.AddrEndpoint || !r.Has(a) {
			continue
		}
		if v.Ingress.Set != 0 || v.Egress.Set != 0 {
			r.add(setIsolated, a.String(), "")
		}
		if v.Ingress.Set != 0 {
			r.add(MapIngress, a.String(), "jump "+r.podChain("into-", r.setChain("in-", "ct original $ip saddr", v.Ingress), "ct original $ip saddr @"+expr.SetOwn+" return"))
		}
		if v.Egress.Set != 0 {
			out := "jump " + r.podChain("out-of-", r.setChain("out-", "ct reply $ip saddr", v.Egress))
			r.add(MapEgress, a.String(), out)
			if len(s.Sources[a]) > 0 {
				r.add(mapGranted, v.Interface, out)
				r.add(setGranters, v.Interface, "")
			}
		}
	}
}

// podChain makes the chain that leads to a pod's set, but for what the pod sends to itself and the
// exceptions. The numbers of the look-ups end in it.
func (r *policyRender) podChain(prefix, set string, exceptions ...string) string {
	rules := append([]string{"ct original $ip saddr . ct reply $ip saddr @" + expr.SetHairpin + " return"}, exceptions...)
	rules = append(rules, "jump "+set, "meta priority set none")
	name := r.chain(prefix, r.expand(rules))
	*r.sum += table.Hash(name)
	return name
}

// setChain makes the chain of an isolation in one direction, where the peer is the given end of the
// flow.
func (r *policyRender) setChain(prefix, peer string, iso nodestate.Isolation) string {
	why := r.whyOf(iso.Set)
	verdicts := r.verdictsOf(why)
	deny := r.withNames(iso.Set, nodestate.PolicyValue{Rule: iso.Rule}, why)
	n, ok := r.policy.sets.of(uint64(iso.Set))
	rules := []string{deny} // a set without entries, or without a number
	if ok {
		rules = []string{
			"meta priority set " + expr.PriorityText(0, 0),
			"meta priority set " + peer + " map @" + mapPeerNets,
			"meta priority set " + peer + " map @" + mapPeers,
			fmt.Sprintf("meta priority set meta priority or %#x", uint32(n)<<16),
			"meta priority vmap @" + verdicts,
		}
		if others := r.contents[iso.Set][0]; others != nil {
			rules = append(rules, "goto "+r.contentChain(others))
		} else {
			rules = append(rules, deny)
		}
	}
	name := r.chain(prefix, r.expand(rules))
	*r.sum += table.Hash(name)
	return name
}

// expand puts the family's word in its place.
func (r *policyRender) expand(rules []string) []string {
	for i := range rules {
		rules[i] = strings.ReplaceAll(rules[i], "$ip", r.Words().IP)
	}
	return rules
}

// whyOf is what a packet is dropped for that a set denies.
func (r *policyRender) whyOf(set nodestate.SetID) reason.Reason {
	if r.byName {
		return reason.PolicyEgress
	}
	return r.whys[set]
}

// ofPods reports whether a reason is that of a pod's set.
func ofPods(why reason.Reason) bool {
	return why == reason.PolicyIngress || why == reason.PolicyEgress
}

// verdictsOf is the map of look-up 2 for a set. Those of host endpoints have maps of their own, one
// for each kind of chains.
func (r *policyRender) verdictsOf(why reason.Reason) string {
	switch {
	case r.byName:
		return mapNamed
	case r.turned:
		return mapTurned
	case ofPods(why):
		return mapVerdicts
	case isUntracked(why):
		return mapUntracked
	case r.silent:
		return mapHostSilent
	}
	return mapHostVerdicts
}

// verdicts makes look-up 2.
func (r *policyRender) verdicts() {
	silent := *r
	silent.silent = true
	for _, set := range slices.Sorted(maps.Keys(r.contents)) {
		if r.whys[set] == 0 {
			continue // names alone lead to it
		}
		r.verdictsFor(set)
		if why := r.whys[set]; !ofPods(why) && why != reason.HostPreDNAT && !isUntracked(why) {
			silent.verdictsFor(set)
		}
	}
}

// verdictsFor makes look-up 2 of a set.
func (r *policyRender) verdictsFor(set nodestate.SetID) {
	n, ok := r.policy.sets.of(uint64(set))
	if !ok {
		return
	}
	at := r.verdictsOf(r.whyOf(set))
	for class, c := range r.contents[set] {
		if number, ok := r.policy.classes.of(uint64(class)); ok {
			r.add(at, expr.PriorityText(n, number), "goto "+r.contentChain(c))
		}
	}
	if r.policy.classes.full {
		// Peers of classes without a number: nobody knows what they may do.
		r.add(at, expr.PriorityText(n, unknownNumber), r.withNames(set, nodestate.PolicyValue{}, r.whyOf(set)))
	}
}

// verdict is a verdict in words; the chain that it leads to is made. why is what a packet that is
// denied is dropped for.
func (r *policyRender) verdict(v nodestate.PolicyValue, why reason.Reason) string {
	switch {
	case r.byName:
		return r.namedVerdict(v, why)
	case r.turned && v.Allow:
		return "goto " + olderPassChain
	case v.Allow && !v.Undecided && isUntracked(why):
		return "goto " + untrackedAllowedChain
	case r.turned, v.Allow && (!v.Log || isUntracked(why)):
		return "return"
	case v.Allow:
		name := fmt.Sprintf("log-%d-%d", why, v.Rule)
		r.table.Chains[name] = table.Chain{Rules: events.ShowRules(events.Allow, why, v.Rule)}
		return "goto " + name
	}
	return "goto " + r.denyChain(why, v.Rule)
}

// denyChain makes the chain that drops.
func (r *policyRender) denyChain(why reason.Reason, rule nodestate.RuleID) string {
	name := expr.DenyName(why, rule)
	rules := append([]string{"counter"}, events.ShowRules(events.Deny, why, rule)...)
	switch {
	case isUntracked(why):
		rules = []string{"counter", events.ShowFirst(why, rule)}
	case r.silent:
		name += expr.SilentSuffix
	default:
		// The connection was open: both ends are informed.
		rules = append(rules, "ct state established meta l4proto tcp tcp flags & (syn | rst) == 0 reject with tcp reset")
	}
	r.table.Chains[name] = table.Chain{Rules: append(rules, "drop")}
	return name
}

// toTunnelRules are for what goes to VXLAN's port once it was translated: a Service leads nobody
// there but to a pod, and no pod at all. Where the setting opens the port to pods, the addresses
// that nodes are known by stay closed: what comes from this node would be taken for its own.
func toTunnelRules(s *nodestate.State) []string {
	const service = "ct status dnat ct direction original "
	if !s.Settings.VXLANFromPods {
		return []string{"iifname @" + expr.SetWorkloads + " drop", service + "$ip daddr != @" + expr.SetPodRanges + " drop"}
	}
	rules := []string{service + "iifname != @" + expr.SetWorkloads + " $ip daddr != @" + expr.SetPodRanges + " drop"}
	for _, node := range []string{expr.SetOwn, expr.SetNodes} {
		rules = append(rules, "iifname @"+expr.SetWorkloads+" $ip daddr @"+node+" drop")
	}
	return rules
}
