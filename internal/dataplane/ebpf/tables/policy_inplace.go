// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/nodestate"
)

// A set keeps its number when its rules change, so that a change of one of many rules writes what
// that rule decides. What is stored under the set and a class is then replaced where it is. Each
// port is by itself: first, everywhere, what is denied after the change is denied (narrow), then
// what is allowed after it is allowed (widen). So at each moment a look-up finds what was or what
// will be, and as nothing is allowed anew before all is narrow, two evaluations of one packet agree
// with one of the policies, too. What counts for each port before and after is asked at the
// prefixes of both: an entry that is added first says what counted at its place, and one that is
// removed says what will count there, until it is removed.

// inPlaceChange is what is stored under a set and a class that are used before and after a change,
// and becomes something else.
type inPlaceChange struct {
	at       setClass
	keys     []abi.WeirPolicyKey // of entries by destination port, without set and class, longest prefixes first
	was, is  finder
	narrowed target // allows what both do
	widened  target
	sources  verdicts // all that is to be, where the source port decides somewhere; else nil
	late     bool     // passAll is to be narrowed
	stuck    bool     // there are no numbers for the tables of source ports: it is narrowed, and to be tried again
}

// InPlaceChanges counts what turned into something else: by what is pending alone, after a look at
// all of it, and where source ports decide.
type InPlaceChanges struct{ Plain, Whole, Sources int }

// finder returns the verdict that counts for the ports of a key's prefix, or for headKey where
// there is no entry.
type finder func(abi.WeirPolicyKey) abi.WeirPolicyValue

// target is what a change in place is to say.
type target struct {
	find   finder
	tables verdicts // of source ports, which nothing leads to yet
	protos uint8    // bits of the head
	lens   uint32
	omit   func(abi.WeirPolicyKey) bool // an entry that is not there need not come; nil = every one comes
	final  bool                         // it is what the turn becomes
}

// bare is what a verdict says alongside where entries are.
func bare(v abi.WeirPolicyValue) abi.WeirPolicyValue {
	return abi.WeirPolicyValue{Rule: v.Rule, Verdict: v.Verdict, Sources: v.Sources}
}

func allowing(v abi.WeirPolicyValue) bool { return v.Verdict&abi.PolicyAllow != 0 }

// bare is find for turns.
func (v verdicts) bare(k abi.WeirPolicyKey) abi.WeirPolicyValue { return bare(v.find(k)) }

// finder looks up what is stored under a set and a class by what the map holds, or should hold.
func (h setClass) finder(get func(abi.WeirPolicyKey) (abi.WeirPolicyValue, bool)) finder {
	return func(k abi.WeirPolicyKey) abi.WeirPolicyValue {
		k = h.key(k)
		for n := int(k.Len); n >= 0 && k.Head == 0; n-- {
			k.Len, k.Port = uint8(n), nodestate.MaskPort(k.Port, uint8(n))
			if v, ok := get(k); ok {
				return bare(v)
			}
		}
		v, _ := get(h.key(headKey))
		return bare(v)
	}
}

// key completes a key.
func (h setClass) key(k abi.WeirPolicyKey) abi.WeirPolicyKey {
	k.Set, k.Peer = h.set, h.class
	return k
}

// pendingGroup is what is pending under a set and a class.
type pendingGroup struct {
	keys    []abi.WeirPolicyKey // of entries by destination port
	writes  bool
	fresh   bool     // passAll is to go or to change
	numbers []uint16 // of tables of source ports that are concerned
}

// pendingGroups collects what is pending under the sets that endpoints are to have, as far as it
// may be looked at before the change is over.
func (t *Node) pendingGroups(s *survey) map[setClass]*pendingGroup {
	out := map[setClass]*pendingGroup{}
	note := func(k abi.WeirPolicyKey, v abi.WeirPolicyValue, write, over bool) {
		at := setClass{k.Set, k.Peer}
		g := out[at]
		if g == nil {
			g = &pendingGroup{fresh: true}
			out[at] = g
		}
		g.writes = g.writes || write
		g.fresh = g.fresh && !over
		for _, n := range []uint16{k.Sources, v.Sources} {
			if n != 0 {
				g.numbers = append(g.numbers, n)
			}
		}
		if k.Head == 0 && k.Sources == 0 {
			k.Set, k.Peer = 0, 0 // twice does no harm
			g.keys = append(g.keys, k)
		}
	}
	stale := map[uint64]bool{} // sets that nobody has, of which something is left
	for k := range t.policy.Tracker.Deletes() {
		if _, interim := t.interims[k.Peer]; !interim && s.new[k.Set] {
			v, _ := t.policy.Tracker.Actual(k)
			note(k, v, false, true)
			stale[k.Set] = true
		}
	}
	if len(s.old) == 0 && len(stale) == 0 {
		return out
	}
	for k, v := range t.policy.Tracker.Writes() {
		if !s.new[k.Set] || !s.old[k.Set] && !stale[k.Set] {
			continue
		}
		if _, interim := t.interims[k.Peer]; !interim {
			was, over := t.policy.Tracker.Actual(k)
			note(k, was, true, over)
			note(k, v, true, over)
		}
	}
	return out
}

