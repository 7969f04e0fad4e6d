// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Bounds on what policy may take of a node, below the size of the programs' map, so that all of it
// can be replaced at once. What goes beyond is refused: its endpoints are cut off, by a rule that
// says so.
const (
	maxSetEntries    = 1 << 16
	MaxEntries       = 1 << 18
	maxSourceTables  = 1<<13 - 1
	maxSourceColumns = 128     // kinds of source ports that one set distinguishes for one protocol and class
	maxCellWork      = 1 << 22 // comparisons for one protocol and class
)

// verdict is what a rule says.
type verdict struct {
	allow bool
	rule  nodestate.RuleID
	log   bool // a rule with action Log matched before
	on    bool // what is allowed goes on to what is tracked: no policy decided
}

// segment is a span of ports with one verdict.
type segment struct {
	port.Span
	verdict
}

// entry is a port prefix of a protocol with one verdict, or with one for each range of source
// ports.
type entry struct {
	proto model.Protocol
	port.Prefix
	verdict
	sources int // 1-based in decision.sources; 0 = one verdict
}

// sourceTable distinguishes verdicts by the source port.
type sourceTable struct {
	otherwise verdict
	lens      uint32
	entries   []entry
}

// decision is everything that a set says about a class.
type decision struct {
	head    verdict
	protos  uint8
	lens    uint32
	entries []entry
	sources []sourceTable
	size    int // entries of all of it
}

func (d *decision) equal(o *decision) bool {
	return d.head == o.head && d.protos == o.protos && d.lens == o.lens && slices.Equal(d.entries, o.entries) &&
		slices.EqualFunc(d.sources, o.sources, func(a, b sourceTable) bool {
			return a.otherwise == b.otherwise && a.lens == b.lens && slices.Equal(a.entries, b.entries)
		})
}

// classes returns the classes that some rule of the set distinguishes from class 0.
func (s *set) classes(ports map[port.Name][]*peer.Atom) map[*peer.Class]struct{} {
	out := map[*peer.Class]struct{}{}
	for a := range s.requiredAtoms(ports) {
		for c := range a.Classes {
			out[c] = struct{}{}
		}
	}
	return out
}

// requiredAtoms returns what the set's rules ask about the other end, what it calls ports by name
// among it.
func (s *set) requiredAtoms(ports map[port.Name][]*peer.Atom) map[*peer.Atom]bool {
	out := map[*peer.Atom]bool{}
	for a := range s.atoms() {
		out[a] = true
	}
	for t := range s.tiers {
		for _, r := range s.tiers[t].rules {
			for _, list := range [][]model.PortRange{r.dst.In, r.dst.Not, r.src.In, r.src.Not} {
				for _, p := range list {
					if n, ok := port.NameOf(p); ok {
						for _, a := range ports[n] {
							out[a] = true
						}
					}
				}
			}
		}
	}
	return out
}

// each calls f for every entry of a decision of a set about a class.
func (d *decision) each(set nodestate.SetID, c nodestate.Class, f func(nodestate.PolicyKey, nodestate.PolicyValue)) {
	f(nodestate.PolicyKey{Set: set, Peer: c, Head: true}, nodestate.PolicyValue{
		Allow: d.head.allow, Log: d.head.log, Undecided: d.head.on, Rule: d.head.rule, Protos: d.protos, Lens: d.lens})
	put := func(sources int, e entry) {
		f(nodestate.PolicyKey{Set: set, Peer: c, Sources: uint16(sources), Proto: e.proto, Port: e.Port, Len: e.Bits},
			nodestate.PolicyValue{Allow: e.allow, Log: e.log, Undecided: e.on, Rule: e.rule, Sources: uint16(e.sources)})
	}
	for _, e := range d.entries {
		put(0, e)
	}
	for i, t := range d.sources {
		f(nodestate.PolicyKey{Set: set, Peer: c, Sources: uint16(i + 1), Head: true}, nodestate.PolicyValue{
			Allow: t.otherwise.allow, Log: t.otherwise.log, Undecided: t.otherwise.on, Rule: t.otherwise.rule, Lens: t.lens})
		for _, e := range t.entries {
			put(i+1, e)
		}
	}
}

