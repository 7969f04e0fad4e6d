// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Class is a set of atoms that are true of some addresses and no others.
type Class struct {
	Atoms []*Atom         // sorted by index
	ID    nodestate.Class // its number

	text  string
	users int // addresses and regions that are in it
}

func (c *Class) has(a *Atom) bool {
	_, found := slices.BinarySearchFunc(c.Atoms, a.Index, func(x *Atom, want int32) int { return int(x.Index - want) })
	return found
}

// PortSpans returns the ports that the peers of a class call by a name.
func (c *Class) PortSpans(n port.Name, proto model.Protocol) []port.Span {
	if c == nil {
		return nil
	}
	var out []port.Span
	for _, a := range c.Atoms {
		if a.named != nil && *a.named == n && a.number.Proto == proto {
			out = append(out, port.Span{First: a.number.Port, Last: a.number.Port})
		}
	}
	return out
}

// Classes is the partition of addresses that the atoms make. It follows the atoms and the pods:
// what neither concerns is not looked at.
type Classes struct {
	OfAddrs        nodestate.Map[netip.Addr, nodestate.Class] // look-up 1, of the addresses of pods
	OfCIDRs        map[netip.Prefix]nodestate.Class           // and of all others
	Changed        bool                                       // classes came or went since asked
	Added, Removed []*Class                                   // which
	Renumbered     bool                                       // others have other numbers since asked

	byKey map[string]*Class // "" is not in it: class 0
	byID  map[nodestate.Class]*Class
	ids   *table.Ids[nodestate.Class]
	idle  map[*Class]struct{} // may have no users
	fresh []*Class            // have no number yet

	cidrs     *cluster.Prefixes[*Class] // of the regions between the boundaries of CIDRs; nil: class 0
	partition *cidrPartition
	replaced  map[netip.Addr]*Class       // the classes of addresses of pods that OfAddrs has not yet
	ofGroups  map[*model.PodGroup][]*Atom // what is true of groups that were asked about; see forget
	lived     int                         // groups that were left when those that are gone were taken out
	in        byNamespace                 // atoms to ask about a group; see forget

	atoms []*Atom // of the address that is being looked at
	key   []byte  // of the class that is being looked for
}

// NewClasses returns the classes of no atoms, which get their numbers by a digest of their texts.
func NewClasses(digest func(text string) nodestate.Class) *Classes {
	return &Classes{byKey: map[string]*Class{}, byID: map[nodestate.Class]*Class{}, ids: table.NewIDs(digest), idle: map[*Class]struct{}{},
		replaced: map[netip.Addr]*Class{}, ofGroups: map[*model.PodGroup][]*Atom{}, cidrs: cluster.NewPrefixes[*Class](), partition: newCIDRPartition(), OfCIDRs: map[netip.Prefix]nodestate.Class{}}
}

// Len is how many classes there are, class 0 not counted.
func (k *Classes) Len() int { return len(k.byKey) }

// All yields the classes but class 0.
func (k *Classes) All() iter.Seq[*Class] { return maps.Values(k.byKey) }

// TextSize is how long the texts of all classes are together.
func (k *Classes) TextSize() (n int) {
	for _, c := range k.byKey {
		n += len(c.text)
	}
	return n
}

// peer returns the class of an address of pods that some atom picks, nil of others.
func (k *Classes) peer(a netip.Addr) *Class {
	if c, is := k.replaced[a]; is {
		return c
	}
	if id, is := k.OfAddrs.Get(a); is {
		return k.byID[id]
	}
	return nil
}

