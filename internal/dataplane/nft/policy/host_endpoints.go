// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Policies of host endpoints apply to what comes into the node and what leaves it, by the
// interface, after the policy of pods; docs/design/nftables.md has the whole of it. Nothing of this
// is there on a node without any, but for defaultEndpointToHostAction: Drop.
const (
	hostChain      = "judge-host"
	hostDoneChain  = "judge-host-done"
	toHostChain    = "to-host"
	leavesChain    = "judge-leaving" // hostChain for postrouting
	leavesHost     = "to-host-leaving"
	backSuffix     = "-back" // of the same for packets of the return path
	beforeChain    = "before-services"
	leavingChain   = "leaving" // what the node's own processes send
	OwnChain       = "judge-own"
	ownFlowChain   = "judge-own-flow"
	openChain      = "judge-own-open"
	clearChain     = "not-judged"
	olderChain     = "older"
	olderPassChain = "older-pass"

	mapHostVerdicts = "host-verdicts"   // as verdicts
	mapHostSilent   = "verdicts-silent" // as host-verdicts, for postrouting
	mapUntracked    = "verdicts-alone"  // as host-verdicts, of each packet by itself
	mapTurned       = "verdicts-turned" // as host-verdicts, for the return path of the flow at hand
)

// HostRules are the chains of host endpoints by the index of their interface, 0 = any other; those
// that evaluate nothing are "".
type HostRules struct {
	in, out, before, older    map[int]string
	silentIn, silentOut       map[int]string // as in and out, for postrouting
	untrackedIn, untrackedOut map[int]string // each packet by itself (untracked.go)
	forwarded                 bool           // what passes the node is evaluated, and nothing is handed on
	toHost                    model.ToHostAction
	toHostChain               string // that evaluates what pods send to the node; "" = none does
	toHostSilent              string
}

// any reports whether anything is evaluated after pods' policy.
func (h HostRules) any() bool { return h.HasEndpoints() || h.toHost == model.ToHostDrop }

// HasEndpoints reports whether there are host endpoints.
func (h HostRules) HasEndpoints() bool { return len(h.in) > 0 }

// FirstPacketChain is the chain that evaluates first packets.
func (h HostRules) FirstPacketChain() string {
	if h.any() {
		return MainChain
	}
	return FirstPacketsChain
}

// beforeServices reports whether anything is evaluated before Services.
func (h HostRules) beforeServices() bool { return anyChain(h.before) }

func anyChain(chains map[int]string) bool {
	for _, name := range chains {
		if name != "" {
			return true
		}
	}
	return false
}

// hosts makes the chains of the sets of host endpoints.
func (r *policyRender) hosts(s *nodestate.State) HostRules {
	h := HostRules{in: map[int]string{}, out: map[int]string{}, before: map[int]string{}, older: map[int]string{},
		silentIn: map[int]string{}, silentOut: map[int]string{}, untrackedIn: map[int]string{}, untrackedOut: map[int]string{}}
	silent := *r
	silent.silent = true
	for _, at := range slices.SortedFunc(maps.Keys(s.HostEndpoints), nodestate.HostInterface.Compare) {
		if at.IPv6 == r.Six {
			r.host(at.IfIndex, s.HostEndpoints[at], &h)
		}
	}
	switch s.Settings.ToHost {
	case model.ToHostDrop:
		h.toHost = model.ToHostDrop
	case model.ToHostReturn:
		h.toHost = model.ToHostReturn
		if iso := s.HostEndpoints[nodestate.HostInterface{IPv6: r.Six}].HostIngress; iso.Set != 0 {
			h.toHostChain = r.setChain("in-", "ct original $ip saddr", iso)
			h.toHostSilent = silent.setChain("in-silent-", "ct original $ip saddr", iso)
		}
	}
	h.forwarded = expr.AppliesToForwarded(s, r.Six)
	if len(h.in) == 0 {
		h.in = nil
		h.toHostChain, h.toHostSilent = "", ""
	}
	if h.toHost == model.ToHostDrop {
		h.toHostChain = r.denyChain(reason.ToHost, 0)
		if h.HasEndpoints() {
			h.toHostSilent = silent.denyChain(reason.ToHost, 0)
		}
	}
	if h.any() {
		*r.sum += table.Hash("hosts", string(h.toHost), h.toHostChain)
	}
	return h
}

