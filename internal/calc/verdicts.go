package calc

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Bounds on what policy may take of a node, below the size of the programs' map, so that all of it can be
// replaced at once. What goes beyond is refused: its endpoints are cut off, by a rule that says so.
const (
	maxSetEntries    = 1 << 16
	maxPolicyEntries = 1 << 18
	maxPeerCIDRs     = 1 << 16
	maxSourceCuts    = 128 // ranges of source ports that one set tells apart for one protocol and class
)

// verdict is what a rule says.
type verdict struct {
	allow bool
	rule  nodestate.RuleID
}

// segment is a span of ports with one verdict.
type segment struct {
	span
	verdict
}

// entry is a port prefix of a protocol with one verdict, or with one for each range of source ports.
type entry struct {
	proto model.Protocol
	portPrefix
	verdict
	sources int // 1-based in decision.sources; 0 = one verdict
}

// sourceTable tells verdicts apart by the source port.
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

// write puts the sets' entries into look-up 2, as far as they fit: those in force first, else in an order that follows
// from what is in them.
func (s *sets) write(k *classes, out *policyTables) {
	all := slices.SortedFunc(maps.Values(s.byKey), func(a, b *set) int {
		return cmp.Or(cmp.Compare(min(len(s.users[b]), 1), min(len(s.users[a]), 1)), strings.Compare(a.text, b.text))
	})
	left, named := maxPolicyEntries, map[nodestate.RuleID]bool{}
	for _, t := range all {
		decisions, size := t.decisions(k, min(left, maxSetEntries))
		if size < 0 {
			t.tooLarge = true
			if len(s.users[t]) > 0 {
				s.cutOff, named[t.refusedID] = true, true
				s.isolate(t, nodestate.Isolation{Set: t.refusedSet, Rule: t.refusedID}, out)
				out.unfit = append(out.unfit, t.refused)
			}
			continue
		}
		left -= size
		for c, d := range decisions {
			t.emit(c, d, out.policy)
		}
	}
	for _, t := range all {
		if !named[t.refusedID] {
			delete(out.rules, t.refusedID)
		}
	}
}

// decisions returns what is to be written for which classes, and how many entries these are; -1 when they are more
// than most. Class 0 has a head when rules without peers decide something; another class has one when it is
// decided otherwise than class 0.
func (s *set) decisions(k *classes, most int) (map[nodestate.Class]*decision, int) {
	out, size := map[nodestate.Class]*decision{}, 0
	zero, ok := s.decide(nil, most)
	if !ok {
		return nil, -1
	}
	if nothing := (decision{head: verdict{false, s.denyID}}); !zero.equal(&nothing) {
		out[0], size = zero, zero.size
	}
	for c := range s.classes(k) {
		d, ok := s.decide(c, most-size)
		if !ok {
			return nil, -1
		}
		if !d.equal(zero) {
			out[c.id] = d
			size += d.size
		}
	}
	return out, size
}

// classes returns the classes that some rule of the set tells from class 0.
func (s *set) classes(k *classes) map[*class]struct{} {
	out := map[*class]struct{}{}
	add := func(a *atom) {
		for _, c := range k.withOf[a.index] {
			out[c] = struct{}{}
		}
	}
	seen := map[*rule]bool{}
	for t := range s.tiers {
		for i := range s.tiers[t].rules {
			r := &s.tiers[t].rules[i]
			if seen[r.rule] {
				continue
			}
			seen[r.rule] = true
			for _, c := range r.others {
				for _, l := range c {
					add(l.atom)
				}
			}
			for _, p := range slices.Concat(r.dst.in, r.dst.not, r.src.in, r.src.not) {
				n, ok := nameOf(p)
				if !ok {
					continue
				}
				for _, a := range k.atoms {
					if a.named != nil && *a.named == n {
						add(a)
					}
				}
			}
		}
	}
	return out
}

