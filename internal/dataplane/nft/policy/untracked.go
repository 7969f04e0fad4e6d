// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Policies with doNotTrack evaluate each packet by itself, by its own addresses and ports: what
// comes in before connection tracking, what begins in the node where it is sent, and once more
// where it leaves when a Service gave it another destination. What they allow has UntrackedBit in
// its mark, and no other policy of host endpoints asks about it; it is tracked all the same,
// because what is for a Service, or answers what was translated, has to be, and that is not known
// before.
const (
	untrackedChain        = "alone"
	untrackedSentChain    = "alone-sent"
	untrackedLeavingChain = "alone-leaving"
	untrackedAllowedChain = "alone-allowed"
	untrackedAcceptChain  = "free"
)

// isUntracked reports whether a set evaluates each packet by itself.
func isUntracked(why reason.Reason) bool {
	return why == reason.UntrackedIngress || why == reason.UntrackedEgress
}

// isPerPacket reports whether a set evaluates packets by their own addresses and ports, not by
// those of their flow. That with preDNAT does so, too: before Services both are the same, and of
// TCP that is handed on and answered directly connection tracking sees one half, and takes most of
// it for invalid.
func isPerPacket(why reason.Reason) bool { return why == reason.HostPreDNAT || isUntracked(why) }

// untrackedChains are those of policies with doNotTrack; nothing of it is there without them.
func untrackedChains(f table.Family, t *table.Table, s *nodestate.State, h HostRules) {
	if !h.hasUntracked() {
		return
	}
	base := func(name string, hook knftables.BaseChainHook, prio knftables.BaseChainPriority, rules ...string) {
		t.Chains[name] = table.Chain{Type: knftables.FilterType, Hook: hook, Priority: prio, Rules: expr.Expand(f, s, rules...)}
	}
	table.AddSet(f, t, mapUntracked, table.Set{Key: "classid", Value: "verdict"})
	const end = "meta priority set none" // the numbers of the look-ups
	// What came out of somebody's tunnel may have the mark of the outer packet.
	unmarked := []string{"meta mark and " + marks.Hex(marks.UntrackedBit) + " != 0 meta mark set meta mark and " + marks.Hex(^uint32(marks.UntrackedBit))}
	base(untrackedChain, knftables.PreroutingHook, "raw+1", slices.Concat(
		unmarked, linkRules(f), []string{"iifname $tunnel return"}, exemptHosts(f, s, "return"), byInterface("iif", h.untrackedIn), []string{end})...)
	base(untrackedSentChain, knftables.OutputHook, "raw+1", slices.Concat(
		[]string{expr.OwnSocket + "return"}, unmarked, linkRules(f), []string{"oifname $tunnel return"}, exemptHosts(f, s, "return"), byInterface("oif", h.untrackedOut), []string{end})...)
	base(untrackedLeavingChain, knftables.PostroutingHook, "srcnat-11", slices.Concat(
		[]string{"meta iif != 0 return", "ct direction reply return", "ct status and dnat == 0 return", "oifname $tunnel return"},
		exemptHosts(f, s, "return"), byInterface("oif", h.untrackedOut), []string{end})...)
	t.Chains[untrackedAllowedChain] = table.Chain{Rules: []string{"meta mark set meta mark or " + marks.Hex(marks.UntrackedBit)}}
	// The connection is not marked as evaluated: its next packet may come by itself again, or may
	// not.
	t.Chains[untrackedAcceptChain] = table.Chain{Rules: []string{end, "accept"}}
}

// hasUntracked reports whether there are policies with doNotTrack.
func (h HostRules) hasUntracked() bool { return anyChain(h.untrackedIn) || anyChain(h.untrackedOut) }

// untrackedRules let pass what policies with doNotTrack allow: of the node's own processes, and of
// what it routes.
func (h HostRules) untrackedRules() []string {
	if !h.hasUntracked() {
		return nil
	}
	const own = "ct status and dnat == 0 ct original $ip saddr != @" + expr.SetPods + " ct reply $ip saddr != @" + expr.SetPods + " "
	rules := []string{"meta mark and " + marks.Hex(marks.UntrackedBit) + " != 0 " + own + "goto " + untrackedAcceptChain}
	if anyChain(h.older) {
		// The answer to what came by itself, and is not allowed so, may be what the node may send.
		rules = append(rules, "ct direction reply ct mark and "+marks.Hex(marks.EpochMask)+" == 0 "+own+"jump "+olderChain)
	}
	return rules
}
