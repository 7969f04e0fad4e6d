// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Question is a packet as policy sees it from one of its ends. Of ICMP, Ports is as in
// nodestate.Ports.
type Question struct {
	Endpoint, Peer netip.Addr // Endpoint is one of this node's
	Ingress        bool       // to the endpoint
	Proto          model.Protocol
	Ports          nodestate.Ports
	// Names are the patterns of domain names that led the endpoint to the peer.
	Names []string
}

// Explanation says how policy decides a question: what was looked at, in its order, until the
// verdict.
type Explanation struct {
	Pod model.Name `json:"pod"`
	// HostEndpoint is the host endpoint that evaluates, in the place of a pod; of those Isolated
	// says that there is something to evaluate by.
	HostEndpoint string `json:"hostEndpoint,omitempty"`

	Isolated bool            `json:"isolated"` // a policy of this direction selects the pod; without one everything is allowed
	Known    bool            `json:"known"`    // the pod and its namespace are known; otherwise whatever could select it isolates it
	Tiers    []ExplainedTier `json:"tiers,omitempty"`
	Allow    bool            `json:"allow"`
	Rule     nodestate.Rule  `json:"rule"` // that decided; zero without isolation
}

// ExplainedTier is a tier that was looked at.
type ExplainedTier struct {
	Name     string            `json:"name"`
	Policies []ExplainedPolicy `json:"policies"`
	End      string            `json:"end"` // how it ended: EndDecided, EndPassed, EndDefaultPass, EndDefaultDeny
}

// How a tier ends.
const (
	EndDecided     = "decided"      // by a rule
	EndPassed      = "passed"       // by a rule with the action Pass
	EndDefaultPass = "default pass" // no rule matched, and the tier passes
	EndDefaultDeny = "default deny" // no rule matched, and the tier denies
)

// ExplainedPolicy is a policy that selects the endpoint.
type ExplainedPolicy struct {
	Kind    string          `json:"kind"`
	Name    string          `json:"name"`
	Invalid string          `json:"invalid,omitempty"` // what in it cannot be enforced
	Rules   []ExplainedRule `json:"rules,omitempty"`   // in their order; those after a match are not looked at
}

// ExplainedRule is a rule that was looked at.
type ExplainedRule struct {
	Detail  string `json:"detail"` // as nodestate.Rule has it
	Action  string `json:"action"`
	Matched bool   `json:"matched"`
	// Why it did not match: the first condition that does not hold, one of the Not constants.
	Why string `json:"why,omitempty"`
	// ByName and BySource say that the answer depends on which ports a pod, or a Service's
	// endpoint, has by a name, and on the source port.
	ByName   bool `json:"-"`
	BySource bool `json:"-"`
}

// Why a rule does not match.
const (
	NotEnforced   = "not enforced" // it would allow or pass, and its policy cannot be enforced exactly
	NotLog        = "logs only"    // it does match: the connection is logged, and the rules after it decide
	NotOwnEnd     = "own end"      // Family, or what the rule asks of the endpoint itself
	NotProtocol   = "protocol"
	NotPeer       = "peer"
	NotPort       = "port" // of the destination; of ICMP type and code
	NotSourcePort = "source port"
)

var actionNames = [...]string{model.Allow: "Allow", model.Deny: "Deny", model.Pass: "Pass", model.Log: "Log"}

// Explain answers a question about an endpoint of c.Local.Node by its policies, rule by rule. ok is
// false when no such endpoint is known. It comes to the verdict of a Compiler's tables, as far as
// these are not too large.
func Explain(all *model.Cluster, q Question) (x Explanation, ok bool) {
	return newExplainer(all, q.Endpoint).Explain(q)
}

// Explainer answers many questions as Explain does, about a cluster that does not change. It is for
// one goroutine.
type Explainer struct {
	sets    *sets
	of      [directions]map[netip.Addr]*set
	known   map[netip.Addr]bool // endpoints; false: see Explanation.Known
	classOf func(netip.Addr) *peer.Class
	classes map[netip.Addr]*peer.Class
}

