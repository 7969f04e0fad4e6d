// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// slots is how many parts the flows of a list of gateways are cut into by a hash. Each gateway of
// GatewaysMost has some 16.
const slots = 128

// Render makes the chains and elements that follow who leaves by which gateways. translate are the
// rules that give a flow an address as its source.
func Render(f table.Family, t *table.Table, s *nodestate.State, nodes *marks.Numbers, translate func(to netip.Addr) []string) {
	if !s.Settings.Gateways {
		return
	}
	r := renderer{f: f, t: t, s: s, nodes: nodes, own: ownNumbers(f, s), groups: groupNumbers(s)}
	for a, v := range s.Addrs {
		if f.Has(a) && v.Kind == nodestate.AddrEndpoint && v.Gateways {
			t.Add(expr.SetGateways, a.String(), "")
		}
	}
	r.policies()
	for a, number := range r.own {
		name := fromPrefix + strings.TrimPrefix(ByChain(a), byPrefix)
		r.chain(name, translate(source(f, s, a))...)
		t.Add(mapSources, strconv.Itoa(number<<marks.NodeShift), "goto "+name)
	}
	for k, list := range s.Gateways {
		if n, ok := r.groups[k.Group]; ok && f.Has(k.Client) {
			t.Add(mapLists, table.Key(k.Client, group(n)), "goto "+r.list(list))
		}
	}
}

type renderer struct {
	f      table.Family
	t      *table.Table
	s      *nodestate.State
	nodes  *marks.Numbers
	own    map[netip.Addr]int // numbers of the gateways on this node
	groups map[nodestate.GatewayGroup]uint32
}

func (r *renderer) chain(name string, rules ...string) {
	r.t.Chains[name] = table.Chain{Rules: expr.Expand(r.f, r.s, rules...)}
}