// host makes the chains of one host endpoint.
func (r *policyRender) host(index int, e nodestate.HostEndpoint, h *HostRules) {
	const source, destination = "ct original $ip saddr", "ct reply $ip saddr"
	turned, silent := *r, *r
	turned.turned, silent.silent = true, true
	either := func(prefix, own string, rr *policyRender, sets string, peer string, ofHost, forwarded nodestate.Isolation) string {
		var rules []string
		if ofHost.Set != 0 {
			rules = append(rules, own+" @"+expr.SetOwn+" jump "+rr.setChain(sets, peer, ofHost))
		}
		if forwarded.Set != 0 {
			rules = append(rules, own+" != @"+expr.SetOwn+" jump "+rr.setChain(sets, peer, forwarded))
		}
		return r.hostChain(prefix, rules)
	}
	h.in[index] = either("host-in-", destination, r, "in-", source, e.HostIngress, e.ForwardIngress)
	h.out[index] = either("host-out-", source, r, "out-", destination, e.HostEgress, e.ForwardEgress)
	h.silentIn[index] = either("host-in-silent-", destination, &silent, "in-silent-", source, e.HostIngress, e.ForwardIngress)
	h.silentOut[index] = either("host-out-silent-", source, &silent, "out-silent-", destination, e.HostEgress, e.ForwardEgress)
	one := func(prefix, peer string, iso nodestate.Isolation) string {
		if iso.Set == 0 {
			return ""
		}
		return r.setChain(prefix, peer, iso)
	}
	h.before[index] = one("before-", "$ip saddr", e.PreDNAT)
	h.untrackedIn[index], h.untrackedOut[index] = one("alone-in-", "$ip saddr", e.UntrackedIngress), one("alone-out-", "$ip daddr", e.UntrackedEgress)
	var older []string
	if e.HostIngress.Set != 0 {
		older = append(older, source+" @"+expr.SetOwn+" jump "+turned.setChain("turned-in-", destination, e.HostIngress))
	}
	if e.HostEgress.Set != 0 {
		older = append(older, source+" != @"+expr.SetOwn+" jump "+turned.setChain("turned-out-", source, e.HostEgress))
	}
	h.older[index] = r.hostChain("host-older-", older)
	turned.returnVerdicts(e.HostIngress, e.HostEgress)
	*r.sum += table.Hash("host", fmt.Sprint(index), h.in[index], h.out[index], h.before[index], h.older[index], h.untrackedIn[index], h.untrackedOut[index])
}

// hostChain makes a chain of rules about the family's addresses; "" when there are none.
func (r *policyRender) hostChain(prefix string, rules []string) string {
	if len(rules) == 0 {
		return ""
	}
	for i := range rules {
		rules[i] = strings.ReplaceAll(rules[i], "$ip", r.Words().IP)
	}
	return r.chain(prefix, rules)
}

// returnVerdicts makes look-up 2 of the return path, of sets of host endpoints.
func (r *policyRender) returnVerdicts(sets ...nodestate.Isolation) {
	for _, iso := range sets {
		n, ok := r.policy.sets.of(uint64(iso.Set))
		if !ok {
			continue
		}
		for class, c := range r.contents[iso.Set] {
			if number, ok := r.policy.classes.of(uint64(class)); ok {
				r.add(mapTurned, expr.PriorityText(n, number), "goto "+r.contentChain(c))
			}
		}
		if r.policy.classes.full {
			r.add(mapTurned, expr.PriorityText(n, unknownNumber), "return")
		}
	}
}

// ownDevices are those that no host endpoint applies to: the loopback device, and Weir's towards
// the host.
var ownDevices = fmt.Sprintf(`{ "lo", %q, %q }`, hostnet.HostDevice, hostnet.HostPeer)