// decide resolves the set's rules for the addresses of a class; nil is class 0. A protocol gets
// entries where it is decided otherwise than the head says. ok is false when it takes more than
// most entries.
func (s *set) decide(c *peer.Class, most int) (d *decision, ok bool) {
	about := s.applicableRules(c)
	var tables map[*segment]int
	d = &decision{head: s.segments(about, c, port.OtherProto, 0)[0].verdict, size: 1}
	for _, proto := range s.protocols() {
		ported := nodestate.ProtoBit(proto, s.six) != nodestate.ProtoBitOther
		cells, ok := s.cells(about, c, proto, most)
		if !ok {
			return nil, false
		}
		if !ported {
			cells = cells[:1] // rules without ports make no more
		}
		for _, x := range cells {
			if x.sources == nil && x.verdict == d.head {
				continue
			}
			d.protos |= nodestate.ProtoBit(proto, s.six)
			e := entry{proto: proto, verdict: x.verdict}
			if x.sources != nil {
				if e.sources = tables[&x.sources[0]]; e.sources == 0 {
					e.sources = d.tableOf(x.sources)
					if tables == nil {
						tables = map[*segment]int{}
					}
					tables[&x.sources[0]] = e.sources
				}
			}
			prefixes := port.Prefixes(x.Span)
			if !ported {
				prefixes = prefixes[:1] // all of it: no ports are asked for
			}
			for _, p := range prefixes {
				e.Prefix = p
				if ported {
					d.lens |= 1 << p.Bits
				}
				d.entries = append(d.entries, e)
			}
			if d.size += len(prefixes); d.size > most || len(d.sources) > maxSourceTables {
				return nil, false
			}
		}
	}
	return d, d.size <= most
}

// tableOf returns the number of the table of source ports with these verdicts.
func (d *decision) tableOf(segments []segment) int {
	t := sourceTable{otherwise: segments[len(segments)-1].verdict}
	for _, s := range segments {
		if s.verdict == t.otherwise {
			continue
		}
		for _, p := range port.Prefixes(s.Span) {
			t.lens |= 1 << p.Bits
			t.entries = append(t.entries, entry{Prefix: p, verdict: s.verdict})
		}
	}
	for i, have := range d.sources {
		if have.otherwise == t.otherwise && slices.Equal(have.entries, t.entries) {
			return i + 1
		}
	}
	d.sources = append(d.sources, t)
	d.size += 1 + len(t.entries)
	return len(d.sources)
}