func (s *set) emit(c nodestate.Class, d *decision, out map[nodestate.PolicyKey]nodestate.PolicyValue) {
	out[nodestate.PolicyKey{Set: s.id, Peer: c, Head: true}] = nodestate.PolicyValue{
		Allow: d.head.allow, Rule: d.head.rule, Protos: d.protos, Lens: d.lens}
	put := func(sources int, e entry) {
		out[nodestate.PolicyKey{Set: s.id, Peer: c, Sources: uint16(sources), Proto: e.proto, Port: e.port, Len: e.bits}] =
			nodestate.PolicyValue{Allow: e.allow, Rule: e.rule, Sources: uint16(e.sources)}
	}
	for _, e := range d.entries {
		put(0, e)
	}
	for i, t := range d.sources {
		out[nodestate.PolicyKey{Set: s.id, Peer: c, Sources: uint16(i + 1), Head: true}] = nodestate.PolicyValue{
			Allow: t.otherwise.allow, Rule: t.otherwise.rule, Lens: t.lens}
		for _, e := range t.entries {
			put(i+1, e)
		}
	}
}

// decide resolves the set's rules for the addresses of a class; nil is class 0. A protocol gets entries
// where it is decided otherwise than the head says. ok is false when it takes more than most entries.
func (s *set) decide(c *class, most int) (d *decision, ok bool) {
	d = &decision{head: s.segments(c, otherProto, 0)[0].verdict, size: 1}
	for _, proto := range s.protocols() {
		ported := nodestate.ProtoBit(proto, s.six) != nodestate.ProtoBitOther
		cells, ok := s.cells(c, proto)
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
				e.sources = d.tableOf(x.sources)
			}
			prefixes := portPrefixes(x.span)
			if !ported {
				prefixes = prefixes[:1] // all of it: no ports are asked for
			}
			for _, p := range prefixes {
				e.portPrefix = p
				if ported {
					d.lens |= 1 << p.bits
				}
				d.entries = append(d.entries, e)
			}
			if d.size += len(prefixes); d.size > most {
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
		for _, p := range portPrefixes(s.span) {
			t.lens |= 1 << p.bits
			t.entries = append(t.entries, entry{portPrefix: p, verdict: s.verdict})
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
			r := &s.tiers[t].rules[i]
			note(r.of.NotProtocol)
			for _, p := range r.dst.in {
				note(p.Protocol)
			}
		}
	}
	slices.Sort(out)
	s.protos = out
	return out
}

// segments returns the verdicts on all destination ports of a protocol, in the order of ports, of packets with one
// source port. The rules of a tier are looked at in their order and the first that matches decides; Pass hands on to
// the next tier, and so does a tier's end where that passes. What the last tier passes on is allowed by profiles.
func (s *set) segments(c *class, proto model.Protocol, source uint16) []segment {
	open := []span{{0, 65535}}
	var decided []segment
	decide := func(spans []span, v verdict) {
		for _, t := range spans {
			decided = append(decided, segment{t, v})
		}
	}
	for t := range s.tiers {
		tier := &s.tiers[t]
		var passed []span
		for i := range tier.rules {
			r := &tier.rules[i]
			if len(open) == 0 {
				break
			}
			if !r.matches(c, proto, source) {
				continue
			}
			var taken []span
			taken, open = splitSpans(open, r.dst.spans(c, proto))
			if r.of.Action == model.Pass {
				passed = append(passed, taken...)
				continue
			}
			decide(taken, verdict{r.of.Action == model.Allow, r.id})
		}
		if tier.pass {
			passed = append(passed, open...)
		} else {
			decide(open, verdict{false, tier.denyID})
		}
		if open = mergeSpans(passed); len(open) == 0 {
			break
		}
	}
	if len(s.tiers) == 0 {
		decide(open, verdict{false, s.denyID}) // of a pod that is not known
	} else {
		decide(open, verdict{true, s.passedID})
	}
	return join(decided)
}

// join sorts segments, which cover all ports, and joins neighbours that agree.
func join(all []segment) []segment {
	slices.SortFunc(all, func(a, b segment) int { return int(a.first) - int(b.first) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].verdict == s.verdict {
			out[n-1].last = s.last
			continue
		}
		out = append(out, s)
	}
	return out
}

// matches reports whether the rule is about the addresses of a class and packets with a source port.
func (r *setRule) matches(c *class, proto model.Protocol, source uint16) bool {
	if r.of.NotProtocol != model.ProtocolAny && r.of.NotProtocol == proto {
		return false
	}
	for _, x := range r.others {
		if !x.trueOf(c) {
			return false
		}
	}
	return !r.src.conditional() || within(r.src.spans(c, proto), source)
}

func within(spans []span, port uint16) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return s.first <= port && port <= s.last })
}