// byInterface are the rules that jump to the chain of the interface that a packet comes by ("iif")
// or leaves by ("oif"). Where there is none (index 0), they do not match.
func byInterface(key string, chains map[int]string) []string {
	var parts []string
	named := []string{"0"}
	for _, index := range slices.Sorted(maps.Keys(chains)) {
		if index == 0 {
			continue
		}
		named = append(named, fmt.Sprint(index))
		if name := chains[index]; name != "" {
			parts = append(parts, fmt.Sprintf("%d : jump %s", index, name))
		}
	}
	var rules []string
	if len(parts) > 0 {
		rules = append(rules, "meta "+key+" vmap { "+strings.Join(parts, ", ")+" }")
	}
	if others := chains[0]; others != "" {
		rules = append(rules, fmt.Sprintf("meta %s != { %s } %sname != @%s %sname != %s jump %s", key, strings.Join(named, ", "), key, expr.SetWorkloads, key, ownDevices, others))
	}
	return rules
}

// exemptHosts are what no host endpoint is asked about, by a packet's own addresses: what is
// between nodes and for many on a link, and the tunnel's outer packets.
func exemptHosts(f table.Family, s *nodestate.State, verdict string) []string {
	const in, out = "$ip saddr @" + expr.SetNodes + " $ip daddr @" + expr.SetOwn + " ", "$ip saddr @" + expr.SetOwn + " $ip daddr @" + expr.SetNodes + " "
	rules := []string{"udp dport $vxlan " + in + verdict, "udp dport $vxlan " + out + verdict}
	if f.TakesIPIP(s) {
		rules = append(rules, "meta l4proto 4 "+in+verdict, "meta l4proto 4 "+out+verdict)
	}
	if f.Six {
		return append(rules, "ip6 daddr { fe80::/10, ff00::/8 } "+verdict, "ip6 saddr { fe80::/10, ff00::/8 } "+verdict)
	}
	return append(rules, "fib daddr type { multicast, broadcast } "+verdict)
}

// strayHostRules drop what connection tracking has no idea of and the stack might act on, on nodes
// with host endpoints.
func strayHostRules(f table.Family, h HostRules) []string {
	if !h.HasEndpoints() {
		return nil
	}
	return []string{icmpErrors(f) + " return",
		"ct state invalid meta l4proto != { tcp, udp, sctp } $ip daddr @" + expr.SetOwn + " iifname != @" + expr.SetWorkloads + " iifname != " + ownDevices + " drop"}
}

// notInit is what an INIT of SCTP, which is alone in its packet (RFC 9260, 6.10), does not match:
// the first chunk's type.
const notInit = "@th,96,8 != 1"

// silently are the rules for postrouting.
func (h HostRules) silently() HostRules {
	h.in, h.out, h.toHostChain = h.silentIn, h.silentOut, h.toHostSilent
	return h
}

// interfaceChains are those that evaluate by the interfaces, of either direction; that of the
// return path ends with back.
func interfaceChains(f table.Family, s *nodestate.State, chain func(name string, rules ...string), h HostRules, name, toHost, back string) {
	rules := h.untrackedRules()
	if !h.forwarded {
		rules = append(rules, "ct mark and $led == $handed goto "+hostDoneChain) // this node is not where it goes
	}
	if h.toHostChain != "" {
		rules = append(rules, "ct original $ip saddr @"+expr.SetPods+" ct reply $ip saddr @"+expr.SetOwn+" goto "+toHost)
		if h.toHost == model.ToHostDrop {
			chain(toHost, "goto "+h.toHostChain)
		} else {
			chain(toHost, "jump "+h.toHostChain, "goto "+hostDoneChain)
		}
	}
	rules = append(rules, exemptHosts(f, s, "goto "+hostDoneChain)...)
	if anyChain(h.older) {
		rules = append(rules,
			// What opens a connection is none of one, whatever came before it with the same ports:
			// connection tracking lets it pass in the middle of what it took up.
			fmt.Sprintf("ct mark and %#x == 0 ct status and dnat == 0 ct state established tcp flags & (syn | ack) != syn jump %s", marks.EpochMask, olderChain),
			fmt.Sprintf("ct mark and %#x == 0 ct status and dnat == 0 ct state established meta l4proto sctp %s jump %s", marks.EpochMask, notInit, olderChain),
			fmt.Sprintf("ct mark and %#x == 0 ct state new tcp flags & (syn | ack) != syn jump %s", marks.EpochMask, olderChain))
	}
	rules = append(rules, "ct direction reply goto "+name+backSuffix)
	rules = append(rules, byInterface("iif", h.in)...)
	rules = append(rules, byInterface("oif", h.out)...)
	chain(name, append(rules, "goto "+hostDoneChain)...)
	chain(name+backSuffix, slices.Concat(byInterface("oif", h.in), byInterface("iif", h.out), []string{"goto " + back})...)
}

