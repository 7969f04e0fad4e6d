// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// A change of policy takes many writes, and a packet may come between any two of them. Alone, a
// change of endpoints' sets or of peers' classes is exact at each moment: a look-up finds what was
// or what will be. Together they are not: an old set knows nothing of a new class, and what it says
// of everybody else may be wider. Nor are they where a packet is evaluated twice, by both ends'
// sets: one look-up by what was and one by what will be may allow what neither policy does.
//
// A transition leads over it. An address whose class changes from A to B is first of a class AB of
// its own, under which each old set says what it said of A, and each new one what it will say of B;
// then endpoints get their new sets; then the class becomes B. Where packets may be evaluated twice
// there is a set between an old and a new one, that allows what both do: all endpoints have it at a
// time, so before that moment nothing is allowed that the old policy denies, and after it nothing
// that the new one does. What is allowed before and after is allowed throughout. What a set itself
// says is changed at the same moment: see inPlaceChange.

// change is a number that becomes another: the class of an address, or the set of an endpoint in
// one direction.
type change struct{ was, is uint64 }

// Directions, in surveys and transition.
const (
	dirIngress = iota
	dirEgress
	dirs
)

// survey is what the pending changes mean to policy.
type survey struct {
	sets         [dirs]map[change]bool // of endpoints that were there and stay
	isolated     [dirs]bool            // some endpoint has a set, before or after
	old, new     map[uint64]bool       // the sets of endpoints before and after, those that go and come among them
	kept         bool                  // some endpoint that stays was isolated
	rules        map[uint64]uint32     // what decides where a set has no entry
	classes      map[change]bool
	local        bool            // the class of an endpoint changes
	hosts        map[change]bool // sets of host endpoints
	hasHosts     bool            // there are some, before or after
	users        map[uint64]int  // of sets: who has them, before or after, as bits by direction; of host endpoints another bit
	inPlaceUsers int             // the same of sets that say something else than before
	inPlace      map[uint64]bool // these sets
}

// ofHosts is the bit of host endpoints in survey.users.
const ofHosts = 1 << dirs

func newSurvey() *survey {
	return &survey{sets: [dirs]map[change]bool{{}, {}}, old: map[uint64]bool{}, new: map[uint64]bool{},
		rules: map[uint64]uint32{}, classes: map[change]bool{}, hosts: map[change]bool{},
		users: map[uint64]int{}, inPlace: map[uint64]bool{}}
}

// noteInPlace notes the sets that say something else of somebody.
func (s *survey) noteInPlace(turns []*inPlaceChange) {
	for _, x := range turns {
		s.inPlace[x.at.set] = true
		if s.old[x.at.set] {
			s.inPlaceUsers |= s.users[x.at.set]
		}
	}
}

// touches reports whether a change of sets is from or to one that says something else than before.
func (s *survey) touches(c change) bool { return s.inPlace[c.was] || s.inPlace[c.is] }

// noteSet notes one direction of an endpoint that was there, and stays.
func (s *survey) noteSet(dir int, c change) {
	s.kept = s.kept || c.was != 0
	s.isolated[dir] = s.isolated[dir] || c.was|c.is != 0
	if c.was != c.is {
		s.sets[dir][c] = true
	}
}

// noteHost notes what a host endpoint evaluates, before and after.
func (s *survey) noteHost(was, is abi.WeirHostSide) {
	if was.Set != 0 {
		s.old[was.Set], s.rules[was.Set], s.kept = true, was.Rule, true
	}
	s.users[was.Set] |= ofHosts
	s.users[is.Set] |= ofHosts
	if is.Set != 0 {
		s.new[is.Set], s.rules[is.Set] = true, is.Rule
	}
	s.hasHosts = s.hasHosts || was.Set|is.Set != 0
	if was.Set != is.Set {
		s.hosts[change{was.Set, is.Set}] = true
	}
}

// changed returns the changes of sets.
func (s *survey) changed() []map[change]bool { return append(s.sets[:], s.hosts) }

func (s *survey) noteClass(was, is uint64, local bool) {
	if was != is {
		s.classes[change{was, is}] = true
		s.local = s.local || local
	}
}

// replaced reports whether an endpoint that was isolated gets another set, or none, or one of what
// it had says something else.
func (s *survey) replaced() bool {
	if s.inPlaceUsers != 0 {
		return true
	}
	for _, sets := range s.changed() {
		for c := range sets {
			if c.was != 0 {
				return true
			}
		}
	}
	return false
}