// protocols returns those that some rule may decide otherwise than the rest of IP, in their order.
func (s *set) protocols() []model.Protocol {
	if s.protos != nil {
		return s.protos
	}
	out := []model.Protocol{model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP}
	note := func(p model.Protocol) {
		if p != model.ProtocolAny && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for t := range s.tiers {
		for i := range s.tiers[t].rules {
			r := s.tiers[t].rules[i]
			note(r.of.NotProtocol)
			for _, p := range r.dst.In {
				note(p.Protocol)
			}
		}
	}
	slices.Sort(out)
	s.protos = out
	return out
}

// segments returns the verdicts on all destination ports of a protocol, in the order of ports, of
// packets with one source port. The rules of a tier are looked at in their order and the first that
// matches decides; Pass hands on to the next tier, and so does a tier's end where that passes. What
// the last tier passes on is allowed by profiles. Log decides nothing: it marks what is decided
// after it.
func (s *set) segments(about [][]*setRule, c *peer.Class, proto model.Protocol, source uint16) []segment {
	open := []port.Span{{Last: 65535}}
	var logged []port.Span
	decided := make([]segment, 0, 8)
	decide := func(spans []port.Span, v verdict) {
		noted, rest := port.Split(spans, logged)
		for _, t := range rest {
			decided = append(decided, segment{t, v})
		}
		v.log = true
		for _, t := range noted {
			decided = append(decided, segment{t, v})
		}
	}
	for t := range s.tiers {
		tier := &s.tiers[t]
		var passed []port.Span
		for _, r := range about[t] {
			if len(open) == 0 {
				break
			}
			if !r.matches(c, proto, source) {
				continue
			}
			taken, rest := port.Split(open, r.dst.Spans(c, proto))
			switch r.of.Action {
			case model.Log:
				logged = port.Merge(append(logged, taken...))
				continue
			case model.Pass:
				passed = append(passed, taken...)
			default:
				decide(taken, verdict{allow: r.of.Action == model.Allow, rule: r.id, on: r.on})
			}
			open = rest
		}
		if tier.pass {
			passed = append(passed, open...)
		} else {
			decide(open, verdict{rule: tier.denyID})
		}
		if open = port.Merge(passed); len(open) == 0 {
			break
		}
	}
	if len(s.tiers) == 0 {
		decide(open, verdict{rule: s.denyID}) // of a pod that is not known
	} else {
		decide(open, verdict{allow: !s.denied, rule: s.passedID, on: s.alone && !s.denied})
	}
	return join(decided)
}

// join sorts segments, which cover all ports, and joins neighbours that agree.
func join(all []segment) []segment {
	slices.SortFunc(all, func(a, b segment) int { return int(a.First) - int(b.First) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].verdict == s.verdict {
			out[n-1].Last = s.Last
			continue
		}
		out = append(out, s)
	}
	return out
}

// applicableRules returns the rules of each tier that are about the addresses of a class, in their
// order.
func (s *set) applicableRules(c *peer.Class) [][]*setRule {
	if s.byAtom == nil {
		s.index()
	}
	var at []rulePlace
	at = append(at, s.unindexed...)
	if c != nil {
		for _, a := range c.Atoms {
			at = append(at, s.byAtom[a]...)
		}
	}
	slices.SortFunc(at, func(a, b rulePlace) int { return cmp.Or(int(a.tier-b.tier), int(a.rule-b.rule)) })
	at = slices.Compact(at)
	out := make([][]*setRule, len(s.tiers))
	for _, p := range at {
		r := s.tiers[p.tier].rules[p.rule]
		if !slices.ContainsFunc(r.others, func(x peer.Clause) bool { return !x.TrueOf(c) }) {
			out[p.tier] = append(out[p.tier], r)
		}
	}
	return out
}

// rulePlace is where a rule is in its set.
type rulePlace struct{ tier, rule int32 }

// index notes which rules want which atoms, so that a class of one of ten thousand networks asks
// few of ten thousand rules.
func (s *set) index() {
	s.byAtom = map[*peer.Atom][]rulePlace{}
	for t := range s.tiers {
		for i := range s.tiers[t].rules {
			r, at := s.tiers[t].rules[i], rulePlace{int32(t), int32(i)}
			wants := r.requiredClause()
			if wants < 0 {
				s.unindexed = append(s.unindexed, at)
				continue
			}
			for _, l := range r.others[wants] {
				s.byAtom[l.Atom] = append(s.byAtom[l.Atom], at)
			}
		}
	}
}

// matches reports whether a rule that is about the addresses of a class is about packets of a
// protocol with a source port.
func (r *setRule) matches(c *peer.Class, proto model.Protocol, source uint16) bool {
	if r.of.NotProtocol != model.ProtocolAny && r.of.NotProtocol == proto {
		return false
	}
	return !r.src.Conditional() || within(r.src.Spans(c, proto), source)
}

func within(spans []port.Span, at uint16) bool {
	return slices.ContainsFunc(spans, func(s port.Span) bool { return s.First <= at && at <= s.Last })
}
