package nft

import (
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Policies with doNotTrack judge each packet by itself, by its own addresses and ports: what comes in before connection tracking, what begins in the
// node where it is sent, and once more where it leaves when a Service gave it another destination. What they allow has freeBit in its mark, and no
// other policy of host endpoints asks about it; it is tracked all the same, because what is for a Service, or answers what was translated, has
// to be, and that is not known before.
const (
	freeBit = 0x40000000 // of packet marks; before admit, of a first packet for a Service, it is handedBit

	aloneChain        = "alone"
	aloneSentChain    = "alone-sent"
	aloneLeavingChain = "alone-leaving"
	aloneAllowedChain = "alone-allowed"
	freeChain         = "free"
)

// knowsNoConnections reports whether a set judges each packet by itself.
func knowsNoConnections(why reason.Reason) bool {
	return why == reason.UntrackedIngress || why == reason.UntrackedEgress
}

// byItself reports whether a set judges packets by their own addresses and ports, not by those of their flow. That with preDNAT does so, too: before
// Services both are the same, and of TCP that is handed on and answered straight connection tracking sees one half, and takes most of it for invalid.
func byItself(why reason.Reason) bool { return why == reason.HostPreDNAT || knowsNoConnections(why) }

// aloneChains are those of policies with doNotTrack; nothing of it is there without them.
func (f family) aloneChains(t *Table, s *nodestate.State, h hostRules) {
	if !h.judgesAlone() {
		return
	}
	base := func(name string, hook knftables.BaseChainHook, prio knftables.BaseChainPriority, rules ...string) {
		t.Chains[name] = Chain{Type: knftables.FilterType, Hook: hook, Priority: prio, Rules: f.rules(s, rules...)}
	}
	f.set(t, mapAlone, Set{Key: "classid", Value: "verdict"})
	const end = "meta priority set none" // the numbers of the look-ups
	// What came out of somebody's tunnel may have the mark of the outer packet.
	unmarked := []string{"meta mark and " + hex(freeBit) + " != 0 meta mark set meta mark and " + hex(^uint32(freeBit))}
	base(aloneChain, knftables.PreroutingHook, "raw+1", slices.Concat(
		unmarked, f.linkRules(), []string{"iifname $tunnel return"}, f.unjudgedHosts("return"), byInterface("iif", h.aloneIn), []string{end})...)
	base(aloneSentChain, knftables.OutputHook, "raw+1", slices.Concat(
		[]string{ownSocket + "return"}, unmarked, f.linkRules(), []string{"oifname $tunnel return"}, f.unjudgedHosts("return"), byInterface("oif", h.aloneOut), []string{end})...)
	base(aloneLeavingChain, knftables.PostroutingHook, "srcnat-11", slices.Concat(
		[]string{"meta iif != 0 return", "ct direction reply return", "ct status and dnat == 0 return", "oifname $tunnel return"},
		f.unjudgedHosts("return"), byInterface("oif", h.aloneOut), []string{end})...)
	t.Chains[aloneAllowedChain] = Chain{Rules: []string{"meta mark set meta mark or " + hex(freeBit)}}
	// The connection is not marked as judged: its next packet may come by itself again, or may not.
	t.Chains[freeChain] = Chain{Rules: []string{end, "accept"}}
}

// judgesAlone reports whether there are policies with doNotTrack.
func (h hostRules) judgesAlone() bool { return judgeSomething(h.aloneIn) || judgeSomething(h.aloneOut) }

// freeRules let pass what policies with doNotTrack allow: of the node's own processes, and of what it routes.
func (h hostRules) freeRules() []string {
	if !h.judgesAlone() {
		return nil
	}
	const own = "ct status and dnat == 0 ct original $ip saddr != @" + setPods + " ct reply $ip saddr != @" + setPods + " "
	rules := []string{"meta mark and " + hex(freeBit) + " != 0 " + own + "goto " + freeChain}
	if judgeSomething(h.older) {
		// The answer to what came by itself, and is not allowed so, may be what the node may send.
		rules = append(rules, "ct direction reply ct mark and "+hex(epochMask)+" == 0 "+own+"jump "+olderChain)
	}
	return rules
}