// NewExplainer compiles the policies of all endpoints of c.Local.Node.
func NewExplainer(all *model.Cluster) *Explainer {
	return newExplainer(all, slices.Collect(maps.Keys(all.Local.Endpoints))...)
}

func newExplainer(all *model.Cluster, endpoints ...netip.Addr) *Explainer {
	c := cluster.ViewOf(all)
	// All from the objects, with nothing of what a Compiler keeps: it must come to the same.
	p := &tables{subjects: subject.NewIndex(c.Policies, nil), atoms: peer.NewAtoms()}
	dirty := model.AllDirty()
	p.atoms.Begin(c, &dirty)
	e := &Explainer{sets: newSets(c, p), of: [directions]map[netip.Addr]*set{{}, {}}, known: map[netip.Addr]bool{}, classes: map[netip.Addr]*peer.Class{}}
	for _, a := range endpoints {
		ep := c.Local.Endpoints[a]
		if ep == nil || !c.Carried(a) {
			continue
		}
		e.sets.bind(a, ep)
		_, e.known[a] = p.subjects.OfPod(c, ep.Pod, c.Pods.Get(ep.Pod))
	}
	for t, users := range e.sets.users {
		for _, a := range users {
			e.of[t.dir][a] = t
		}
	}
	return e
}

// Explain answers a question; ok is false when no such endpoint is known.
func (e *Explainer) Explain(q Question) (x Explanation, ok bool) {
	known, ok := e.known[q.Endpoint]
	if !ok {
		return x, false
	}
	x = Explanation{Pod: e.sets.c.Local.Endpoints[q.Endpoint].Pod, Known: known, Allow: true}
	dir := egress
	if q.Ingress {
		dir = ingress
	}
	if t := e.of[dir][q.Endpoint]; t != nil {
		e.sets.explain(t, e.class(q.Peer), q, &x)
	}
	return x, true
}

// class returns the class of an address, which stays the same.
func (e *Explainer) class(a netip.Addr) *peer.Class {
	if e.classOf == nil {
		e.classOf = e.sets.atoms.ClassesAt(e.sets.named)
	}
	c, known := e.classes[a]
	if !known {
		c = e.classOf(a)
		e.classes[a] = c
	}
	return c
}

// explain walks the tiers of a set for peers of a class.
func (s *sets) explain(t *set, c *peer.Class, q Question, x *Explanation) {
	x.Isolated = true
	if !x.Known {
		x.Allow, x.Rule = false, t.deny
		for _, b := range t.of {
			x.Tiers = append(x.Tiers, ExplainedTier{Name: b.policy.Tier, End: EndDefaultDeny,
				Policies: []ExplainedPolicy{{Kind: b.policy.Kind, Name: b.policy.Name.String(), Invalid: b.policy.Invalid}}})
		}
		return
	}
	if !s.explainTiers(t, t.tiers, c, q, x) {
		x.Rule = fallThrough(t.dir)
	}
}

// explainTiers walks those tiers of a set that policies are in. False: each passes on.
func (s *sets) explainTiers(t *set, tiers []setTier, c *peer.Class, q Question, x *Explanation) bool {
	left := t.of
	for i := range tiers {
		of := left
		if end := slices.IndexFunc(left, func(b *bound) bool { return b.policy.Tier != left[0].policy.Tier }); end >= 0 {
			of = left[:end]
		}
		left = left[len(of):]
		tier, decided := s.explainTier(t, &tiers[i], of, c, q)
		x.Tiers = append(x.Tiers, tier)
		switch {
		case decided != nil:
			x.Allow, x.Rule = decided.of.Action == model.Allow, decided.name
			return true
		case tier.End == EndDefaultDeny:
			x.Allow, x.Rule = false, tiers[i].deny
			return true
		}
	}
	return false
}