// Update follows what became of the atoms, those that are gone among them, and of the pods at some
// addresses.
func (k *Classes) Update(pods *PodIndex, x *Atoms, gone []*Atom, at []netip.Addr) {
	touched := k.updateCIDRs(x, gone)
	k.forget(pods, len(x.added)+len(x.moved)+len(gone) > 0)
	again := make(map[*Atom]bool, len(x.added)+len(x.moved)+len(gone)) // atoms to evaluate again
	picked := map[*model.PodGroup][]*Atom{}                            // by those of them that are not gone
	ask := func(a *Atom) {
		again[a] = true
		pods.picked(a, func(g *model.PodGroup) {
			if of := picked[g]; len(of) == 0 || of[len(of)-1] != a {
				picked[g] = append(of, a)
			}
		})
	}
	for _, a := range x.added {
		ask(a)
	}
	for _, m := range x.moved {
		ask(m.Atom)
	}
	for _, a := range gone {
		again[a] = true
	}
	hit := map[*Class]bool{}
	for a := range again {
		for c := range a.Classes {
			hit[c] = true
		}
	}
	var others []netip.Addr
	if len(hit)+len(touched.Values) > 0 {
		for addr, id := range k.OfAddrs.All() {
			if hit[k.byID[id]] || touched.contains(addr) {
				others = append(others, addr)
			}
		}
	}
	for _, addr := range others {
		k.assign(addr, k.reclassify(pods, addr, picked, again))
	}
	for g := range picked {
		for addr := range pods.addrsIn(g) {
			k.assign(addr, k.reclassify(pods, addr, picked, again))
		}
	}
	for _, addr := range at {
		k.assign(addr, k.classify(pods, x, addr))
	}
	k.relabel(pods, x, pods.around.byNamespace, (*Atom).asksNamespaces)
	k.relabel(pods, x, pods.around.byAccount, (*Atom).asksAccounts)
	pods.around = relabelled{}
	k.updateRegions(touched)
	k.assignIDs(touched)
}

// forget drops what was found true of groups where that may have changed, and where most of the
// groups are gone.
func (k *Classes) forget(pods *PodIndex, atoms bool) {
	if atoms {
		k.in.clear()
	}
	if atoms || len(pods.around.byNamespace)+len(pods.around.byAccount) > 0 {
		clear(k.ofGroups)
		return
	}
	if len(k.ofGroups) > 2*k.lived+1024 {
		maps.DeleteFunc(k.ofGroups, func(g *model.PodGroup, _ []*Atom) bool { return g.Len() == 0 })
		k.lived = len(k.ofGroups)
	}
}

// reclassify returns the atoms of an address's class after some were evaluated again, of which
// picked has those that are true of groups; nil when no atom picks a pod there. Evaluating again
// what was evaluated changes nothing. The next call of it or of classify overwrites the list.
func (k *Classes) reclassify(pods *PodIndex, addr netip.Addr, picked map[*model.PodGroup][]*Atom, again map[*Atom]bool) []*Atom {
	of := k.atoms[:0]
	for r := range pods.at(addr) {
		of = append(of, picked[r.Group()]...)
	}
	some := len(of) > 0
	if was := k.peer(addr); was != nil {
		for _, a := range was.Atoms {
			if again[a] {
				continue
			}
			of = append(of, a)
			if !some && a.picksPods() {
				for r := range pods.at(addr) {
					some = some || a.trueOf(pods.c, r.Like())
				}
			}
		}
	}
	if !some {
		return nil
	}
	of = append(of, k.partition.at(netip.PrefixFrom(addr, addr.BitLen()))...)
	k.atoms = of
	return of
}

// classify returns the atoms that are true of an address by all that is known now; nil when none
// picks a pod there. The next call of it or of reclassify overwrites the list.
func (k *Classes) classify(pods *PodIndex, x *Atoms, addr netip.Addr) []*Atom {
	of := k.atoms[:0]
	for r := range pods.at(addr) {
		of = append(of, k.trueOf(pods, x, r.Group())...)
	}
	if len(of) == 0 {
		return nil
	}
	of = append(of, k.partition.at(netip.PrefixFrom(addr, addr.BitLen()))...)
	k.atoms = of
	return of
}

// trueOf returns the atoms that are true of the pods of a group.
func (k *Classes) trueOf(pods *PodIndex, x *Atoms, g *model.PodGroup) []*Atom {
	of, known := k.ofGroups[g]
	if !known {
		k.in.of(pods.c, x, g.Like.Name.Namespace, func(a *Atom) {
			if a.trueOf(pods.c, g.Like) {
				of = append(of, a)
			}
		})
		k.ofGroups[g] = of
	}
	return of
}

// relabel evaluates some atoms again for groups of pods around which labels changed.
func (k *Classes) relabel(pods *PodIndex, x *Atoms, groups map[*model.PodGroup]struct{}, asks func(*Atom) bool) {
	if len(groups) == 0 {
		return
	}
	again := map[*Atom]bool{}
	for _, a := range x.byText {
		if asks(a) {
			again[a] = true
		}
	}
	if len(again) == 0 {
		return
	}
	picked := map[*model.PodGroup][]*Atom{}
	ask := func(g *model.PodGroup) {
		if _, asked := picked[g]; !asked {
			var of []*Atom
			for a := range again {
				if a.trueOf(pods.c, g.Like) {
					of = append(of, a)
				}
			}
			picked[g] = of
		}
	}
	for g := range groups {
		for addr := range pods.addrsIn(g) {
			for at := range pods.at(addr) {
				ask(at.Group())
			}
			k.assign(addr, k.reclassify(pods, addr, picked, again))
		}
	}
}

