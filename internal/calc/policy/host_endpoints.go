// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// HostUse is what a set of a host endpoint evaluates.
type HostUse int

// What host endpoints evaluate.
const (
	HostOwn       HostUse = iota // what the node's own processes exchange
	HostForward                  // what the node hands on
	HostPreDNAT                  // what comes in, before Services
	HostUntracked                // each packet, before everything else
)

// String is the use's name in the names of rules.
func (u HostUse) String() string { return [...]string{"host", "forward", "preDNAT", "doNotTrack"}[u] }

// includes reports whether a policy is for this use.
func (u HostUse) includes(p *model.Policy) bool {
	switch u {
	case HostPreDNAT:
		return p.PreDNAT && !p.DoNotTrack
	case HostUntracked:
		return p.DoNotTrack
	case HostForward:
		return p.ApplyOnForward && !subject.ForHostsOnly(p)
	}
	return !subject.ForHostsOnly(p)
}

// hostUser is where a set of a host endpoint is used.
type hostUser struct {
	at  nodestate.HostInterface
	use HostUse
}

// isolate puts a set in its place.
func (u hostUser) isolate(dir direction, iso nodestate.Isolation, hosts map[nodestate.HostInterface]nodestate.HostEndpoint) {
	h := hosts[u.at]
	switch {
	case u.use == HostPreDNAT:
		h.PreDNAT = iso
	case u.use == HostOwn && dir == ingress:
		h.HostIngress = iso
	case u.use == HostOwn:
		h.HostEgress = iso
	case u.use == HostForward && dir == ingress:
		h.ForwardIngress = iso
	case u.use == HostForward:
		h.ForwardEgress = iso
	case dir == ingress:
		h.UntrackedIngress = iso
	default:
		h.UntrackedEgress = iso
	}
	hosts[u.at] = h
}

// hostsHere returns the host endpoints of this node by the index of their interface, 0 for all
// interfaces. Of several for one interface that with the smallest name counts. An automatic one,
// which the controller makes and which allows what no policy denies, counts only where no other one
// has its interface or all of them.
func hostsHere(c *cluster.View) map[int]*model.HostEndpoint {
	out := map[int]*model.HostEndpoint{}
	put := func(index int, h *model.HostEndpoint) {
		have := out[index]
		if have == nil || have.Automatic() && !h.Automatic() || have.Automatic() == h.Automatic() && h.Name < have.Name {
			out[index] = h
		}
	}
	for _, h := range c.HostEndpoints {
		if h.Node != c.Local.Node {
			continue
		}
		if h.Interface == model.AllInterfaces {
			put(0, h)
			continue
		}
		for _, l := range c.Local.Interfaces {
			expected := func(a netip.Addr) bool { return slices.Contains(h.ExpectedIPs, a) }
			if h.Interface == l.Name || h.Interface == "" && slices.ContainsFunc(l.Addrs, expected) {
				put(l.IfIndex, h)
			}
		}
	}
	if all := out[0]; all != nil && !all.Automatic() {
		maps.DeleteFunc(out, func(_ int, h *model.HostEndpoint) bool { return h.Automatic() })
	}
	return out
}

// bindHosts makes the sets of this node's host endpoints.
func (s *sets) bindHosts(out *tables) {
	for index, h := range hostsHere(s.c) {
		policies := s.before.subjects.OfHost(s.c, h)
		var would []*model.Policy
		if s.staged != nil {
			would = s.staged.OfHost(s.c, h)
		}
		differs := s.staged != nil && !slices.Equal(policies, would)
		for _, six := range []bool{false, true} {
			if six && !s.c.Ipv6 {
				continue
			}
			at := nodestate.HostInterface{IfIndex: index, IPv6: six}
			out.hosts[at] = nodestate.HostEndpoint{Name: h.Name, DSCP: h.DSCP}
			for use := HostOwn; use <= HostUntracked; use++ {
				for dir := range directions {
					if use != HostPreDNAT || dir == ingress {
						s.bindHost(h, policies, hostUser{at, use}, dir)
						if differs && use != HostUntracked { // of what has no flow there is no event
							s.hostPairs = append(s.hostPairs, hostPair{hostUser{at, use}, dir, s.hostSet(h, would, hostUser{at, use}, dir, true), h.Name})
						}
					}
				}
			}
		}
	}
}