// explainTier walks a tier's policies. decided is the rule that allows or denies, nil when none
// does.
func (s *sets) explainTier(t *set, tier *setTier, of []*bound, c *peer.Class, q Question) (out ExplainedTier, decided *setRule) {
	out = ExplainedTier{Name: of[0].policy.Tier, End: EndDefaultDeny}
	for _, b := range of {
		p := ExplainedPolicy{Kind: b.policy.Kind, Name: b.policy.Name.String(), Invalid: b.policy.Invalid}
		matched := s.explainPolicy(t, tier, b, c, q, &p)
		out.Policies = append(out.Policies, p)
		switch {
		case matched == nil:
		case matched.of.Action == model.Pass:
			out.End = EndPassed
			return out, nil
		default:
			out.End = EndDecided
			return out, matched
		}
	}
	if tier.pass {
		out.End = EndDefaultPass
	}
	return out, nil
}

// explainPolicy looks at a policy's rules until one matches, and returns it.
func (s *sets) explainPolicy(t *set, tier *setTier, b *bound, c *peer.Class, q Question, p *ExplainedPolicy) *setRule {
	rules := b.policy.Egress
	if t.dir == ingress {
		rules = b.policy.Ingress
	}
	for i := range rules {
		m := &rules[i]
		r := ExplainedRule{Detail: ruleName(b.policy, t.dir, i, m).Detail, Action: actionNames[m.Action]}
		at := slices.IndexFunc(b.rules, func(r *rule) bool { return r.of == m })
		in := -1
		if at >= 0 {
			// A host endpoint may have a stricter one in its place.
			in = slices.IndexFunc(tier.rules, func(r *setRule) bool { return r.rule == b.rules[at] || r.rule.name == b.rules[at].name })
		}
		switch {
		case at < 0:
			r.Why = NotEnforced
		case in < 0:
			r.Why = NotOwnEnd
		default:
			r.Action = actionNames[tier.rules[in].of.Action]
			r.Why = tier.rules[in].whyNot(c, q)
			r.ByName, r.BySource = tier.rules[in].dependsOn(c, q, r.Why)
			if r.Why == "" && m.Action == model.Log {
				r.Why = NotLog
			}
		}
		r.Matched = r.Why == ""
		p.Rules = append(p.Rules, r)
		if r.Matched {
			return tier.rules[in]
		}
	}
	return nil
}

// dependsOn reports whether a rule's answer about peers of a class depends on which ports have a
// name, and on the source port: it asks for them, and no other condition fails before.
func (r *setRule) dependsOn(c *peer.Class, q Question, why string) (byName, bySource bool) {
	m := r.of
	if slices.ContainsFunc(r.others, func(l peer.Clause) bool { return !l.TrueOf(c) && !l.TrueByName(q.Names) }) {
		return false, false
	}
	for _, list := range [][]model.PortRange{m.Ports, m.NotPorts, m.SourcePorts, m.NotSourcePorts} {
		byName = byName || slices.ContainsFunc(list, func(p model.PortRange) bool {
			_, named := port.NameOf(p)
			return named && (p.Protocol == model.ProtocolAny || p.Protocol == q.Proto)
		})
	}
	return byName, len(m.SourcePorts)+len(m.NotSourcePorts) > 0 && why != NotProtocol && why != NotPort
}

// whyNot returns the first condition of a rule that does not hold for peers of a class, empty when
// all do.
func (r *setRule) whyNot(c *peer.Class, q Question) string {
	dst := q.Ports.Dst
	if nodestate.ProtoBit(q.Proto, !q.Endpoint.Is4()) == nodestate.ProtoBitOther {
		dst = 0
	}
	switch {
	case r.of.NotProtocol != model.ProtocolAny && r.of.NotProtocol == q.Proto, !r.dst.Any && len(port.SpansOf(r.dst.In, c, q.Proto)) == 0:
		return NotProtocol
	case slices.ContainsFunc(r.others, func(l peer.Clause) bool { return !l.TrueOf(c) && !l.TrueByName(q.Names) }):
		return NotPeer
	case !within(r.dst.Spans(c, q.Proto), dst):
		return NotPort
	case r.src.Conditional() && !within(r.src.Spans(c, q.Proto), q.Ports.Src):
		return NotSourcePort
	}
	return ""
}
