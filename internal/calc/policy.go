package calc

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// policyTables is what policy puts into a state.
type policyTables struct {
	ingress, egress map[netip.Addr]nodestate.Isolation // of the isolated endpoints
	policy          map[nodestate.PolicyKey]nodestate.PolicyValue
	peers           nodestate.Map[netip.Addr, nodestate.Class]
	peerCIDRs       map[netip.Prefix]nodestate.Class
	rules           map[nodestate.RuleID]nodestate.Rule

	classes *classes // nil when nothing here is isolated
}

// policy resolves the policies that bind this node's endpoints. What it writes for a policy set and a
// class depends on nothing but the texts that their numbers are made from, so an entry never changes:
// a change of policy adds entries, points the endpoint to another set, and removes the old ones.
func policy(c *cluster) *policyTables {
	out := &policyTables{
		ingress: map[netip.Addr]nodestate.Isolation{}, egress: map[netip.Addr]nodestate.Isolation{},
		policy:    map[nodestate.PolicyKey]nodestate.PolicyValue{},
		peerCIDRs: map[netip.Prefix]nodestate.Class{}, rules: map[nodestate.RuleID]nodestate.Rule{},
	}
	sets := newSets(c)
	for a, ep := range c.Local.Endpoints {
		if c.carried(a) {
			sets.bind(a, ep)
		}
	}
	if len(sets.byKey) == 0 {
		return out
	}
	sets.number(out)
	classes := classify(c, sets.atoms, sets.named)
	classes.number(out)
	out.classes = classes
	for _, s := range sets.byKey {
		s.write(classes, out.policy)
	}
	return out
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
	byNS     map[string][]*model.Policy // those of exactly one namespace
	anywhere []*model.Policy
}

func indexSubjects(c *cluster) *subjects {
	s := &subjects{byNS: map[string][]*model.Policy{}}
	for _, p := range c.Policies {
		if ns := p.Subject.Namespace; ns != "" {
			s.byNS[ns] = append(s.byNS[ns], p)
		} else {
			s.anywhere = append(s.anywhere, p)
		}
	}
	for _, of := range s.byNS {
		slices.SortFunc(of, comparePolicies)
	}
	slices.SortFunc(s.anywhere, comparePolicies)
	return s
}

// of returns the policies that select the pod of an endpoint, in their order. A pod that is not known
// (yet) might have any labels: every policy that could select it does, and known is false.
func (s *subjects) of(c *cluster, name model.Name) (list []*model.Policy, known bool) {
	pod := c.Pods[name]
	for _, of := range [][]*model.Policy{s.byNS[name.Namespace], s.anywhere} {
		for _, p := range of {
			if pod == nil || selects(c, &p.Subject, pod) {
				list = append(list, p)
			}
		}
	}
	if len(s.anywhere) > 0 {
		slices.SortFunc(list, comparePolicies)
	}
	return list, pod != nil
}

// comparePolicies orders policies as they are looked at: by tier, order, then name.
func comparePolicies(a, b *model.Policy) int {
	return cmp.Or(compareTiers(a.Tier, b.Tier), cmp.Compare(a.Order, b.Order), strings.Compare(a.Kind, b.Kind),
		compareNames(a.Name, b.Name))
}

// compareTiers orders tiers by name, the tier "default" last.
func compareTiers(a, b string) int {
	if a == b {
		return 0
	}
	last := func(t string) int {
		if t == "default" {
			return 1
		}
		return 0
	}
	return cmp.Or(last(a)-last(b), strings.Compare(a, b))
}
