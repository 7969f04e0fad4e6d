package calc

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/selector"
)

// policyTables is what policy puts into a state.
type policyTables struct {
	ingress, egress map[netip.Addr]nodestate.Isolation // of the isolated endpoints
	policy          map[nodestate.PolicyKey]nodestate.PolicyValue
	peers           nodestate.Map[netip.Addr, nodestate.Class]
	peerCIDRs       map[netip.Prefix]nodestate.Class
	rules           map[nodestate.RuleID]nodestate.Rule
	staged          map[netip.Addr]nodestate.StagedIsolation
	unfit           []nodestate.Rule

	classes *classes // nil when nothing here is isolated
	depends dependencies
}

// policy resolves the policies that bind this node's endpoints. What it writes for a policy set and a
// class depends on nothing but the texts that their numbers are made from, so an entry never changes:
// a change of policy adds entries, points the endpoint to another set, and removes the old ones.
//
// Staged policies make classes of their own, which take room of the sets in force too. Where those or the classes
// do not fit with them, they are left out.
func policy(c *cluster) *policyTables {
	sets := newSets(c)
	sets.stage()
	out := resolve(c, sets)
	if len(sets.pairs) == 0 || !sets.cutOff && len(out.peerCIDRs) <= maxPeerCIDRs {
		return out
	}
	bare := resolve(c, newSets(c))
	bare.unfit = sortedRules(append(bare.unfit, sets.leftOut()...))
	return bare
}

// resolve binds the node's endpoints and makes the tables of their sets.
func resolve(c *cluster, sets *sets) *policyTables {
	out := &policyTables{
		ingress: map[netip.Addr]nodestate.Isolation{}, egress: map[netip.Addr]nodestate.Isolation{},
		policy:    map[nodestate.PolicyKey]nodestate.PolicyValue{},
		peerCIDRs: map[netip.Prefix]nodestate.Class{}, rules: map[nodestate.RuleID]nodestate.Rule{},
		staged: map[netip.Addr]nodestate.StagedIsolation{},
	}
	for a, ep := range c.Local.Endpoints {
		if c.carried(a) {
			sets.bind(a, ep)
		}
	}
	if len(sets.byKey) == 0 {
		sets.isolateStaged(out)
		return out
	}
	sets.number(out)
	classes := classify(c, sets.atoms, sets.named)
	classes.number(out)
	out.classes = classes
	sets.write(classes, out)
	sets.isolateStaged(out)
	out.depends = sets.atoms.depends
	return out
}

// dependencies are what policy depends on in some clusters only.
type dependencies struct {
	nodes    bool                // nodes' labels and addresses
	services map[model.Name]bool // the endpoints of these Services
	slices   map[model.Name]bool // which are in these slices now
}

// concern reports whether a change concerns them.
func (d *dependencies) concern(c *cluster, dirty *Dirty) bool {
	if d.nodes && dirty.Has(model.KindNodes) {
		return true
	}
	if len(d.services) == 0 {
		return false
	}
	if dirty.Has(model.KindSlices) {
		return true
	}
	for name := range dirty.Slices {
		if sl := c.Slices[name]; d.slices[name] || sl != nil && d.services[sl.Service] {
			return true
		}
	}
	return false
}

// direction of traffic as the isolated endpoint sees it.
type direction int

const (
	ingress direction = iota
	egress
	directions
)

func (d direction) String() string { return [...]string{"ingress", "egress"}[d] }

// subjects finds the policies that may select a pod.
type subjects struct {
	byNS     map[string][]*subject // those of exactly one namespace
	anywhere []*subject
	// byNamespaceLabels says that a policy selects by labels of namespaces.
	byNamespaceLabels bool
	byAccountLabels   bool // or of service accounts
}

// subject is a policy with its expression read.
type subject struct {
	policy *model.Policy
	expr   *selector.Selector // nil = every pod
}

func indexSubjects(policies map[model.PolicyID]*model.Policy) *subjects {
	s := &subjects{byNS: map[string][]*subject{}}
	for _, p := range policies {
		sub := &subject{policy: p}
		if p.Subject.Expression != "" {
			sub.expr = parseExpression(p.Subject.Expression)
		}
		if ns := p.Subject.Namespace; ns != "" {
			s.byNS[ns] = append(s.byNS[ns], sub)
		} else {
			s.anywhere = append(s.anywhere, sub)
		}
		if sub.expr != nil && looksAt(sub.expr, model.PrefixNamespace) || p.Subject.Namespaces != nil && len(p.Subject.Namespaces.Requirements) > 0 {
			s.byNamespaceLabels = true
		}
		s.byAccountLabels = s.byAccountLabels || sub.expr != nil && looksAt(sub.expr, model.PrefixAccount)
	}
	return s
}

// selects reports whether the policy selects a pod.
func (s *subject) selects(c *cluster, pod *model.Pod) bool {
	return selects(c, &s.policy.Subject, pod) && (s.expr == nil || s.expr.MatchesFunc(podLabels(c, pod)))
}

// of returns the policies that select the pod of an endpoint, in their order. A pod that is not known
// (yet) might have any labels: every policy that could select it does, and known is false. So it is with a
// pod whose namespace or service account is not known, where the labels of these matter.
func (s *subjects) of(c *cluster, name model.Name) (list []*model.Policy, known bool) {
	pod := c.Pods[name]
	switch {
	case pod == nil:
	case s.byNamespaceLabels && c.Namespaces[name.Namespace] == nil,
		s.byAccountLabels && pod.ServiceAccount != "" && c.ServiceAccounts[model.Name{Namespace: name.Namespace, Name: pod.ServiceAccount}] == nil:
		pod = nil
	}
	for _, of := range [][]*subject{s.byNS[name.Namespace], s.anywhere} {
		for _, sub := range of {
			if pod == nil || sub.selects(c, pod) {
				list = append(list, sub.policy)
			}
		}
	}
	slices.SortFunc(list, func(a, b *model.Policy) int { return comparePolicies(c, a, b) })
	return list, pod != nil
}
