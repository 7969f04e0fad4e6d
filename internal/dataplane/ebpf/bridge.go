package ebpf

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A change of policy takes many writes, and a packet may come between any two of them. Alone, a change of endpoints' sets
// or of peers' classes is exact at each moment: a look-up finds what was or what will be. Together they are not: an old
// set knows nothing of a new class, and what it says of everybody else may be wider. Nor are they where a packet is judged
// twice, by both ends' sets: one look-up by what was and one by what will be may allow what neither policy does.
//
// A bridge leads over it. An address whose class changes from A to B is first of a class AB of its own, under which each old set
// says what it said of A, and each new one what it will say of B; then endpoints get their new sets; then the class becomes B.
// Where packets may be judged twice there is a set between an old and a new one, that allows what both do: all endpoints
// have it at a time, so before that moment nothing is allowed that the old policy denies, and after it nothing that
// the new one does. What is allowed before and after is allowed throughout.

// change is a number that becomes another: the class of an address, or the set of an endpoint in one direction.
type change struct{ was, is uint64 }

// Directions, in surveys and bridges.
const (
	dirIngress = iota
	dirEgress
	dirs
)

// survey is what the pending changes mean to policy.
type survey struct {
	sets     [dirs]map[change]bool // of endpoints that were there and stay
	isolated [dirs]bool            // some endpoint has a set, before or after
	old, new map[uint64]bool       // the sets of endpoints before and after
	rules    map[uint64]uint32     // what decides where a set has no entry
	classes  map[change]bool
	local    bool // the class of an endpoint changes
}

func newSurvey() *survey {
	return &survey{sets: [dirs]map[change]bool{{}, {}}, old: map[uint64]bool{}, new: map[uint64]bool{},
		rules: map[uint64]uint32{}, classes: map[change]bool{}}
}

// noteSet notes one direction of an endpoint that was there, and stays.
func (s *survey) noteSet(dir int, c change) {
	if c.was != 0 {
		s.old[c.was] = true
	}
	if c.is != 0 {
		s.new[c.is] = true
	}
	s.isolated[dir] = s.isolated[dir] || c.was|c.is != 0
	if c.was != c.is {
		s.sets[dir][c] = true
	}
}

func (s *survey) noteClass(was, is uint64, local bool) {
	if was != is {
		s.classes[change{was, is}] = true
		s.local = s.local || local
	}
}

// replaced reports whether an endpoint that was isolated gets another set, or none.
func (s *survey) replaced() bool {
	for _, sets := range s.sets {
		for c := range sets {
			if c.was != 0 {
				return true
			}
		}
	}
	return false
}

// mixed reports whether both judgements of one packet may change.
func (s *survey) mixed() bool {
	changes := func(dir int) bool { return len(s.sets[dir]) > 0 || s.local && s.isolated[dir] }
	return changes(dirIngress) && changes(dirEgress)
}

// bridge is what stands between two policies. nil: nobody was isolated, and the order of writes does not matter.
type bridge struct {
	over    bool // there is something to go over; else look-ups are exact by themselves
	classes map[change]uint64
	sets    map[change]uint64
	deny    uint64 // not 0: there is no room for a bridge, and this set denies everything meanwhile
}

// mix names what stands between two numbers, or for a kind of things alone.
func mix(kind string, c change) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "between %s %d %d", kind, c.was, c.is))
	return binary.BigEndian.Uint64(sum[:8]) | 1 // never 0
}

// between returns the set that an endpoint has on the bridge.
func (b *bridge) between(_ int, c change) uint64 {
	switch {
	case b.deny != 0 && c.was|c.is != 0:
		return b.deny
	case b.deny != 0 || c.was == c.is:
		return c.is
	case c.was == 0:
		return c.is // allows nothing more
	case c.is == 0:
		return c.was
	}
	if id := b.sets[c]; id != 0 {
		return id
	}
	return c.was
}

// bridge plans one where the pending changes want it, and desires the verdicts that it takes.
func (t *tables) bridge() *bridge {
	s := newSurvey()
	t.each(func(f family) { f.surveySets(s) })
	if len(s.old) == 0 {
		return nil // nobody was isolated: there is nothing to keep
	}
	t.each(func(f family) { f.surveyClasses(s) })
	mixed := s.mixed()
	if !mixed && (!s.replaced() || len(s.classes) == 0) {
		return &bridge{}
	}
	b := &bridge{over: true, classes: map[change]uint64{}, sets: map[change]uint64{}}
	for c := range s.classes {
		b.classes[c] = mix("classes", c)
	}
	if mixed {
		for _, sets := range s.sets {
			for c := range sets {
				if c.was != 0 && c.is != 0 {
					b.sets[c] = mix("sets", c)
				}
			}
		}
	}
	temps := t.spans(s, b)
	if room := int(t.policy.m.MaxEntries()) - t.policy.tracker.Len() - t.policy.tracker.PendingWrites(); len(temps) > room {
		b.deny = mix("all", change{})
		return b
	}
	for _, e := range temps {
		t.policy.tracker.Set(e.key, e.value)
		t.temps = append(t.temps, e.key)
	}
	return b
}

// spans returns the verdicts of a bridge.
func (t *tables) spans(s *survey, b *bridge) []policyEntry {
	held := t.holdings(s, b)
	var out []policyEntry
	for _, set := range union(s.old, s.new) {
		for c, via := range b.classes {
			var parts []verdicts
			own := false
			if s.old[set] {
				parts, own = append(parts, held.of(set, c.was)), own || held.own(set, c.was)
			}
			if s.new[set] {
				parts, own = append(parts, held.of(set, c.is)), own || held.own(set, c.is)
			}
			if !own {
				continue // what it says of everybody else
			}
			all := parts[0]
			if len(parts) > 1 {
				all = meet(parts[0], parts[1])
			}
			out = all.under(out, set, via)
		}
	}
	for c, set := range b.sets {
		for _, class := range held.classes(c) {
			out = meet(held.of(c.was, class), held.of(c.is, class)).under(out, set, class)
		}
		for p, via := range b.classes {
			out = meet(held.of(c.was, p.was), held.of(c.is, p.is)).under(out, set, via)
		}
	}
	return out
}

// cross writes classes and endpoints, over the bridge where there is one. What cannot be written keeps it standing: an endpoint
// that waits for its verdicts is judged as before.
func (t *tables) cross(b *bridge) {
	endpoints := func() (held bool) {
		t.each(func(f family) { held = f.writeEndpoints(t.verdictsReady) || held })
		return held
	}
	switch {
	case b == nil || !b.over:
		if b == nil {
			t.each(family.writeClasses)
		} else {
			t.each(family.changeClasses)
		}
		if endpoints() {
			return
		}
	case b.deny != 0:
		t.each(func(f family) { f.interimSets(b.between, func(uint64, uint64) error { return nil }) })
		t.each(family.writeClasses)
		if endpoints() {
			return
		}
	default:
		t.each(func(f family) { f.interimClasses(b.classes) })
		t.each(func(f family) { f.interimSets(b.between, t.verdictsReady) })
		if endpoints() {
			return
		}
		t.each(family.writeClasses)
	}
	for _, k := range t.temps {
		t.policy.tracker.Unset(k)
	}
	t.temps = nil
}
