package calc

import (
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
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

// entry is a port prefix of a protocol with one verdict.
type entry struct {
	proto model.Protocol
	portPrefix
	verdict
}

// decision is everything that a set says about a class.
type decision struct {
	head    verdict
	protos  uint8
	lens    uint32
	entries []entry
}

func (d *decision) equal(o *decision) bool {
	return d.head == o.head && d.protos == o.protos && d.lens == o.lens && slices.Equal(d.entries, o.entries)
}

// write puts the set's entries into look-up 2. Class 0 has a head when rules without peers decide
// something; another class has one when it is decided otherwise than class 0.
func (s *set) write(k *classes, out map[nodestate.PolicyKey]nodestate.PolicyValue) {
	zero := s.decide(nil)
	if nothing := (decision{head: verdict{false, s.denyID}}); !zero.equal(&nothing) {
		s.emit(0, &zero, out)
	}
	for c := range s.classes(k) {
		if d := s.decide(c); !d.equal(&zero) {
			s.emit(c.id, &d, out)
		}
	}
}

// classes returns the classes that some rule of the set tells from class 0.
func (s *set) classes(k *classes) map[*class]struct{} {
	out := map[*class]struct{}{}
	add := func(a *atom) {
		for _, c := range k.withOf[a.index] {
			out[c] = struct{}{}
		}
	}
	for _, tier := range s.tiers {
		for i := range tier {
			for _, a := range tier[i].peers {
				add(a)
			}
			for _, p := range tier[i].ports {
				if p.Named == "" {
					continue
				}
				for _, a := range k.atoms {
					if a.named != nil && *a.named == (portName{p.Protocol, p.Named}) {
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
	for _, e := range d.entries {
		out[nodestate.PolicyKey{Set: s.id, Peer: c, Proto: e.proto, Port: e.port, Len: e.bits}] =
			nodestate.PolicyValue{Allow: e.allow, Rule: e.rule}
	}
}

// decide resolves the set's rules for the addresses of a class; nil is class 0. A protocol gets entries
// where it is decided otherwise than the head says.
func (s *set) decide(c *class) decision {
	d := decision{head: s.segments(c, otherProto)[0].verdict}
	for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolICMP} {
		for _, seg := range s.segments(c, proto) {
			if seg.verdict == d.head {
				continue
			}
			d.protos |= nodestate.ProtoBit(proto)
			for _, p := range portPrefixes(seg.span) {
				d.lens |= 1 << p.bits
				d.entries = append(d.entries, entry{proto, p, seg.verdict})
			}
		}
	}
	return d
}

// segments returns the verdicts on all ports of a protocol, in the order of ports. The rules of a tier
// are looked at in their order and the first that matches decides; Pass hands on to the next tier. What
// no rule of a tier matches, and what the last tier passes on, is denied by the default rule.
func (s *set) segments(c *class, proto model.Protocol) []segment {
	open := []span{{0, 65535}}
	var decided []segment
	for _, tier := range s.tiers {
		var passed []span
		for i := range tier {
			r := &tier[i]
			if len(open) == 0 {
				break
			}
			if !r.matches(c) {
				continue
			}
			var taken []span
			taken, open = splitSpans(open, r.spans(c, proto))
			if r.action == model.Pass {
				passed = append(passed, taken...)
				continue
			}
			for _, t := range taken {
				decided = append(decided, segment{t, verdict{r.action == model.Allow, r.id}})
			}
		}
		open = mergeSpans(passed)
	}
	slices.SortFunc(decided, func(a, b segment) int { return int(a.first) - int(b.first) })
	return fill(decided, verdict{false, s.denyID})
}

// fill gives the ports between segments the default verdict and joins neighbours that agree.
func fill(decided []segment, def verdict) []segment {
	var out []segment
	push := func(s segment) {
		if n := len(out); n > 0 && out[n-1].verdict == s.verdict {
			out[n-1].last = s.last
			return
		}
		out = append(out, s)
	}
	next := 0
	for _, s := range decided {
		if int(s.first) > next {
			push(segment{span{uint16(next), s.first - 1}, def})
		}
		push(s)
		next = int(s.last) + 1
	}
	if next <= 65535 {
		push(segment{span{uint16(next), 65535}, def})
	}
	return out
}

// matches reports whether the rule is about the addresses of a class.
func (r *setRule) matches(c *class) bool {
	if r.everybody {
		return true
	}
	return c != nil && slices.ContainsFunc(r.peers, c.has)
}

// spans returns the ports of a protocol that the rule matches, sorted and disjoint.
func (r *setRule) spans(c *class, proto model.Protocol) []span {
	if r.anyPorts {
		return []span{{0, 65535}}
	}
	var out []span
	for _, p := range r.ports {
		if p.Named != "" {
			out = append(out, peerSpans(c, portName{p.Protocol, p.Named}, proto)...)
		} else if s, ok := covers(p, proto); ok {
			out = append(out, s)
		}
	}
	return mergeSpans(out)
}

// peerSpans returns the ports that the peers of a class call by a name.
func peerSpans(c *class, n portName, proto model.Protocol) []span {
	if c == nil {
		return nil
	}
	var out []span
	for _, a := range c.atoms {
		if a.named != nil && *a.named == n && a.number.proto == proto {
			out = append(out, span{a.number.port, a.number.port})
		}
	}
	return out
}