// inPlaceChanges returns what turns, that of classes of their own before that of everybody else.
func (t *Node) inPlaceChanges(s *survey) []*inPlaceChange {
	t.clearSources()
	groups := t.pendingGroups(s)
	if len(groups) == 0 {
		return nil
	}
	uses := map[uint64]int{} // of classes, what changes
	t.each(func(f Family) { f.classUses(uses) })
	used := func(class uint64) (before, after bool) {
		n := 0
		t.each(func(f Family) { n += f.holdsClass(class) })
		return n > 0 || class == 0, n+uses[class] > 0 || class == 0
	}
	var out []*inPlaceChange
	rest, whole := map[setClass]*pendingGroup{}, map[setClass]bool{}
	for at, g := range groups {
		before, after := used(at.class)
		if g.fresh && !(s.old[at.set] && before) || !g.writes && !after {
			continue // nobody looks at it while it comes or goes
		}
		if x := t.plainChange(at, g); x != nil {
			t.inPlaceCount.Plain++
			out = append(out, x)
			continue
		}
		rest[at] = g
		whole[at], whole[setClass{at.set, 0}] = true, true
	}
	if len(rest) > 0 {
		held := t.policyDiff(s, &transition{}, whole)
		for at, g := range rest {
			out = append(out, t.wholeChange(at, g, held))
		}
	}
	everybody := map[uint64]bool{}
	for _, x := range out {
		everybody[x.at.set] = everybody[x.at.set] || x.at.class == 0
	}
	for _, x := range out {
		x.late = x.late && !everybody[x.at.set]
	}
	slices.SortFunc(out, func(a, b *inPlaceChange) int {
		return cmp.Or(cmp.Compare(min(b.at.class, 1), min(a.at.class, 1)), cmp.Compare(a.at.set, b.at.set), cmp.Compare(a.at.class, b.at.class))
	})
	return out
}

// plainChange is a change in place of what has a head before and after, and is nowhere about source
// ports: only what is pending has to be looked at. nil: it is not so.
func (t *Node) plainChange(at setClass, g *pendingGroup) *inPlaceChange {
	_, had := t.policy.Tracker.Actual(at.key(headKey))
	head, has := t.policy.Tracker.Desired(at.key(headKey))
	if !had || !has || len(g.numbers) > 0 {
		return nil
	}
	x := &inPlaceChange{at: at, keys: g.keys, was: at.finder(t.policy.Tracker.Actual), is: at.finder(t.policy.Tracker.Desired)}
	for _, k := range append(slices.Clip(g.keys), headKey) {
		if x.was(k).Sources != 0 || x.is(k).Sources != 0 {
			return nil
		}
	}
	x.plain(head.Protos, head.Lens)
	x.narrowed.omit = func(k abi.WeirPolicyKey) bool { return !allowing(x.was(k)) && allowing(x.is(k)) }
	return x
}

// plain makes the targets of a change in place without source ports.
func (x *inPlaceChange) plain(protos uint8, lens uint32) {
	x.sort()
	// The verdicts are asked for once: the map changes under way.
	was, is := map[abi.WeirPolicyKey]abi.WeirPolicyValue{}, map[abi.WeirPolicyKey]abi.WeirPolicyValue{}
	x.late = true
	for _, k := range append(slices.Clip(x.keys), headKey) {
		was[k], is[k] = x.was(k), x.is(k)
		x.late = x.late && (allowing(is[k]) || !allowing(was[k]))
	}
	x.was, x.is = func(k abi.WeirPolicyKey) abi.WeirPolicyValue { return was[k] }, func(k abi.WeirPolicyKey) abi.WeirPolicyValue { return is[k] }
	x.narrowed = target{protos: protos, lens: lens, find: func(k abi.WeirPolicyKey) abi.WeirPolicyValue {
		if !allowing(was[k]) && allowing(is[k]) {
			return was[k]
		}
		return is[k]
	}}
	x.widened = target{protos: protos, lens: lens, find: x.is, final: true}
}

