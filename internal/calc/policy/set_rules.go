// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// compile prepares one direction of a policy, once for as long as it is the same.
func (s *sets) compile(p *model.Policy, dir direction) *bound {
	if b, ok := s.compiled[dir][p]; ok {
		return b
	}
	b, ok := s.before.compiled[dir][p]
	if ok {
		s.reuse(b)
	} else {
		s.before.serial++
		b = &bound{serial: s.before.serial, policy: p}
		s.compileRules(b, dir, s.formerly(p, dir))
	}
	s.compiled[dir][p] = b
	for _, n := range b.asked {
		s.named[n] = true
	}
	return b
}

// formerly returns what was compiled of the policy of this name before, nil when there is none.
func (s *sets) formerly(p *model.Policy, dir direction) *bound {
	if s.former[dir] == nil {
		s.former[dir] = make(map[model.PolicyID]*bound, len(s.before.compiled[dir]))
		for q, b := range s.before.compiled[dir] {
			s.former[dir][q.ID()] = b
		}
	}
	return s.former[dir][p.ID()]
}

// reuse notes that this computation uses what another one compiled.
func (s *sets) reuse(b *bound) {
	for _, r := range b.rules {
		s.reuseRule(r)
	}
}

func (s *sets) reuseRule(r *rule) {
	for _, c := range r.others {
		for i := range c {
			c[i].Atom = s.atoms.Again(c[i].Atom)
		}
	}
}

// compileRules compiles the rules of a policy; those that are as they were formerly (nil: there
// were none) stay the same.
func (s *sets) compileRules(b *bound, dir direction, former *bound) {
	p := b.policy
	rules := p.Ingress
	if dir == egress {
		rules = p.Egress
	}
	var before []*rule
	if former != nil && former.policy.Tier == p.Tier {
		before = former.rules
	}
	b.rules = make([]*rule, 0, len(rules))
	for i := range rules {
		if p.Invalid != "" && rules[i].Action != model.Deny {
			continue // what cannot be enforced exactly allows nothing
		}
		for len(before) > 0 && before[0].index < i {
			before = before[1:]
		}
		var r *rule
		if len(before) > 0 && before[0].index == i && before[0].of.Equal(&rules[i]) {
			r = before[0]
			r.adopt(&rules[i])
			s.reuseRule(r)
		} else {
			r = s.compileRule(p, dir, i, &rules[i])
		}
		b.rules = append(b.rules, r)
		b.byAddr = b.byAddr || byAddr(r.of)
		s.noteNames(b, dir, r.of)
	}
}

// allText says all that a policy's rules say.
func (b *bound) allText() string {
	if b.text == "" {
		var text strings.Builder
		text.WriteString("policy " + b.policy.Kind + " " + strconv.Quote(b.policy.Name.String()) + " tier " + strconv.Quote(b.policy.Tier) + "\n")
		for _, r := range b.rules {
			text.WriteString(r.text)
		}
		b.text = text.String()
	}
	return b.text
}

// noteNames notes by what names a rule calls ports: those of the endpoint itself, and those of the
// other end.
func (s *sets) noteNames(b *bound, dir direction, m *model.Rule) {
	for i, list := range [...][]model.PortRange{m.Ports, m.NotPorts, m.SourcePorts, m.NotSourcePorts} {
		own := (dir == ingress) == (i < 2)
		for _, p := range list {
			n, ok := port.NameOf(p)
			switch {
			case !ok:
			case !own:
				b.asked = append(b.asked, n)
			case !slices.Contains(b.names, n):
				b.names = append(b.names, n)
			}
		}
	}
}

// byAddr reports whether a rule may hold for one address of a pod and not for another, or mean
// something else.
func byAddr(m *model.Rule) bool {
	icmp := func(p model.Protocol) bool { return p == model.ProtocolICMP || p == model.ProtocolICMPv6 }
	return m.IPVersion != 0 || m.Own != nil || icmp(m.NotProtocol) ||
		slices.ContainsFunc(m.Ports, func(p model.PortRange) bool { return icmp(p.Protocol) })
}

func (s *sets) compileRule(p *model.Policy, dir direction, index int, m *model.Rule) *rule {
	r := &rule{of: m, index: index, others: s.atoms.Others(m, dir == egress && m.Action == model.Allow), name: ruleName(p, dir, index, m), bound: true}
	var text strings.Builder
	text.WriteString(r.name.Detail + " " + [...]string{"allow", "deny", "pass", "log"}[m.Action])
	if len(r.others) == 0 {
		text.WriteString(" everybody")
	}
	for _, c := range r.others {
		text.WriteString("\n  one of")
		for _, l := range c {
			text.WriteString(l.Text())
		}
	}
	if m.NotProtocol != model.ProtocolAny {
		text.WriteString("\n  not " + m.NotProtocol.String())
	}
	for _, of := range []struct {
		name string
		list []model.PortRange
	}{{"", m.Ports}, {"not ", m.NotPorts}, {"source ", m.SourcePorts}, {"not source ", m.NotSourcePorts}} {
		for _, pr := range of.list {
			text.WriteString("\n  " + of.name + port.RangeText(pr))
		}
	}
	text.WriteByte('\n')
	r.text = text.String()
	return r
}

// ruleName names a rule of a policy by its place, and by its own name where it has one.
func ruleName(p *model.Policy, dir direction, index int, m *model.Rule) nodestate.Rule {
	n := nodestate.Rule{Kind: p.Kind, Name: p.Name.String(), Detail: dir.String() + "[" + strconv.Itoa(index) + "]", Tier: p.Tier}
	if m.Name != "" {
		n.Detail += " " + strconv.Quote(m.Name)
	}
	return n
}
