// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// HostQuestion is a packet as a host endpoint sees it at an interface. Of Question, Endpoint is an
// address of the packet's family.
type HostQuestion struct {
	Question
	At  nodestate.HostInterface // as in nodestate.State.HostEndpoints
	Use HostUse                 // which of the host endpoint's sets is asked
}

// ExplainHost is Explain for a host endpoint of this node. ok is false where none is for the
// interface.
func ExplainHost(all *model.Cluster, q HostQuestion) (x Explanation, ok bool) {
	c := cluster.ViewOf(all)
	h := hostsHere(c)[q.At.IfIndex]
	if h == nil || q.At.IPv6 && !c.Ipv6 {
		return x, false
	}
	p := &tables{subjects: subject.NewIndex(c.Policies, nil), atoms: peer.NewAtoms(), hosts: map[nodestate.HostInterface]nodestate.HostEndpoint{}}
	dirty := model.AllDirty()
	p.atoms.Begin(c, &dirty)
	s := newSets(c, p)
	s.bindHosts(p)
	dir := egress
	if q.Ingress {
		dir = ingress
	}
	x = Explanation{HostEndpoint: h.Name, Known: true, Allow: true}
	for t, users := range s.hosts {
		if t.dir == dir && slices.Contains(users, hostUser{q.At, q.Use}) {
			s.explainHost(t, s.atoms.ClassesAt(s.named)(q.Peer), q, &x)
		}
	}
	return x, true
}

// explainHost walks the failsafe ports, the tiers and the profiles of a host endpoint's set for
// peers of a class.
func (s *sets) explainHost(t *set, c *peer.Class, q HostQuestion, x *Explanation) {
	x.Isolated = true
	tiers := t.tiers
	if q.Use != HostForward {
		tier, decided := explainFailsafes(&tiers[0], c, q.Question)
		x.Tiers = append(x.Tiers, tier)
		if decided != nil {
			x.Rule = decided.name
			return
		}
		tiers = tiers[1:]
	}
	if !s.explainTiers(t, tiers, c, q.Question, x) {
		x.Allow, x.Rule = !t.denied, t.passed
	}
}

// explainFailsafes names the failsafe port that is asked for, or says how many are not.
func explainFailsafes(tier *setTier, c *peer.Class, q Question) (out ExplainedTier, decided *setRule) {
	p := ExplainedPolicy{Kind: "failsafe", Name: "ports"}
	out = ExplainedTier{Name: "failsafe", End: EndDefaultPass}
	for i := range tier.rules {
		r := ExplainedRule{Detail: tier.rules[i].name.Detail, Action: actionNames[model.Allow], Why: tier.rules[i].whyNot(c, q)}
		r.Matched = r.Why == ""
		p.Rules = append(p.Rules, r)
		if r.Matched {
			out.End, decided = EndDecided, tier.rules[i]
			break
		}
	}
	out.Policies = []ExplainedPolicy{p}
	return out, decided
}