func (x *inPlaceChange) sort() {
	slices.SortFunc(x.keys, func(a, b abi.WeirPolicyKey) int {
		return cmp.Or(cmp.Compare(b.Len, a.Len), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	x.keys = slices.Compact(x.keys)
}

// wholeChange is a change in place of which all is looked at.
func (t *Node) wholeChange(at setClass, g *pendingGroup, held *policyDiff) *inPlaceChange {
	was, is := held.was(at.set, at.class), held.is(at.set, at.class)
	x := &inPlaceChange{at: at, keys: g.keys, was: was.bare, is: is.bare}
	numbers := g.numbers
	for _, of := range []verdicts{was, is} {
		for k, v := range of {
			if k.Sources|v.Sources != 0 {
				numbers = append(numbers, k.Sources, v.Sources)
			}
			if k.Head == 0 && k.Sources == 0 {
				x.keys = append(x.keys, k)
			}
		}
	}
	head := is[headKey]
	if len(numbers) == 0 {
		t.inPlaceCount.Whole++
		x.plain(head.Protos|was[headKey].Protos, head.Lens|was[headKey].Lens)
		return x
	}
	t.inPlaceCount.Sources++
	x.sort()
	x.sources = is
	x.narrowed = denyAll(held.rules[at.set]).target() // toBackend to no table, so that at the next try all numbers are free
	switch bases := freeBases(numbers); len(bases) {
	case 0:
		x.stuck = true
	case 1:
		x.widened = is.shift(bases[0]).target()
	default:
		x.narrowed, x.widened = intersect(was, is).shift(bases[0]).target(), is.shift(bases[1]).target()
	}
	return x
}

// clearSources deletes the tables of source ports that changes in place which failed have left, and
// that nothing leads to.
func (t *Node) clearSources() {
	type sources struct {
		at     setClass
		number uint16
	}
	left := map[sources]bool{}
	for k := range t.policy.Tracker.Deletes() {
		if k.Sources >= sourceBase {
			left[sources{setClass{k.Set, k.Peer}, k.Sources}] = true
		}
	}
	if len(left) == 0 {
		return
	}
	for k, v := range t.policy.Tracker.All() {
		delete(left, sources{setClass{k.Set, k.Peer}, v.Sources})
	}
	waitGrace()
	t.policy.Remove(func(k abi.WeirPolicyKey) error {
		if !left[sources{setClass{k.Set, k.Peer}, k.Sources}] {
			return maptable.ErrLater
		}
		return nil
	})
}

// Numbers of tables of source ports come in bases of this size: the lowest is that of a state's,
// others are for the time between.
const sourceBase = 1 << 13

// freeBases returns up to two bases of numbers that are not in use.
func freeBases(numbers []uint16) (out []uint16) {
	for base := sourceBase; base <= math.MaxUint16 && len(out) < 2; base += sourceBase {
		if !slices.ContainsFunc(numbers, func(n uint16) bool { return int(n)&^(sourceBase-1) == base }) {
			out = append(out, uint16(base))
		}
	}
	return out
}

// shift returns verdicts whose tables of source ports have other numbers, in a base.
func (v verdicts) shift(base uint16) verdicts {
	out := make(verdicts, len(v))
	move := func(n *uint16) {
		if *n != 0 {
			*n = *n&(sourceBase-1) | base
		}
	}
	for k, e := range v {
		move(&k.Sources)
		move(&e.Sources)
		out[k] = e
	}
	return out
}

// target makes verdicts a target.
func (v verdicts) target() target {
	out := target{find: v.bare, tables: verdicts{}, protos: v[headKey].Protos, lens: v[headKey].Lens}
	for k, e := range v {
		if k.Sources != 0 {
			out.tables[k] = e
		}
	}
	return out
}

// put makes the map hold a verdict until its pending change is made.
func (t *Node) put(at setClass, k abi.WeirPolicyKey, v abi.WeirPolicyValue) bool {
	if have, ok := t.policy.Tracker.Actual(at.key(k)); ok && have == v {
		return true
	}
	if t.graceDue {
		waitGrace()
		t.graceDue = false
	}
	if t.policy.Interim(at.key(k), v) {
		return true
	}
	if t.inPlaceErr == nil {
		t.inPlaceErr = t.policy.KeyError(at.key(k), errors.New("a change of policy waits for it"))
	}
	return false
}

// narrow denies what the turns deny after the change, and reports whether it is done.
func (t *Node) narrow(b *transition) bool {
	of := slices.DeleteFunc(slices.Clone(b.inPlace), func(x *inPlaceChange) bool { return x.late })
	return t.moveTo(of, func(x *inPlaceChange) *target { return &x.narrowed })
}

// widen makes the changes in place say what they are to say, and reports whether it is done.
func (t *Node) widen(b *transition) bool {
	for _, x := range b.inPlace {
		if x.stuck {
			t.inPlaceErr = t.policy.KeyError(x.at.key(headKey), errors.New("earlier writes failed, and left no number for another table of source ports: it is denied until the next try"))
			return false
		}
	}
	return t.moveTo(b.inPlace, func(x *inPlaceChange) *target { return &x.widened }) && t.settleSources(b)
}

// moveTo leads turns to their targets, those of everybody else after those of classes: peers of a
// class that has no verdicts of its own yet are evaluated by the former.
func (t *Node) moveTo(turns []*inPlaceChange, to func(*inPlaceChange) *target) bool {
	n := slices.IndexFunc(turns, func(x *inPlaceChange) bool { return x.at.class == 0 })
	if n < 0 {
		n = len(turns)
	}
	return t.moveAllTo(turns[:n], to) && t.moveAllTo(turns[n:], to)
}

// moveAllTo is lead for changes in place of which none depends on another. A program that has read
// a head looks at no entry of a length that came since, nor does one that looked for a longer
// prefix look again: so heads, entries that come, and others change one after the other, a grace
// apart.
func (t *Node) moveAllTo(turns []*inPlaceChange, to func(*inPlaceChange) *target) bool {
	defer func() { t.graceDue = false }()
	for _, step := range []func(*inPlaceChange, *target) bool{t.moveHead, t.moveAdded, t.movePresent} {
		before := t.policy.Written()
		for _, x := range turns {
			if !step(x, to(x)) {
				return false
			}
		}
		t.graceDue = t.graceDue || t.policy.Written() != before
	}
	return true
}

// moveHead writes the tables of source ports, and makes a head that is there send on to all entries
// before and after.
func (t *Node) moveHead(x *inPlaceChange, to *target) bool {
	for _, heads := range []uint8{0, 1} {
		for k, v := range to.tables {
			if k.Head == heads && !t.put(x.at, k, v) {
				return false
			}
		}
	}
	h, own := t.policy.Tracker.Actual(x.at.key(headKey))
	if !own {
		return true
	}
	h.Protos |= to.protos
	h.Lens |= to.lens
	return t.put(x.at, headKey, h)
}

// moveAdded writes the entries that come, the longest prefixes first: each counts for what no
// longer one is about.
func (t *Node) moveAdded(x *inPlaceChange, to *target) bool {
	_, own := t.policy.Tracker.Actual(x.at.key(headKey))
	for _, k := range x.keys {
		if _, there := t.policy.Tracker.Actual(x.at.key(k)); there || to.omit != nil && to.omit(k) {
			continue
		}
		if _, stays := t.policy.Tracker.Desired(x.at.key(k)); !own && !stays && to.final {
			continue // all of it comes with its head
		}
		if !t.put(x.at, k, to.find(k)) {
			return false
		}
	}
	return true
}

// movePresent writes the entries that are there, and last the head.
func (t *Node) movePresent(x *inPlaceChange, to *target) bool {
	for _, k := range x.keys {
		if _, there := t.policy.Tracker.Actual(x.at.key(k)); there && !t.put(x.at, k, to.find(k)) {
			return false
		}
	}
	h := to.find(headKey)
	had, _ := t.policy.Tracker.Actual(x.at.key(headKey))
	h.Protos, h.Lens = had.Protos|to.protos, had.Lens|to.lens
	if want, ok := t.policy.Tracker.Desired(x.at.key(headKey)); ok && to.final && bare(want) == bare(h) {
		h = want // what it does not send on to any more says the same
	}
	return t.put(x.at, headKey, h)
}

// settleSources gives the tables of source ports of turns their own numbers, when nothing leads to
// what had these.
func (t *Node) settleSources(b *transition) bool {
	var of []*inPlaceChange
	for _, x := range b.inPlace {
		if _, stays := t.policy.Tracker.Desired(x.at.key(headKey)); x.sources != nil && stays {
			of = append(of, x)
		}
	}
	if len(of) == 0 {
		return true
	}
	waitGrace()
	for _, x := range of {
		formerly := func(k abi.WeirPolicyKey) bool {
			return k.Set == x.at.set && k.Peer == x.at.class && k.Sources != 0 && k.Sources < sourceBase
		}
		t.policy.Remove(func(k abi.WeirPolicyKey) error {
			if !formerly(k) {
				return maptable.ErrLater
			}
			return nil
		})
		for k := range t.policy.Tracker.Deletes() {
			if formerly(k) {
				return false
			}
		}
		last := x.sources.target()
		last.final = true
		if !t.moveHead(x, &last) || !t.movePresent(x, &last) {
			return false
		}
	}
	return true
}