// bindHost binds the set of one use of a host endpoint in one direction.
func (s *sets) bindHost(h *model.HostEndpoint, policies []*model.Policy, user hostUser, dir direction) {
	t := s.hostSet(h, policies, user, dir, false)
	if t == nil {
		return
	}
	t.vital = len(t.of) == 0
	if user.use != HostForward && !t.vital {
		t.failsafe = s.intern(s.newFailsafeSet(t, user, dir))
	}
	s.hosts[t] = append(s.hosts[t], user)
}

// hostSet finds or makes the set of one use of a host endpoint in one direction, nil where there is
// none: where no policy is for it, only what the node's own processes exchange is evaluated. Of one
// that staged policies would make staged is true: it is the one in force where that says the same,
// and is under a number of its own otherwise.
func (s *sets) hostSet(h *model.HostEndpoint, policies []*model.Policy, user hostUser, dir direction, staged bool) *set {
	var list []*bound
	for _, p := range policies {
		if user.use.includes(p) && (dir == ingress && p.AppliesIngress || dir == egress && p.AppliesEgress) {
			list = append(list, s.compile(p, dir))
		}
	}
	if len(list) == 0 && user.use != HostOwn {
		return nil
	}
	t := s.newHostSet(h, list, user, dir)
	if staged {
		t.name = "staged\n" + t.name
	}
	return s.intern(t)
}

// forHosts reports whether a set is a host endpoint's.
func (s *sets) forHosts(t *set) bool { return t.vital || len(s.hosts[t]) > 0 }

// hostCIDRs returns those of all prefixes at which something begins or ends that a host endpoint's
// set asks for. Where a longer one is left out, the questions of these sets have the same answers
// as in the next one around it.
func (s *sets) hostCIDRs(all map[netip.Prefix]nodestate.Class) map[netip.Prefix]nodestate.Class {
	out := map[netip.Prefix]nodestate.Class{}
	for _, t := range s.byKey {
		if !s.forHosts(t) {
			continue
		}
		for a := range t.atoms() {
			for part := range a.Each() {
				for _, p := range slices.Concat(part.CIDRs, part.Except) {
					if c, is := all[p]; is {
						out[p] = c
					}
				}
			}
		}
	}
	return out
}

// atoms returns what the set's rules ask about the other end.
func (t *set) atoms() iter.Seq[*peer.Atom] {
	return func(yield func(*peer.Atom) bool) {
		for i := range t.tiers {
			for j := range t.tiers[i].rules {
				for _, c := range t.tiers[i].rules[j].others {
					for _, l := range c {
						if !yield(l.Atom) {
							return
						}
					}
				}
			}
		}
	}
}

// intern returns the set of its text.
func (s *sets) intern(t *set) *set {
	if have := s.byKey[t.text]; have != nil { // no key of a pod's set has several lines
		return have
	}
	s.byKey[t.text] = t
	return t
}

// newFailsafeSet makes what takes the place of a set that does not fit: the failsafe ports are
// open, and nothing else. So no amount of policy locks those out who run the node.
func (s *sets) newFailsafeSet(of *set, user hostUser, dir direction) *set {
	t := &set{dir: dir, six: of.six, vital: true, deny: of.refused, passed: of.refused, denied: true, alone: of.alone, refused: of.refused}
	var text strings.Builder
	text.WriteString("host endpoint, too large: " + table.RuleText(of.refused) + "\n" + user.use.String() + " " + dir.String() + " " + strconv.FormatBool(t.six) + "\n")
	t.name = text.String()
	t.tiers = append(t.tiers, s.failsafes(user, dir, &text))
	t.text = text.String()
	return t
}