// mixed reports whether two evaluations of one packet may change. Host endpoints evaluate alongside
// pods, and where packets come in and go out.
func (s *survey) mixed() bool {
	if s.hasHosts && len(s.hosts)+len(s.sets[dirIngress])+len(s.sets[dirEgress])+len(s.classes)+len(s.inPlace) > 1 {
		return true
	}
	changes := func(dir int) bool {
		return len(s.sets[dir]) > 0 || s.local && s.isolated[dir] || s.inPlaceUsers&(1<<dir) != 0
	}
	if changes(dirIngress) && changes(dirEgress) {
		return true
	}
	for _, sets := range s.changed() {
		for c := range sets {
			if s.touches(c) {
				return true
			}
		}
	}
	return false
}

// transition is what stands between two policies. nil: nobody was isolated, and the order of
// writes does not matter.
type transition struct {
	over    bool // there is something to go over; else look-ups are exact by themselves
	mixed   bool // all endpoints have to be on it before one goes on
	classes map[change]uint64
	sets    map[change]uint64
	deny    uint64 // not 0: there is no room for a transition, and this set denies everything meanwhile
	inPlace []*inPlaceChange
}

// interimHash names what stands between two numbers, or for a kind of things alone.
func interimHash(kind string, c change) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "between %s %d %d", kind, c.was, c.is))
	return binary.BigEndian.Uint64(sum[:8]) | 1 // never 0
}

// interimSet returns the set that an endpoint has on the transition.
func (b *transition) interimSet(_ int, c change) uint64 {
	switch {
	case b.deny != 0 && c.was|c.is != 0:
		return b.deny
	case b.deny != 0 || c.was == c.is:
		return c.is
	case b.sets[c] != 0:
		return b.sets[c]
	case c.was == 0:
		return c.is // allows nothing more
	}
	return c.was
}

// interimID returns what stands for a change: itself for what stood for one to the same end
// already, if that is what it was.
func (t *Node) interimID(kind string, c change) uint64 {
	if of, ok := t.interims[c.was]; ok && of.is == c.is && of.policy == t.policies {
		return c.was
	}
	return interimHash(kind, c)
}

// interim is what a class or a set stands for between two policies.
type interim struct {
	change
	policy uint64 // what tables.policies was
}

// forgetInterims gives up what earlier plans left and neither the maps nor this one use.
func (t *Node) forgetInterims(s *survey, b *transition) {
	if t.temps == nil || t.interims == nil {
		t.temps, t.interims = map[abi.WeirPolicyKey]struct{}{}, map[uint64]interim{}
	}
	if len(t.temps) == 0 && len(t.interims) == 0 {
		return
	}
	used := map[uint64]bool{}
	t.each(func(f Family) { f.classesInUse(used) })
	for _, stands := range []map[change]uint64{b.classes, b.sets} {
		for _, id := range stands {
			used[id] = true
		}
	}
	maps.Copy(used, s.old)
	maps.Copy(used, s.new)
	for k := range t.temps {
		if _, interim := t.interims[k.Peer]; !used[k.Set] || interim && !used[k.Peer] {
			t.policy.Tracker.Unset(k)
			delete(t.temps, k)
		}
	}
	for id := range t.interims {
		if !used[id] {
			delete(t.interims, id)
		}
	}
}

// planTransition plans one where the pending changes want it, and desires the verdicts that it
// takes.
func (t *Node) planTransition() *transition {
	s := newSurvey()
	t.each(func(f Family) { f.surveySets(s) })
	t.names.survey(s)
	t.surveyHosts(s)
	turns := t.inPlaceChanges(s)
	if !s.kept && len(turns) == 0 {
		return nil // nobody was isolated: there is nothing to keep
	}
	t.each(func(f Family) { f.surveyClasses(s) })
	s.noteInPlace(turns)
	mixed := s.mixed()
	free := t.policy.Free()
	b := &transition{mixed: mixed, classes: map[change]uint64{}, sets: map[change]uint64{}, inPlace: turns}
	if free < 0 && free+t.policy.Tracker.PendingDeletes() >= 0 { // what was has to go first
		b.over, b.deny = true, interimHash("all", change{})
		t.forgetInterims(s, b)
		return b
	}
	if !mixed && (!s.replaced() || len(s.classes) == 0) {
		t.forgetInterims(s, b)
		return b
	}
	b.over = true
	for c := range s.classes {
		b.classes[c] = t.interimID("classes", c)
	}
	if mixed {
		for _, sets := range s.changed() {
			for c := range sets {
				if c.was != 0 && c.is != 0 || s.touches(c) {
					b.sets[c] = t.interimID("sets", c)
				}
			}
		}
	}
	var temps []policyEntry
	fit := true
	if len(b.classes)+len(b.sets) > 0 {
		temps, fit = t.transitionVerdicts(s, b, free)
	}
	t.forgetInterims(s, b)
	if !fit {
		b.deny = interimHash("all", change{})
		return b
	}
	for _, stands := range []map[change]uint64{b.classes, b.sets} {
		for c, id := range stands {
			if id != c.was {
				t.interims[id] = interim{c, t.policies}
			}
		}
	}
	for _, e := range temps {
		t.policy.Tracker.Set(e.key, e.value)
		t.temps[e.key] = struct{}{}
	}
	return b
}

