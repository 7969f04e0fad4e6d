// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// pair is what an address of an endpoint would have for sets if the staged policies were in force;
// nil is no isolation.
type pair struct {
	addr netip.Addr
	sets [directions]*set
}

// stage indexes the policies that there would be with the staged ones in force.
func (p *tables) stage(c *cluster.View) {
	if len(c.Staged) == 0 {
		p.withStaged = nil
		return
	}
	p.withStaged = subject.NewIndex(subject.WithStaged(c.Policies, c.Staged), p.withStaged)
}

// bindStaged finds or makes the sets that an endpoint's address would have, where its policies
// would be others.
func (s *sets) bindStaged(a netip.Addr, ep *model.LocalEndpoint, inForce []*model.Policy, known bool) {
	if s.staged == nil {
		return
	}
	policies, would := s.staged.OfPod(s.c, ep.Pod, s.c.Pods.Get(ep.Pod))
	if would == known && slices.Equal(policies, inForce) {
		return
	}
	p := pair{addr: a}
	for dir := range directions {
		p.sets[dir] = s.setOf(dir, policies, would, ep.Pod, a)
		if t := p.sets[dir]; t != nil && dir == egress && would {
			s.bindNames(t)
		}
	}
	s.pairs = append(s.pairs, p)
}

// isolateStaged gives the endpoints what they would have. One with a set that does not fit is left
// out, unless that set is in force: then it would be cut off as it is.
func (s *sets) isolateStaged(out *tables) {
	var unfit []nodestate.Rule
	for _, p := range s.pairs {
		var would [directions]nodestate.Isolation
		fits := true
		for dir, t := range p.sets {
			switch {
			case t == nil:
			case !t.tooLarge:
				would[dir] = nodestate.Isolation{Set: t.id, Rule: t.denyID}
			case len(s.users[t]) > 0:
				would[dir] = nodestate.Isolation{Set: t.refusedSet, Rule: t.refusedID}
			default:
				fits = false
				unfit = append(unfit, stagedTooLarge(t))
			}
		}
		if fits {
			out.staged[p.addr] = nodestate.StagedIsolation{Ingress: would[ingress], Egress: would[egress]}
		}
	}
	unfit = append(unfit, s.isolateStagedHosts(out)...)
	out.unfit = sortedRules(append(unfit, s.unfit...))
}

// hostPair is a set that a host endpoint would have in one use and direction; nil evaluates
// nothing.
type hostPair struct {
	user hostUser
	dir  direction
	set  *set
	name string // of the host endpoint
}

// isolateStagedHosts is isolateStaged for host endpoints: one with a set that does not fit is left
// out.
func (s *sets) isolateStagedHosts(out *tables) (unfit []nodestate.Rule) {
	left := map[nodestate.HostInterface]bool{}
	for _, p := range s.hostPairs {
		var would nodestate.Isolation
		switch {
		case p.set == nil:
		case !p.set.tooLarge:
			would = nodestate.Isolation{Set: p.set.id, Rule: p.set.denyID}
		default:
			left[p.user.at] = true
			unfit = append(unfit, stagedTooLarge(p.set))
		}
		h := out.hostsStaged[p.user.at]
		h.Name = p.name
		out.hostsStaged[p.user.at] = h
		p.user.isolate(p.dir, would, out.hostsStaged)
	}
	for at := range left {
		delete(out.hostsStaged, at)
	}
	return unfit
}

// leftOut names all sets that only staged policies make.
func (s *sets) leftOut() []nodestate.Rule {
	var out []nodestate.Rule
	for _, p := range s.pairs {
		for _, t := range p.sets {
			if t != nil && len(s.users[t]) == 0 {
				out = append(out, stagedTooLarge(t))
			}
		}
	}
	for _, p := range s.hostPairs {
		if p.set != nil && !s.forHosts(p.set) {
			out = append(out, stagedTooLarge(p.set))
		}
	}
	return out
}

func stagedTooLarge(t *set) nodestate.Rule {
	r := t.refused
	r.Kind = "staged-" + r.Kind
	return r
}

// sortedRules returns rules in their order, each once.
func sortedRules(all []nodestate.Rule) []nodestate.Rule {
	slices.SortFunc(all, func(a, b nodestate.Rule) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Detail, b.Detail), cmp.Compare(a.Tier, b.Tier))
	})
	return slices.Compact(all)
}