// newHostSet makes a set: the failsafe ports, then the tiers, then, of the node's own traffic, the
// profiles. Before Services and without flows the end of a tier decides nothing.
func (s *sets) newHostSet(h *model.HostEndpoint, list []*bound, user hostUser, dir direction) *set {
	t := &set{dir: dir, of: list, six: user.at.IPv6, alone: user.use == HostUntracked}
	ports := &model.Pod{Ports: h.Ports}
	var text, names strings.Builder
	text.WriteString("host endpoint " + strconv.Quote(h.Name) + " " + user.use.String() + " " + dir.String() + " " + strconv.FormatBool(t.six) + "\n")
	t.name = text.String()
	if user.use != HostForward {
		t.tiers = append(t.tiers, s.failsafes(user, dir, &text))
	}
	for i, b := range list {
		if i == 0 || b.policy.Tier != list[i-1].policy.Tier {
			tier := newTier(s.c, dir, list[i:])
			tier.pass = tier.pass || user.use == HostPreDNAT || user.use == HostUntracked
			t.tiers = append(t.tiers, tier)
			text.WriteString("tier " + strconv.Quote(b.policy.Tier) + tier.text() + "\n")
		}
		names.WriteString(nameIn(b.policy) + ",")
		text.WriteString(b.allText())
		for j := range b.rules {
			r, how := s.hostRule(b.rules[j], h, user)
			text.WriteByte(how)
			if r == nil {
				continue
			}
			last := &t.tiers[len(t.tiers)-1]
			last.rules = append(last.rules, r.in(dir, ports))
		}
		text.WriteByte('\n')
		for _, n := range b.names {
			text.WriteString(n.Text() + " = " + port.NumbersText(port.OfPod(ports, n)) + "\n")
		}
	}
	t.end(h, user, &text)
	t.text = text.String()
	t.refused = nodestate.Rule{Kind: "policy-too-large", Name: strings.TrimSuffix(names.String(), ","),
		Detail: user.use.String() + " " + dir.String() + " of host endpoint " + h.Name}
	return t
}

// end says what becomes of what no tier decides.
func (t *set) end(h *model.HostEndpoint, user hostUser, text *strings.Builder) {
	detail := t.dir.String() + " of host endpoint " + h.Name
	t.passed = nodestate.Rule{Kind: "default-allow", Name: user.use.String(), Detail: detail}
	if user.use == HostOwn {
		t.passed.Name = "profile"
		if !slices.Contains(h.Profiles, model.ProfileDefaultAllow) {
			t.passed.Kind, t.denied = "default-deny", true
		}
	}
	text.WriteString(t.passed.Kind + "\n")
	t.deny = nodestate.Rule{Kind: "default-deny", Name: t.passed.Name, Detail: detail}
	if i := slices.IndexFunc(t.tiers, func(x setTier) bool { return !x.pass }); i >= 0 {
		t.deny = t.tiers[i].deny
	}
}

// failsafes is the tier of the ports that are open whatever policy says. Where each packet is
// evaluated by itself, the answers of inbound ones are known by their source port, and those to
// outbound ones too; all of these go on to be tracked.
func (s *sets) failsafes(user hostUser, dir direction, text *strings.Builder) setTier {
	tier := setTier{pass: true, deny: nodestate.Rule{Kind: "default-deny", Name: "failsafe", Detail: dir.String()}}
	alone := user.use == HostUntracked
	add := func(list []model.Failsafe, field string, answers bool) {
		for _, f := range list {
			m := &model.Rule{Action: model.Allow}
			at := []model.PortRange{{Protocol: f.Protocol, First: f.Port, Last: f.Port}}
			if answers {
				m.Ports, m.SourcePorts = []model.PortRange{{Protocol: f.Protocol, Last: 65535}}, at
			} else {
				m.Ports = at
			}
			if f.Net.IsValid() {
				m.Other = &model.Entity{InNets: true, Nets: []netip.Prefix{f.Net}}
			}
			r := rule{of: m, others: s.atoms.Others(m, false), name: nodestate.Rule{Kind: "failsafe", Name: field, Detail: table.PortText(f.Port, f.Protocol)},
				text: "failsafe " + table.PortText(f.Port, f.Protocol) + " " + f.Net.String() + " " + strconv.FormatBool(answers) + "\n"}
			text.WriteString(r.text)
			tier.rules = append(tier.rules, &setRule{rule: &r, dst: port.NewMatch(m.Ports, nil), src: port.NewMatch(m.SourcePorts, nil), on: alone})
		}
	}
	in, out := s.c.Settings.FailsafeIn, s.c.Settings.FailsafeOut
	if dir == ingress {
		add(in, "failsafeInboundHostPorts", false)
	} else {
		add(out, "failsafeOutboundHostPorts", false)
	}
	if alone && dir == ingress {
		add(out, "failsafeOutboundHostPorts", true)
	}
	if alone && dir == egress {
		add(in, "failsafeInboundHostPorts", true)
	}
	if dir == egress || alone {
		if r := s.apiServers(text, dir == ingress); r != nil {
			r.on = alone
			tier.rules = append(tier.rules, r)
		}
	}
	return tier
}