// openFlowRules inform the node's own processes of open connections that are denied, before they
// leave: postrouting only drops. They evaluate what is known to leave by the interface that is
// known here: no Service gave it another destination, and no mark another route. What is older than
// the tables is evaluated where it leaves.
func openFlowRules(f table.Family, s *nodestate.State, h HostRules) []string {
	rules := []string{
		"meta l4proto != tcp goto " + clearChain,
		"ct state != established goto " + clearChain,
		"tcp flags & (syn | rst) != 0 goto " + clearChain,
		fmt.Sprintf("ct mark and %#x == 0 goto %s", marks.EpochMask, clearChain),
		"ct direction original ct status dnat goto " + clearChain,
		"meta mark != 0 goto " + clearChain,
		"ct original $ip saddr @" + expr.SetPods + " ct reply $ip saddr @" + expr.SetOwn + " goto " + clearChain,
	}
	rules = append(rules, exemptHosts(f, s, "goto "+clearChain)...)
	for _, rule := range byInterface("oif", h.out) {
		rules = append(rules, "ct direction original "+rule)
	}
	for _, rule := range byInterface("oif", h.in) {
		rules = append(rules, "ct direction reply "+rule)
	}
	return append(rules, "goto "+clearChain)
}

// hostChains are those by which packets come to the chains of host endpoints.
func hostEndpointChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h HostRules) {
	if !h.any() {
		return
	}
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	back := hostDoneChain
	if h.beforeServices() {
		back = clearChain + "-yet" // the next packet of the original direction is evaluated before Services, too
		chain(back, "meta priority set none")
	}
	interfaceChains(f, s, chain, h, hostChain, toHostChain, back)
	if h.HasEndpoints() {
		interfaceChains(f, s, chain, h.silently(), leavesChain, leavesHost, back)
	}
	chain(hostDoneChain, "meta priority set none", "goto "+markChain)
	if !h.HasEndpoints() {
		return
	}
	untrackedChains(f, t, s, h)
	table.AddSet(f, t, mapHostVerdicts, table.Set{Key: "classid", Value: "verdict"})
	table.AddSet(f, t, mapHostSilent, table.Set{Key: "classid", Value: "verdict"})
	table.AddSet(f, t, mapTurned, table.Set{Key: "classid", Value: "verdict"})
	chain(olderChain, slices.Concat([]string{"ct original $ip saddr != @" + expr.SetOwn + " ct reply $ip saddr != @" + expr.SetOwn + " return"},
		byInterface("iif", h.older), byInterface("oif", h.older))...)
	// Not marked: the connection is asked about with each packet.
	chain(olderPassChain, "meta priority set none", "accept")
	base := func(name string, hook knftables.BaseChainHook, prio knftables.BaseChainPriority, rules ...string) {
		t.Chains[name] = table.Chain{Type: knftables.FilterType, Hook: hook, Priority: prio, Rules: expr.Expand(f, s, rules...)}
	}
	base(leavingChain, knftables.PostroutingHook, "srcnat-10", slices.Concat(
		[]string{"meta iif != 0 $ip saddr != @" + expr.SetOwn + " return", evaluated(epoch), expr.OwnFlow + "return", "ct state related,invalid,untracked return"},
		linkRules(f), []string{"goto " + leavesChain})...)
	if h.beforeServices() {
		var free []string
		if h.hasUntracked() {
			free = []string{"meta mark and " + marks.Hex(marks.UntrackedBit) + " != 0 return"}
		}
		invalid := "ct state invalid meta l4proto != tcp return" // see isPerPacket
		if h.forwarded {                                         // nothing is handed on
			invalid = "ct state invalid return"
		}
		base(beforeChain, knftables.PreroutingHook, "mangle+1", slices.Concat(free,
			[]string{"ct direction reply return", evaluated(epoch), "ct state related,untracked return", invalid, "iifname $tunnel return"},
			linkRules(f), exemptHosts(f, s, "return"), byInterface("iif", h.before), []string{"meta priority set none"})...)
	}
}
