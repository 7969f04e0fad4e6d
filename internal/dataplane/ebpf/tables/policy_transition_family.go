// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/delta"
	"github.com/weir-net/weir/internal/nodestate"
)

// surveySets notes the sets of endpoints: of those that were there and stay what becomes of them,
// of others what they are.
func (t *familyTables[A]) surveySets(s *survey) {
	note := func(to map[uint64]bool, v abi.AddrValue[A]) {
		for dir, iso := range [dirs]abi.WeirHostSide{{Set: v.IngressSet, Rule: v.IngressRule}, {Set: v.EgressSet, Rule: v.EgressRule}} {
			if iso.Set != 0 {
				to[iso.Set], s.rules[iso.Set] = true, iso.Rule
				s.users[iso.Set] |= 1 << dir
			}
		}
	}
	for a, v := range t.addrs.Tracker.All() {
		if v.Kind != endpointKind {
			continue
		}
		note(s.old, v)
		if is, ok := t.addrs.Tracker.Desired(a); ok && is.Kind == v.Kind {
			note(s.new, is)
			s.noteSet(dirIngress, change{v.IngressSet, is.IngressSet})
			s.noteSet(dirEgress, change{v.EgressSet, is.EgressSet})
		}
	}
	for a, v := range t.addrs.Tracker.Writes() {
		if was, ok := t.addrs.Tracker.Actual(a); v.Kind == endpointKind && (!ok || was.Kind != v.Kind) {
			note(s.new, v)
		}
	}
}

const endpointKind = uint8(nodestate.AddrEndpoint)

// classesInUse and setsInUse are those that the maps hold.
func (t *familyTables[A]) classesInUse(in map[uint64]bool) {
	for _, class := range t.peers.Tracker.All() {
		in[class] = true
	}
	for _, class := range t.peerCIDRs.Tracker.All() {
		in[class] = true
	}
}

// holdsClass counts the addresses and prefixes whose class the maps say is this one.
func (t *familyTables[A]) holdsClass(class uint64) int {
	return t.peers.Tracker.Holds(class) + t.peerCIDRs.Tracker.Holds(class)
}

// classUses adds how much more often each class will be there after the pending changes.
func (t *familyTables[A]) classUses(more map[uint64]int) {
	noteUses(t.peers.Tracker, more)
	noteUses(t.peerCIDRs.Tracker, more)
}

func noteUses[K comparable](of *delta.Tracker[K, uint64], more map[uint64]int) {
	for k, class := range of.Writes() {
		if was, ok := of.Actual(k); ok {
			more[was]--
		}
		more[class]++
	}
	for k := range of.Deletes() {
		was, _ := of.Actual(k)
		more[was]--
	}
}

func (t *familyTables[A]) setsInUse(in map[uint64]bool) {
	for _, v := range t.addrs.Tracker.All() {
		in[v.IngressSet], in[v.EgressSet] = true, true
	}
}

// surveyClasses notes the classes that change, of addresses and of what lies between prefixes.
func (t *familyTables[A]) surveyClasses(s *survey) {
	if !t.peers.Pending() && !t.peerCIDRs.Pending() {
		return
	}
	c := t.classing()
	t.eachClass(
		func(p abi.PrefixKey[A], _ bool) { s.noteClass(c.wasIn(p), c.isIn(p), false) },
		func(a A, _ bool) { s.noteClass(c.was(a), c.is(a), false) })
	for a, v := range t.addrs.Tracker.All() {
		if is, ok := t.addrs.Tracker.Desired(a); ok && v.Kind == uint8(nodestate.AddrEndpoint) && is.Kind == v.Kind {
			s.noteClass(c.was(a), c.is(a), true)
		}
	}
}

// interimClasses gives what changes its class the one that stands for both, in via. What comes
// without one has the class that it was of: then all boundaries are there, and no address changes
// with another one. Prefixes that are to go stay until removeEvaluated. False: not all could be
// written.
func (t *familyTables[A]) interimClasses(via map[change]uint64) bool {
	c, made := t.classing(), true
	for _, changed := range []bool{false, true} {
		prefixes, addrs := map[abi.PrefixKey[A]]uint64{}, map[A]uint64{}
		prefix := func(p abi.PrefixKey[A], present bool) {
			was := c.wasIn(p)
			if class, ok := via[change{was, c.isIn(p)}]; ok && changed {
				prefixes[p] = class
			} else if !ok && !changed && !present {
				prefixes[p] = was
			}
		}
		addr := func(a A, present bool) {
			was := c.was(a)
			if class, ok := via[change{was, c.is(a)}]; ok && changed {
				addrs[a] = class
			} else if !ok && !changed && !present {
				addrs[a] = was
			}
		}
		t.eachClass(prefix, addr)
		for a, class := range addrs {
			made = t.peers.Interim(a, class) && made
		}
		for p, class := range prefixes {
			made = t.peerCIDRs.Interim(p, class) && made
		}
		if !made {
			break // not all boundaries are there
		}
	}
	return made
}