// maxAPIServerPorts bounds the ports of APIService's endpoints that are open.
const maxAPIServerPorts = 16

// apiServers is the rule that leaves the path to the API servers open, or that of their answers,
// nil where none is known.
func (s *sets) apiServers(text *strings.Builder, answers bool) *setRule {
	var at []model.PortRange
	for _, sl := range s.atoms.SlicesOf(cluster.APIService) {
		if sl.Name != cluster.APIServerSlice {
			continue // it opens ports
		}
		for _, p := range sl.Ports {
			r := model.PortRange{Protocol: p.Protocol, First: p.Port, Last: p.Port}
			if p.Protocol == model.ProtocolTCP && p.Port != 0 && !slices.Contains(at, r) {
				at = append(at, r)
			}
		}
	}
	slices.SortFunc(at, func(a, b model.PortRange) int { return cmp.Compare(a.First, b.First) })
	at = at[:min(len(at), maxAPIServerPorts)]
	if len(at) == 0 {
		return nil
	}
	m := &model.Rule{Action: model.Allow, Ports: at, Other: &model.Entity{Service: cluster.APIService}}
	if answers {
		m.Ports, m.SourcePorts = []model.PortRange{{Protocol: model.ProtocolTCP, Last: 65535}}, at
	}
	r := rule{of: m, others: s.atoms.Others(m, false), name: nodestate.Rule{Kind: "failsafe", Name: "API servers", Detail: cluster.APIService.String()}}
	for _, p := range at {
		r.text += "failsafe API servers " + table.PortText(p.First, p.Protocol) + " " + strconv.FormatBool(answers) + "\n"
	}
	text.WriteString(r.text)
	return &setRule{rule: &r, dst: port.NewMatch(m.Ports, nil), src: port.NewMatch(m.SourcePorts, nil)}
}

// hostRule returns a rule as it is for a host endpoint, nil when it is not about it, and a letter
// that says which. What a rule says of the endpoint's own end must be the same for all addresses
// that may be there: where it is not, or these are not known, a rule that allows is left out, as
// is one that only logs, and any other denies.
func (s *sets) hostRule(r *rule, h *model.HostEndpoint, user hostUser) (*rule, byte) {
	m := r.of
	if m.IPVersion != 0 && (m.IPVersion == 6) != user.at.IPv6 || len(m.Ports) > 0 && onlyICMPOf(m.Ports, user.at.IPv6) {
		return nil, '0'
	}
	if m.Own == nil {
		return r, '1'
	}
	yes, no := false, false
	if user.use == HostOwn {
		for _, a := range s.c.Local.HostAddrs {
			// A rule for the node's network is not left out because of an address like that of
			// NodeLocal DNSCache, which nobody beyond the link reaches.
			if a.Is6() == user.at.IPv6 && !(m.Action == model.Allow && a.IsLinkLocalUnicast()) {
				holds := s.ownHolds(m.Own, h, a)
				yes, no = yes || holds, no || !holds
			}
		}
	}
	switch {
	case yes && !no:
		return r, '1'
	case no && !yes, m.Action == model.Allow, m.Action == model.Log:
		return nil, '0'
	}
	strict, copied := *r, *m
	copied.Action, copied.Own = model.Deny, nil
	strict.of, strict.base, strict.everywhere = &copied, r, nil
	return &strict, 'x'
}

// ownHolds reports whether a condition on the own end is true of an address of the node.
func (s *sets) ownHolds(e *model.Entity, h *model.HostEndpoint, a netip.Addr) bool {
	if e.InNets && !model.Within(e.Nets, a) || model.Within(e.NotNets, a) || e.Service != (model.Name{}) {
		return false
	}
	picks := func(text string) bool {
		expr := peer.ParseExpression(text)
		return expr.MatchesFunc(peer.HostLabels(h)) || model.Within(s.atoms.SetsWith(expr), a)
	}
	return (e.Selector == "" || picks(e.Selector)) && (e.NotSelector == "" || !picks(e.NotSelector))
}