// transitionVerdicts returns the verdicts of a transition, if there is room for them.
func (t *Node) transitionVerdicts(s *survey, b *transition, room int) (out []policyEntry, fit bool) {
	held := t.policyDiff(s, b, nil)
	for _, set := range union(s.old, s.new) {
		for c, via := range b.classes {
			var parts []verdicts
			own := false
			if s.old[set] {
				parts, own = append(parts, held.was(set, c.was)), own || held.ownedWas(set, c.was)
			}
			if s.new[set] {
				parts, own = append(parts, held.is(set, c.is)), own || held.ownedIs(set, c.is)
			}
			if !own {
				continue // what it says of everybody else
			}
			all := parts[0]
			if len(parts) > 1 && !maps.Equal(parts[0], parts[1]) {
				all = intersect(parts[0], parts[1])
			}
			if out = all.under(out, set, via); len(out) > room {
				return nil, false
			}
		}
	}
	for c, set := range b.sets {
		if set == c.was {
			continue // its verdicts are there
		}
		for _, class := range held.classes(c) {
			if out = intersect(held.was(c.was, class), held.is(c.is, class)).under(out, set, class); len(out) > room {
				return nil, false
			}
		}
		for p, via := range b.classes {
			if !held.ownedWas(c.was, p.was) && !held.ownedIs(c.is, p.is) {
				continue
			}
			if out = intersect(held.was(c.was, p.was), held.is(c.is, p.is)).under(out, set, via); len(out) > room {
				return nil, false
			}
		}
	}
	return out, len(out) <= max(room, 0)
}

// applyTransition writes classes and endpoints, over the transition where there is one, and reports
// whether it is crossed. What cannot be written keeps it standing: an endpoint that waits for its
// verdicts is evaluated as before.
func (t *Node) applyTransition(b *transition) bool {
	if !t.partHosts() || !t.enterTransition(b) {
		t.each(Family.writeOthers)
		return false
	}
	if b != nil && !t.widen(b) {
		t.each(Family.writeOthers)
		return false
	}
	if t.inPlace = nil; b != nil && len(b.inPlace) > 0 {
		t.writeVerdicts()
	}
	held := false
	t.each(func(f Family) { held = f.writeEndpoints(t.verdictsReady) || held })
	held = t.writeHosts() || held
	if held || b != nil && b.over && b.deny == 0 && !t.all(Family.writeClasses) {
		return false
	}
	for k := range t.temps {
		t.policy.Tracker.Unset(k)
	}
	t.temps, t.interims = nil, nil
	return true
}

// enterTransition does what comes before endpoints get their sets, and reports whether they may.
func (t *Node) enterTransition(b *transition) bool {
	switch {
	case b == nil:
		return t.all(Family.writeClasses)
	case b.deny != 0:
		return t.all(func(f Family) bool { return f.interimSets(b.interimSet, func(uint64, uint64) error { return nil }) }) && t.all(Family.changeClasses) && t.narrow(b)
	case t.lacksVerdicts(b):
		return false
	case !b.over:
		return t.all(Family.changeClasses) && t.narrow(b)
	}
	if !t.all(func(f Family) bool { return f.interimClasses(b.classes) }) {
		return false
	}
	made := t.all(func(f Family) bool { return f.interimSets(b.interimSet, t.verdictsReady) })
	return (t.interimHosts(b) && made || !b.mixed) && t.narrow(b)
}

// lacksVerdicts reports whether verdicts could not be written that a class or set would lead to at
// once.
func (t *Node) lacksVerdicts(b *transition) bool {
	used, looked := map[uint64]bool{}, false
	for k := range t.policy.Tracker.FailedKeys() {
		if _, write := t.policy.Tracker.Desired(k); !write || t.inPlace[setClass{k.Set, k.Peer}] {
			continue
		}
		if _, temp := t.temps[k]; temp {
			return true
		}
		if !looked {
			looked = true
			t.setsInUse(used)
		}
		if used[k.Set] {
			return true
		}
	}
	return false
}