// eachClass walks the pending changes of look-up 1: of prefixes and of addresses, with whether the
// map has them.
func (t *familyTables[A]) eachClass(prefix func(abi.PrefixKey[A], bool), addr func(A, bool)) {
	for p := range t.peerCIDRs.Tracker.Writes() {
		_, present := t.peerCIDRs.Tracker.Actual(p)
		prefix(p, present)
	}
	for p := range t.peerCIDRs.Tracker.Deletes() {
		prefix(p, true)
	}
	for a := range t.peers.Tracker.Writes() {
		_, present := t.peers.Tracker.Actual(a)
		addr(a, present)
	}
	for a := range t.peers.Tracker.Deletes() {
		addr(a, true)
	}
}

// settleClasses gives what is to go the class of what is around it, so that nothing changes when it
// goes.
func (t *familyTables[A]) settleClasses() bool {
	c, made := t.classing(), true
	prefixes, addrs := map[abi.PrefixKey[A]]uint64{}, map[A]uint64{}
	for p := range t.peerCIDRs.Tracker.Deletes() {
		prefixes[p] = c.isIn(p)
	}
	for a := range t.peers.Tracker.Deletes() {
		addrs[a] = c.is(a)
	}
	for p, class := range prefixes {
		made = t.peerCIDRs.Interim(p, class) && made
	}
	for a, class := range addrs {
		made = t.peers.Interim(a, class) && made
	}
	return made
}

// changeClasses makes the changes of look-up 1 but for deletes, each address by itself.
func (t *familyTables[A]) changeClasses() bool {
	if !t.peerCIDRs.Pending() {
		return t.writeClasses()
	}
	return t.interimClasses(nil) && t.writeClasses() && t.settleClasses()
}

// interimSets gives the endpoints that were there and stay the sets between. False: not all have
// them.
func (t *familyTables[A]) interimSets(between func(dir int, c change) uint64, ready func(ingress, egress uint64) error) bool {
	now, made := map[A]abi.AddrValue[A]{}, true
	for a, v := range t.addrs.Tracker.All() {
		is, ok := t.addrs.Tracker.Desired(a)
		if !ok || v.Kind != endpointKind || is.Kind != v.Kind {
			continue
		}
		if !v.SameSets(is) && ready(is.IngressSet, is.EgressSet) != nil {
			made = false
			continue
		}
		in, out := between(dirIngress, change{v.IngressSet, is.IngressSet}), between(dirEgress, change{v.EgressSet, is.EgressSet})
		if in == v.IngressSet && out == v.EgressSet {
			continue
		}
		if ready(in, out) != nil {
			made = false
			continue
		}
		is.IngressSet, is.EgressSet = in, out
		now[a] = is
	}
	for a, v := range now {
		made = t.addrs.Interim(a, v) && made
	}
	return made
}

// observe calls a function after each change of the maps that policy is in, and one before each
// write, which may fail it.
func (t *familyTables[A]) observe(after func(), fail func() error) {
	t.addrs.After, t.peers.After, t.peerCIDRs.After = after, after, after
	t.addrs.Fail, t.peers.Fail, t.peerCIDRs.Fail = fail, fail, fail
}

// classing finds classes as look-up 1 does, by what the maps hold and by what they should hold.
type classing[A abi.Address] struct {
	t    *familyTables[A]
	lens []uint32 // of the prefixes that there are, longest first
}

func (t *familyTables[A]) classing() *classing[A] {
	c := &classing[A]{t: t}
	var has [129]bool
	for p := range t.peerCIDRs.Tracker.All() {
		has[p.Len] = true
	}
	for p := range t.peerCIDRs.Tracker.Writes() {
		has[p.Len] = true
	}
	for n := len(has) - 1; n >= 0; n-- {
		if has[n] {
			c.lens = append(c.lens, uint32(n))
		}
	}
	return c
}

func (c *classing[A]) was(a A) uint64 {
	if class, ok := c.t.peers.Tracker.Actual(a); ok {
		return class
	}
	return c.around(abi.FromAddr(a), 128, c.t.peerCIDRs.Tracker.Actual)
}

func (c *classing[A]) is(a A) uint64 {
	if class, ok := c.t.peers.Tracker.Desired(a); ok {
		return class
	}
	return c.around(abi.FromAddr(a), 128, c.t.peerCIDRs.Tracker.Desired)
}

func (c *classing[A]) wasIn(p abi.PrefixKey[A]) uint64 {
	return c.around(abi.FromAddr(p.Addr), p.Len, c.t.peerCIDRs.Tracker.Actual)
}

func (c *classing[A]) isIn(p abi.PrefixKey[A]) uint64 {
	return c.around(abi.FromAddr(p.Addr), p.Len, c.t.peerCIDRs.Tracker.Desired)
}

// around returns the class of the longest prefix, of most bits, that an address lies in.
func (c *classing[A]) around(a netip.Addr, most uint32, get func(abi.PrefixKey[A]) (uint64, bool)) uint64 {
	for _, n := range c.lens {
		if n > most {
			continue
		}
		p, err := a.Prefix(int(n))
		if err != nil {
			continue
		}
		if class, ok := get(abi.ToPrefix[A](p)); ok {
			return class
		}
	}
	return 0
}