// assign puts an address into the class of these atoms.
func (k *Classes) assign(addr netip.Addr, of []*Atom) {
	was, now := k.peer(addr), k.of(of)
	if was == now {
		return
	}
	k.swap(was, now)
	k.replaced[addr] = now
}

// swap moves a user from a class to another.
func (k *Classes) swap(was, now *Class) {
	if now != nil {
		now.users++
	}
	if was != nil {
		if was.users--; was.users == 0 {
			k.idle[was] = struct{}{}
		}
	}
}

// of interns the class of some atoms, which it sorts; nil is class 0.
func (k *Classes) of(atoms []*Atom) *Class {
	if len(atoms) == 0 {
		return nil
	}
	slices.SortFunc(atoms, func(a, b *Atom) int { return int(a.Index - b.Index) })
	atoms = slices.Compact(atoms)
	k.key = appendKey(k.key[:0], atoms)
	if c, ok := k.byKey[string(k.key)]; ok {
		return c
	}
	c := &Class{Atoms: slices.Clone(atoms)}
	texts := make([]string, 0, len(atoms))
	for _, a := range atoms {
		texts = append(texts, a.name())
		a.Classes[c] = struct{}{}
	}
	slices.Sort(texts)
	c.text = strings.Join(texts, "\n") + "\n"
	k.byKey[string(k.key)] = c
	k.fresh = append(k.fresh, c)
	k.idle[c] = struct{}{} // until it is used
	return c
}

// appendKey appends the key of the class of some atoms, sorted by index.
func appendKey(key []byte, atoms []*Atom) []byte {
	for _, a := range atoms {
		key = binary.BigEndian.AppendUint32(key, uint32(a.Index))
	}
	return key
}

// assignIDs gives new classes their numbers, forgets those without users, and writes the tables of
// look-up 1. A prefix is left out where the next longer region around it has the same class.
func (k *Classes) assignIDs(t *touched) {
	var gone, come []string
	for c := range k.idle {
		if c.users > 0 {
			continue
		}
		k.key = appendKey(k.key[:0], c.Atoms)
		delete(k.byKey, string(k.key))
		for _, a := range c.Atoms {
			delete(a.Classes, c)
		}
		if c.ID != 0 {
			gone = append(gone, c.text)
			k.Removed = append(k.Removed, c)
			delete(k.byID, c.ID)
		}
	}
	for _, c := range k.fresh {
		if c.users > 0 {
			come = append(come, c.text)
			k.Added = append(k.Added, c)
		}
	}
	renumbered := len(k.ids.Update(gone, come)) > 0
	of := k.fresh
	k.Renumbered = k.Renumbered || renumbered
	if renumbered { // two texts have one digest
		of = slices.Collect(maps.Values(k.byKey))
		for addr, id := range k.OfAddrs.All() {
			if _, is := k.replaced[addr]; !is {
				k.replaced[addr] = k.byID[id]
			}
		}
		clear(k.byID)
	}
	for _, c := range of {
		if c.ID = k.ids.ByText[c.text]; c.users > 0 {
			k.byID[c.ID] = c
		}
	}
	clear(k.idle)
	k.fresh, k.Changed = nil, k.Changed || len(gone)+len(come) > 0

	if k.OfAddrs.Len() == 0 {
		k.OfAddrs = nodestate.Collect(func(yield func(netip.Addr, nodestate.Class) bool) {
			for addr, c := range k.replaced {
				if c != nil && !yield(addr, c.ID) {
					return
				}
			}
		}, len(k.replaced))
		clear(k.replaced)
	}
	peers := k.OfAddrs.Edit()
	for addr, c := range k.replaced {
		if c != nil {
			peers.Set(addr, c.ID)
		} else {
			peers.Delete(addr)
		}
	}
	k.OfAddrs, k.replaced = peers.Map(), map[netip.Addr]*Class{}
	k.writeCIDRs(t, renumbered)
}
