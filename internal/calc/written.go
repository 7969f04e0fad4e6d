package calc

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/nodestate"
)

// written is what of a set is in look-up 2.
type written struct {
	text      string
	numbers   []nodestate.RuleID // of its rules, which its entries name
	zero      *decision
	decisions map[*class]judged // of the classes that it tells from class 0
	size      int               // entries; those of class 0 too when it has any
}

// judged is a decision about a class that had a number then; nil: decided as class 0.
type judged struct {
	id nodestate.Class
	*decision
}

// write puts the sets' entries into look-up 2, as far as they fit: those of host endpoints first, which tenants' policies
// must not push out, then others in force, else in an order that follows from what is in them. What is there already stays.
func (s *sets) write(p *policyTables) {
	all := slices.SortedFunc(maps.Values(s.byKey), func(a, b *set) int {
		return cmp.Or(last(!a.vital, !b.vital), last(!s.forHosts(a), !s.forHosts(b)), last(!s.inForce(a), !s.inForce(b)), strings.Compare(a.text, b.text))
	})
	left := maxPolicyEntries
	entries, ports := p.policy.Edit(), s.portAtoms()
	before := p.written
	p.refused, s.unfit, s.cutOff = nil, nil, false
	p.written = make(map[nodestate.SetID]*written, len(all))
	for _, t := range all {
		if p.written[t.id] != nil {
			t.tooLarge = false
			continue // another list of policies with the same rules
		}
		was := before[t.id]
		if was != nil && (was.text != t.text || !slices.Equal(was.numbers, t.numbers())) {
			was.each(t.id, func(k nodestate.PolicyKey, _ nodestate.PolicyValue) { entries.Delete(k) })
			was = nil
		}
		var now *written
		if !p.crowded || t.vital || s.forHosts(t) && !p.hostsCrowded || !t.asksForNetworks() {
			now = t.decisions(was, ports, min(left, maxSetEntries))
		}
		if t.tooLarge = now == nil; t.tooLarge {
			p.refused = append(p.refused, t.id)
			if s.inForce(t) {
				s.cutOff = true
				s.isolate(t, nodestate.Isolation{Set: t.refusedSet, Rule: t.refusedID}, p)
				p.rules[t.refusedID] = t.refused
				s.unfit = append(s.unfit, t.refused)
			}
			continue
		}
		delete(before, t.id)
		s.isolate(t, nodestate.Isolation{Set: t.id, Rule: t.denyID}, p)
		p.written[t.id] = now
		left -= now.size
		now.replace(t.id, was, &entries)
	}
	for id, was := range before {
		was.each(id, func(k nodestate.PolicyKey, _ nodestate.PolicyValue) { entries.Delete(k) })
	}
	p.policy = entries.Map()
}

// last orders what is true after what is not.
func last(a, b bool) int {
	if a == b {
		return 0
	}
	if a {
		return 1
	}
	return -1
}

// portAtoms returns the atoms in use by the names of ports that they are about.
func (s *sets) portAtoms() map[portName][]*atom {
	out := map[portName][]*atom{}
	for _, a := range s.atoms.byText {
		if a.named != nil {
			out[*a.named] = append(out[*a.named], a)
		}
	}
	return out
}

// asksForNetworks reports whether a rule of the set is about networks.
func (s *set) asksForNetworks() bool {
	for a := range s.atoms() {
		if len(a.cidrs) > 0 {
			return true
		}
	}
	return false
}

// numbers returns those of the set's rules.
func (s *set) numbers() []nodestate.RuleID {
	var out []nodestate.RuleID
	s.eachRule(func(_ nodestate.Rule, id *nodestate.RuleID) { out = append(out, *id) })
	return out
}

// decisions returns what is to be written for which classes; nil when it is more than most entries. Class 0 has a head
// when rules without peers decide something; another class has one when it is decided otherwise than class 0. What was
// decided before for the same set is decided in the same way.
func (s *set) decisions(was *written, ports map[portName][]*atom, most int) *written {
	now := &written{text: s.text, numbers: s.numbers(), decisions: map[*class]judged{}}
	if was != nil && was.zero.size <= most {
		now.zero = was.zero
	} else if zero, ok := s.decide(nil, most); ok {
		now.zero = zero
	} else {
		return nil
	}
	nothing := decision{head: verdict{rule: s.denyID}}
	if !now.zero.equal(&nothing) {
		now.size = now.zero.size
	}
	for c := range s.classes(ports) {
		var j judged
		known := false
		if was != nil {
			j, known = was.decisions[c]
		}
		if !known {
			var ok bool
			if j.decision, ok = s.decide(c, most); !ok {
				return nil
			}
			if j.equal(now.zero) {
				j.decision = nil
			}
		}
		j.id = c.id
		now.decisions[c] = j
		if j.decision != nil {
			now.size += j.decision.size
		}
		if now.size > most {
			return nil
		}
	}
	return now
}

// each calls f for every entry.
func (w *written) each(id nodestate.SetID, f func(nodestate.PolicyKey, nodestate.PolicyValue)) {
	if w == nil {
		return
	}
	if !w.silent() {
		w.zero.each(id, 0, f)
	}
	for _, j := range w.decisions {
		if j.decision != nil {
			j.each(id, j.id, f)
		}
	}
}

// silent reports whether class 0 has no entries.
func (w *written) silent() bool {
	size := w.size
	for _, j := range w.decisions {
		if j.decision != nil {
			size -= j.decision.size
		}
	}
	return size == 0
}

// replace changes the entries of a set from those before, nil for none, to these.
func (w *written) replace(id nodestate.SetID, was *written, entries *nodestate.Editor[nodestate.PolicyKey, nodestate.PolicyValue]) {
	if was == nil {
		w.each(id, entries.Set)
		return
	}
	for c, j := range was.decisions {
		if j.decision != nil && w.decisions[c] != j {
			j.each(id, j.id, func(k nodestate.PolicyKey, _ nodestate.PolicyValue) { entries.Delete(k) })
		}
	}
	for c, j := range w.decisions {
		if j.decision != nil && was.decisions[c] != j {
			j.each(id, j.id, entries.Set)
		}
	}
}
