// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// Index finds the policies that may select something.
type Index struct {
	byNS     map[string][]*subject // those of exactly one namespace
	anywhere []*subject
	hosts    []*subject // those that may select host endpoints
	known    map[*model.Policy]*subject
}

// subject is a policy with its expression read.
type subject struct {
	policy *model.Policy
	expr   *selector.Selector // nil = every pod
	// It selects by labels of namespaces, or of service accounts.
	byNamespaceLabels, byAccountLabels bool
}

// NewIndex returns an index of some policies. It takes what has not changed from the index before,
// which may be nil.
func NewIndex(policies map[model.PolicyID]*model.Policy, before *Index) *Index {
	x := &Index{byNS: map[string][]*subject{}, known: make(map[*model.Policy]*subject, len(policies))}
	for _, p := range policies {
		var s *subject
		if before != nil {
			s = before.known[p]
		}
		if s == nil {
			s = newSubject(p)
		}
		x.add(s)
	}
	return x
}

func newSubject(p *model.Policy) *subject {
	s := &subject{policy: p, byNamespaceLabels: p.Subject.Namespaces != nil && len(p.Subject.Namespaces.Requirements) > 0}
	if p.Subject.Expression != "" {
		s.expr = peer.ParseExpression(p.Subject.Expression)
		s.byNamespaceLabels = s.byNamespaceLabels || peer.LooksAt(s.expr, model.PrefixNamespace)
		s.byAccountLabels = peer.LooksAt(s.expr, model.PrefixAccount)
	}
	return s
}

// selects reports whether the policy selects a pod.
func (s *subject) selects(c *cluster.View, pod *model.Pod) bool {
	return peer.Selects(c, &s.policy.Subject, pod) && (s.expr == nil || s.expr.MatchesFunc(peer.PodLabels(c, pod)))
}

// OfPod returns the policies that select the pod of an endpoint, in their order. A pod that is nil,
// not known (yet), might have any labels: every policy that could select it does, and known is
// false. So it is with a pod whose namespace or service account is not known, where one of these
// policies looks at their labels. Policies that cannot select the pod have no part in the answer.
func (x *Index) OfPod(c *cluster.View, name model.Name, pod *model.Pod) (list []*model.Policy, known bool) {
	var candidates []*subject
	for _, of := range [][]*subject{x.byNS[name.Namespace], x.anywhere} {
		for _, s := range of {
			if InForce(c, s.policy) {
				candidates = append(candidates, s)
			}
		}
	}
	known = pod != nil
	if known {
		namespace := c.Namespaces[name.Namespace] != nil
		account := pod.ServiceAccount == "" || c.ServiceAccounts[model.Name{Namespace: name.Namespace, Name: pod.ServiceAccount}] != nil
		known = !slices.ContainsFunc(candidates, func(s *subject) bool {
			return s.byNamespaceLabels && !namespace || s.byAccountLabels && !account
		})
	}
	for _, s := range candidates {
		if !known || s.selects(c, pod) {
			list = append(list, s.policy)
		}
	}
	slices.SortFunc(list, func(a, b *model.Policy) int { return compare(c, a, b) })
	return list, known
}

// OfHost returns the policies that select a host endpoint, in their order.
func (x *Index) OfHost(c *cluster.View, h *model.HostEndpoint) (list []*model.Policy) {
	for _, s := range x.hosts {
		if (s.expr == nil || s.expr.MatchesFunc(peer.HostLabels(h))) && InForce(c, s.policy) {
			list = append(list, s.policy)
		}
	}
	slices.SortFunc(list, func(a, b *model.Policy) int { return compare(c, a, b) })
	return list
}

// ForHostsOnly reports whether a policy is about no pod.
func ForHostsOnly(p *model.Policy) bool { return p.PreDNAT || p.DoNotTrack }

// InForce reports whether the tier of a policy exists. Where it does not, the policy has no place
// among the others: it neither isolates what it selects nor allows anything, and the agent names it
// in the node's status.
func InForce(c *cluster.View, p *model.Policy) bool {
	_, there := c.Tier(p.Tier)
	return there
}

// WithStaged returns the policies that there would be with the staged ones in force. A policy that
// would stay is the same one, so that sets of such policies are the same sets.
func WithStaged(policies map[model.PolicyID]*model.Policy, staged map[model.PolicyID]*model.StagedPolicy) map[model.PolicyID]*model.Policy {
	out := maps.Clone(policies)
	for _, p := range staged {
		if p.Delete {
			delete(out, p.Replaces())
		} else {
			out[p.Replaces()] = &p.Policy
		}
	}
	return out
}

// compare orders policies as they are looked at: by tier, order, then name.
func compare(c *cluster.View, a, b *model.Policy) int {
	return cmp.Or(compareTiers(c, a.Tier, b.Tier), cmp.Compare(a.Order, b.Order), table.CompareNames(a.Name, b.Name),
		strings.Compare(model.KindInForce(a.Kind), model.KindInForce(b.Kind)))
}

// compareTiers orders tiers by order, then name.
func compareTiers(c *cluster.View, a, b string) int {
	if a == b {
		return 0
	}
	s, _ := c.Tier(a)
	t, _ := c.Tier(b)
	return cmp.Or(cmp.Compare(s.Order, t.Order), strings.Compare(a, b))
}
