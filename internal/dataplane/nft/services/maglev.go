// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/maglev"
)

// Consistent hashing: the frontends of a Service that asks for it lead to lists of their
// own, whose numbers have HashList in addition to the other bits. Their chains choose a slot by the
// hash of the client instead of at random; in the slot of the Maglev table, which is under the list
// of all backends alone, is a backend's number. What is chosen so is below, as of Services with
// affinity, in MapLive and MapRemote.

// MaxHashed is up to how many backends consistent hashing is done: with more the table would be of
// 100,003 elements or more, which one transaction has to write.
const MaxHashed = 100

// plan computes the table when the backends are others than before; there is none where nothing
// asks for it, or too many.
func (p *port) plan(before []netip.AddrPort) {
	hashed := false
	for _, svc := range p.faces {
		hashed = hashed || svc.Maglev
	}
	if !hashed || len(p.cluster) > MaxHashed {
		p.table, p.numbers = nil, nil
		return
	}
	all := slices.Clone(p.cluster)
	for _, b := range p.local { // that terminate here are in no other list
		if !slices.Contains(all, b) {
			all = append(all, b)
		}
	}
	p.numbers = map[netip.AddrPort]uint32{}
	for i, n := range backendNumbers(all) {
		p.numbers[all[i]] = n
	}
	if p.table != nil && sameMembers(before, p.cluster) {
		return
	}
	p.table = []netip.AddrPort{}
	for _, i := range maglev.Table(p.cluster) {
		p.table = append(p.table, p.cluster[i])
	}
}

func sameMembers(a, b []netip.AddrPort) bool {
	if len(a) != len(b) {
		return false
	}
	in := make(map[netip.AddrPort]bool, len(a))
	for _, x := range a {
		in[x] = true
	}
	for _, x := range b {
		if !in[x] {
			return false
		}
	}
	return true
}

// hashed reports whether frontends that ask for it choose by the table.
func (p *port) hashed() bool { return p.table != nil }

// hashLists are the lists of frontends that choose by the table: of clients outside, whom another
// node handed on, and of all others.
func (p *port) hashLists() []list {
	return []list{{p.number | HashList, p.cluster}, {p.number | HashList | LocalList, p.local}, {p.number | HashList | HandList, p.cluster}}
}

// hashElements adds the elements of one of these lists but for the table.
func (v *Follower) hashElements(p *port, l list, out map[elementKey]string) {
	n := listText(l.number)
	if l.number&HandList != 0 {
		return // it chooses from the list without
	}
	for slot, b := range l.slots {
		id := p.numbers[b]
		if l.number&LocalList != 0 { // where the hash leads to none of them
			out[elementKey{MapSlots, table.Key(n, slot)}] = fmt.Sprint(id)
		}
		out[elementKey{MapLive, table.Key(n, id)}] = table.Key(b.Addr(), b.Port())
		if home := p.remote[b]; home > 0 && l.number&LocalList == 0 {
			out[elementKey{MapRemote, table.Key(n, id)}] = fmt.Sprint(uint32(home)<<marks.NodeShift | marks.HandedBit)
		}
	}
}

// tableSlot is a slot of a Maglev table in the kernel.
type tableSlot struct{ list, backend uint32 }

// tableOf is what is in each slot of a port's table.
func (p *port) tableOf() []tableSlot {
	if p.number == 0 || len(p.faces) == 0 {
		return nil
	}
	out := make([]tableSlot, len(p.table))
	for i, b := range p.table {
		out[i] = tableSlot{p.number | HashList, p.numbers[b]}
	}
	return out
}

// updateSlots desires the slots that differ.
func updateSlots(before, after []tableSlot, to Sink) {
	at := func(s tableSlot, i int) string { return table.Key(listText(s.list), i) }
	for i, s := range before {
		if i >= len(after) || after[i].list != s.list {
			to.Unset(MapSlots, at(s, i))
		}
	}
	for i, s := range after {
		if i >= len(before) || before[i] != s {
			to.Set(MapSlots, at(s, i), fmt.Sprint(s.backend))
		}
	}
}

// hashName is the chain that chooses from a list by its table.
func (p *port) hashName(l list) string {
	name := fmt.Sprintf("pick-hash-%d", len(p.table))
	switch {
	case l.number&HandList != 0:
		name = fmt.Sprintf("pick-hash-on-%d", len(p.table))
	case l.number&LocalList != 0:
		name = fmt.Sprintf("pick-hash-here-%d-%d", len(p.table), len(l.slots))
	}
	if a := p.affinity(); a > 0 {
		name += fmt.Sprintf("-for-%d", a)
	}
	return name
}

// hashRules choose from a list by a table of so many slots. The new flow's ct mark holds the slot
// meanwhile, and then the backend's number. Clients with affinity are remembered under the list
// without HandList.
func hashRules(f table.Family, l list, slots int, affinity uint32) []string {
	const tr = "meta l4proto { tcp, udp, sctp } dnat $ip to meta priority . ct mark map @" + MapLive
	const chosen = "ct mark set meta priority . ct mark map @" + MapSlots
	const other = "tcp flags & (fin | syn | rst | ack) != syn drop" // only what is handed on may begin in the middle
	hash := []string{"ct mark set " + maglev.Expression(f.Words().IP, affinity > 0, slots), chosen}
	client := "meta priority . " + clientExpression(f)
	remember, forget := []string(nil), []string(nil)
	known := "ct mark set " + client + " map @" + MapAffinity
	if affinity > 0 {
		remember = []string{fmt.Sprintf("update @%s { %s timeout %ds : ct mark }", MapAffinity, client, affinity)}
		forget = []string{fmt.Sprintf("delete @%s { %s : ct mark }", MapAffinity, client)}
	}
	var rules []string
	switch {
	case l.number&HandList != 0:
		rules = []string{fmt.Sprintf("meta priority set meta priority and %#x", ^uint32(HandList))}
		// Which node is asked may change (follow): the answers go by that one.
		end := []string{other, "$ip daddr != @" + expr.SetOwn + " meta mark set meta mark or " + marks.Hex(marks.TunnelBit), tr}
		if affinity > 0 {
			rules = append(rules, known+" "+remember[0]+" jump "+HandOnChain, known+" "+other, known+" "+end[1], known+" "+tr)
		}
		rules = slices.Concat(rules, forget, hash, remember, []string{"jump " + HandOnChain}, end)
	case l.number&LocalList != 0:
		if affinity > 0 {
			rules = []string{known + " " + remember[0] + " " + tr}
		}
		rules = slices.Concat(rules, forget, []string{fmt.Sprintf("meta priority set meta priority and %#x", ^uint32(LocalList))}, hash,
			[]string{fmt.Sprintf("meta priority set meta priority or %#x", LocalList)}, remember, []string{tr}, forget,
			[]string{fmt.Sprintf("ct mark set numgen random mod %d", len(l.slots)), chosen}, remember, []string{tr})
	default:
		if affinity > 0 {
			rules = []string{known + " " + remember[0] + " " + tr}
		}
		rules = slices.Concat(rules, forget, hash, remember, []string{tr})
	}
	for i, r := range rules {
		rules[i] = strings.ReplaceAll(r, "$ip", f.Words().IP)
	}
	return rules
}

// numbersOf are those of a list's backends, by slot.
func (p *port) numbersOf(l list) []uint32 {
	if l.number&HashList == 0 {
		return backendNumbers(l.slots)
	}
	out := make([]uint32, len(l.slots))
	for i, b := range l.slots {
		out[i] = p.numbers[b]
	}
	return out
}
