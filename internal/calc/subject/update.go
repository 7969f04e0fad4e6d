// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// Replace puts a policy in the place of another one; either may be nil. It costs as much as that
// policy does, where NewIndex costs as much as all of them do. Nobody else may use the index
// meanwhile.
func (x *Index) Replace(was, now *model.Policy) {
	if was != nil {
		x.remove(x.known[was])
	}
	if now != nil && x.known[now] == nil {
		x.add(newSubject(now))
	}
}

func (x *Index) add(s *subject) {
	p := s.policy
	x.known[p] = s
	if model.KindInForce(p.Kind) == model.KindGlobalNetworkPolicy {
		x.hosts = append(x.hosts, s)
	}
	switch ns := p.Subject.Namespace; {
	case ForHostsOnly(p):
	case ns != "":
		x.byNS[ns] = append(x.byNS[ns], s)
	default:
		x.anywhere = append(x.anywhere, s)
	}
}

// remove takes out a policy; nil = it is not there.
func (x *Index) remove(s *subject) {
	if s == nil {
		return
	}
	p := s.policy
	delete(x.known, p)
	if model.KindInForce(p.Kind) == model.KindGlobalNetworkPolicy {
		x.hosts = without(x.hosts, s)
	}
	switch ns := p.Subject.Namespace; {
	case ForHostsOnly(p):
	case ns == "":
		x.anywhere = without(x.anywhere, s)
	default:
		if x.byNS[ns] = without(x.byNS[ns], s); len(x.byNS[ns]) == 0 {
			delete(x.byNS, ns)
		}
	}
}

// without takes an element out of a list, whose order does not matter.
func without(list []*subject, s *subject) []*subject {
	for i := range list {
		if list[i] == s {
			last := len(list) - 1
			list[i], list[last] = list[last], nil
			return list[:last]
		}
	}
	return list
}

// Policy returns which pods a policy of the index selects, of those of which everything is known:
// their namespace and their service account are there. nil = none.
func (x *Index) Policy(c *cluster.View, p *model.Policy) (selects func(*model.Pod) bool) {
	s := x.known[p]
	if s == nil || ForHostsOnly(p) || !InForce(c, p) {
		return nil
	}
	return func(pod *model.Pod) bool { return s.selects(c, pod) }
}
