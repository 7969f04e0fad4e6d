// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

const (
	RangesChain = "ranges" // may the source ask
)

// HandOnChain ends the choice for a flow that is handed on. What cannot be returns, and is
// translated.
const HandOnChain = "hand-on"

// pickName is the chain that chooses from a list.
func (p *port) pickName(l list) string {
	if l.number&HashList != 0 {
		return p.hashName(l)
	}
	name := fmt.Sprintf("pick-%d", len(l.slots))
	if l.number&HandList != 0 {
		name = fmt.Sprintf("pick-on-%d", len(l.slots))
	}
	if a := p.affinity(); a > 0 {
		name += fmt.Sprintf("-for-%d", a)
	}
	return name
}

// chains are those that a port's lists choose by, with their rules.
func (v *Follower) chains(p *port) map[string][]string {
	out := map[string][]string{}
	for _, l := range p.lists() {
		switch {
		case len(l.slots) == 0:
		case l.number&HashList != 0:
			out[p.pickName(l)] = hashRules(v.f, l, len(p.table), p.affinity())
		default:
			out[p.pickName(l)] = pickRules(v.f, len(l.slots), p.affinity(), l.number&HandList != 0)
		}
	}
	return out
}

// pickRules choose one of n backends of the list whose number is the packet's priority. The new
// flow's ct mark holds the slot meanwhile. With affinity the backend that the client had last is
// taken again while it is live; the ct mark holds its number. With handOn a flow whose backend is
// on another node is not translated: its ct mark becomes that node's.
func pickRules(f table.Family, n int, affinity uint32, handOn bool) []string {
	const tr = "meta l4proto { tcp, udp, sctp } dnat $ip to meta priority . ct mark map @"
	random := fmt.Sprintf("ct mark set numgen random mod %d", n)
	var rules []string
	if handOn {
		rules = append(rules, "jump "+HandOnChain)
	}
	if affinity == 0 {
		rules = slices.Concat([]string{random}, rules, []string{tr + MapBackends})
	} else {
		client := "meta priority . " + clientExpression(f)
		remember := fmt.Sprintf("update @%s { %s timeout %ds : ct mark }", MapAffinity, client, affinity)
		known := "ct mark set " + client + " map @" + MapAffinity
		live := []string{known + " " + remember + " " + tr + MapLive}
		if handOn {
			live = []string{known + " " + remember + " jump " + HandOnChain, known + " " + tr + MapLive}
		}
		// Where the set is full the rule that remembers ends, and the flow goes on all the same.
		rules = slices.Concat(live, []string{
			fmt.Sprintf("delete @%s { %s : ct mark }", MapAffinity, client),
			random,
			"ct mark set meta priority . ct mark map @" + MapSlots,
			remember,
		}, rules, []string{tr + MapLive})
	}
	for i, r := range rules {
		rules[i] = strings.ReplaceAll(r, "$ip", f.Words().IP)
	}
	return rules
}

// clientExpression is what a client with affinity is known by. An address of IPv6 does not fit
// next to the number of the list (nft before 1.0.8 gives a map's value to the registers of a key of
// more than 16 bytes), so it is hashed.
func clientExpression(f table.Family) string {
	if f.Six {
		return "jhash ip6 saddr mod 4294967295 seed 0x57656972"
	}
	return "ip saddr"
}

// AffinitySet is the set of clients with affinity, of a family.
func AffinitySet(f table.Family) table.Set {
	s := table.Set{Key: "classid . ipv4_addr", Value: "mark", Learned: true, Size: affinitySize}
	if f.Six { // a number of no named type
		s.Key, s.Value, s.TypeOf = "meta priority . numgen random mod 65536", "ct mark", true
	}
	return s
}

// SetNames are those whose elements services follows, or packets add.
var SetNames = map[string]bool{
	MapServices: true, MapServicesOutside: true, MapPorts: true, MapPortsOutside: true, MapHostPorts: true, MapLoopback: true, SetPortsLocal: true,
	MapLists: true, MapRanged: true, MapBackends: true, MapSlots: true, MapLive: true, MapRemote: true, MapAffinity: true, SetRanges: true,
	MapRefused: true, MapRefusedPorts: true, expr.SetDirect: true,
}
