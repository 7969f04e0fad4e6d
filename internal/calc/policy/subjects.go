// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// subjects finds the policies that may select a pod.
type subjects struct {
	byNS     map[string][]*subject // those of exactly one namespace
	anywhere []*subject
	// byNamespaceLabels says that a policy selects by labels of namespaces.
	byNamespaceLabels bool
	byAccountLabels   bool // or of service accounts
	known             map[*model.Policy]*subject
	hosts             []*subject // those that may select host endpoints
}

// subject is a policy with its expression read.
type subject struct {
	policy *model.Policy
	expr   *selector.Selector // nil = every pod
}

// indexSubjects takes what has not changed from the index before, which may be nil.
func indexSubjects(policies map[model.PolicyID]*model.Policy, before *subjects) *subjects {
	s := &subjects{byNS: map[string][]*subject{}, known: make(map[*model.Policy]*subject, len(policies))}
	for _, p := range policies {
		var sub *subject
		if before != nil {
			sub = before.known[p]
		}
		if sub == nil {
			sub = &subject{policy: p}
			if p.Subject.Expression != "" {
				sub.expr = peer.ParseExpression(p.Subject.Expression)
			}
		}
		s.known[p] = sub
		if model.KindInForce(p.Kind) == model.KindGlobalNetworkPolicy {
			s.hosts = append(s.hosts, sub)
		}
		if forHostsOnly(p) {
			continue
		}
		if ns := p.Subject.Namespace; ns != "" {
			s.byNS[ns] = append(s.byNS[ns], sub)
		} else {
			s.anywhere = append(s.anywhere, sub)
		}
		if sub.expr != nil && peer.LooksAt(sub.expr, model.PrefixNamespace) || p.Subject.Namespaces != nil && len(p.Subject.Namespaces.Requirements) > 0 {
			s.byNamespaceLabels = true
		}
		s.byAccountLabels = s.byAccountLabels || sub.expr != nil && peer.LooksAt(sub.expr, model.PrefixAccount)
	}
	return s
}

// selects reports whether the policy selects a pod.
func (s *subject) selects(c *cluster.View, pod *model.Pod) bool {
	return peer.Selects(c, &s.policy.Subject, pod) && (s.expr == nil || s.expr.MatchesFunc(peer.PodLabels(c, pod)))
}

// of returns the policies that select the pod of an endpoint, in their order. A pod that is not
// known (yet) might have any labels: every policy that could select it does, and known is false. So
// it is with a pod whose namespace or service account is not known, where the labels of these
// matter.
func (s *subjects) of(c *cluster.View, name model.Name) (list []*model.Policy, known bool) {
	pod := c.Pods[name]
	switch {
	case pod == nil:
	case s.byNamespaceLabels && c.Namespaces[name.Namespace] == nil,
		s.byAccountLabels && pod.ServiceAccount != "" && c.ServiceAccounts[model.Name{Namespace: name.Namespace, Name: pod.ServiceAccount}] == nil:
		pod = nil
	}
	for _, of := range [][]*subject{s.byNS[name.Namespace], s.anywhere} {
		for _, sub := range of {
			if (pod == nil || sub.selects(c, pod)) && inForce(c, sub.policy) {
				list = append(list, sub.policy)
			}
		}
	}
	slices.SortFunc(list, func(a, b *model.Policy) int { return comparePolicies(c, a, b) })
	return list, pod != nil
}