// ownNumbers numbers the gateways on this node. A number is made of the address, so that one that
// comes or goes takes no other's.
func ownNumbers(f table.Family, s *nodestate.State) map[netip.Addr]int {
	var all []netip.Addr
	for _, list := range s.Gateways {
		for _, g := range list {
			if f.Has(g) && s.Addrs[g].Kind == nodestate.AddrEndpoint {
				all = append(all, g)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	out, taken := map[netip.Addr]int{}, map[int]bool{}
	for _, g := range slices.Compact(all) {
		if len(taken) == marks.MaxNodes {
			break // those left lead nobody out
		}
		n := int(table.Hash32(g.AsSlice()))%marks.MaxNodes + 1
		for taken[n] {
			n = n%marks.MaxNodes + 1
		}
		out[g], taken[n] = n, true
	}
	return out
}

// groupNumbers numbers the groups of a state, by their own numbers.
func groupNumbers(s *nodestate.State) map[nodestate.GatewayGroup]uint32 {
	out := map[nodestate.GatewayGroup]uint32{nodestate.GroupAnnotations: annotationGroup, nodestate.GroupDirect: directGroup}
	known := map[nodestate.GatewayGroup]bool{}
	for _, g := range s.Egress.Rules {
		known[g] = true
	}
	taken := map[uint32]bool{}
	for _, g := range slices.Sorted(maps.Keys(known)) {
		if g < nodestate.GroupFirst {
			continue
		}
		n := max(uint32(g)^uint32(g>>32), firstGroup)
		for taken[n] {
			n = max(n+1, firstGroup)
		}
		out[g], taken[n] = n, true
	}
	return out
}

// policies makes what finds the group of a destination, for clients that have a policy.
func (r *renderer) policies() {
	rules := map[nodestate.EgressPolicyID]table.ValuedPrefixes{}
	for to, g := range r.s.Egress.Rules {
		if n, ok := r.groups[g]; ok && r.f.Has(to.CIDR.Addr()) {
			rules[to.Policy] = append(rules[to.Policy], table.ValuedPrefix{Prefix: to.CIDR.Masked(), Value: "goto " + r.group(n)})
		}
	}
	for client, id := range r.s.Egress.Policies {
		if !r.f.Has(client) {
			continue
		}
		name := policyName(id)
		r.t.Add(mapPolicies, client.String(), "goto "+name)
		if _, there := r.t.Chains[name]; there {
			continue
		}
		var parts []string
		for _, p := range rules[id].Disjoint() {
			if p.Prefix.Bits() == 0 { // nft has no such prefix; there is no other one then
				parts = nil
				r.chain(name, p.Value)
				break
			}
			parts = append(parts, table.PrefixText(p.Prefix)+" : "+p.Value)
		}
		if len(parts) > 0 {
			r.chain(name, "$ip daddr vmap { "+strings.Join(parts, ", ")+" }")
		} else if _, all := r.t.Chains[name]; !all {
			r.chain(name, "return") // nothing leaves
		}
	}
}

func (r *renderer) group(n uint32) string {
	name := fmt.Sprintf("%s%08x", groupPrefix, n)
	r.chain(name, "meta priority set "+group(n))
	return name
}

// candidate is a gateway that flows may have.
type candidate struct {
	addr netip.Addr
	by   string // its chain
}

// list makes the chains of a list of gateways: of a flow that begins it gives each part to one of
// them, and an open one returns where it has one of them.
func (r *renderer) list(list []netip.Addr) string {
	var all []candidate
	var onNodes, here []string
	for _, g := range list {
		by := ByChain(g)
		if number, own := r.own[g]; own {
			r.chain(by, fmt.Sprintf("ct mark set %#x", mark(number, false)), "meta mark set meta mark and $rest accept")
			here = append(here, source(r.f, r.s, g).String())
		} else if number, ok := r.nodes.Of(r.s.HomeOf(g)); ok {
			m := mark(number, true)
			r.chain(by, fmt.Sprintf("ct mark set %#x", m), "meta mark set ct mark and $goal or $routed accept")
			onNodes = append(onNodes, marks.Hex(m))
		} else {
			continue // no packet finds its node
		}
		all = append(all, candidate{g, by})
	}
	// A flow that begins has its source yet; it got its gateway just now.
	stay := []string{"ct status and confirmed == 0 return"}
	if len(onNodes) > 0 {
		stay = append(stay, fmt.Sprintf("ct mark and %#x { %s } return", uint32(marks.EgressBits|marks.TunnelBit|marks.NodeMask), strings.Join(unique(onNodes), ", ")))
	}
	if len(here) > 0 {
		stay = append(stay, "ct mark and $through == 0 ct reply $ip daddr { "+strings.Join(unique(here), ", ")+" } return")
	}
	stay = append(stay, "goto "+Drop)
	stayName := fmt.Sprintf("%s%016x", stayPrefix, table.Hash(stay...))
	r.chain(stayName, stay...)
	rules := append([]string{"meta priority set none", led + "goto " + stayName}, share(all)...)
	name := fmt.Sprintf("%s%016x", listPrefix, table.Hash(rules...))
	r.chain(name, rules...)
	return name
}

func unique(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// share are the rules that give a flow that begins one of some gateways, by a hash of its ends.
func share(all []candidate) []string {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return []string{"goto " + all[0].by}
	}
	parts := make([]string, slots)
	for i := range parts {
		parts[i] = fmt.Sprintf("%d : goto %s", i, best(i, all).by)
	}
	of := fmt.Sprintf(" mod %d seed 0x1 vmap { %s }", slots, strings.Join(parts, ", "))
	return []string{
		"$ports jhash $ip saddr . $ip daddr . th sport . th dport" + of,
		"jhash $ip saddr . $ip daddr" + of,
	}
}

// best is the gateway of a part: of those that there are the one that suits it most, so that one
// that comes or goes takes no part from one of the others to another of these.
func best(slot int, all []candidate) (out candidate) {
	var most [sha256.Size]byte
	for i, c := range all {
		if suits := sha256.Sum256(append(c.addr.AsSlice(), byte(slot))); i == 0 || slices.Compare(suits[:], most[:]) > 0 {
			out, most = c, suits
		}
	}
	return out
}
