// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// setTier is what a tier's policies say in a set.
type setTier struct {
	rules  []*setRule
	pass   bool           // what no rule matches goes on to the next tier
	deny   nodestate.Rule // otherwise it is denied by this one
	denyID nodestate.RuleID
}

// inForce reports whether the tier of a policy exists. Where it does not, the policy has no place
// among the others: it neither isolates what it selects nor allows anything, and the agent names it
// in the node's status.
func inForce(c *cluster.View, p *model.Policy) bool {
	_, there := c.Tier(p.Tier)
	return there
}

// newTier begins a tier with the policies of a list that are in it.
func newTier(c *cluster.View, dir direction, list []*bound) setTier {
	name := list[0].policy.Tier
	t, _ := c.Tier(name)
	var names []string
	for _, b := range list {
		if b.policy.Tier != name {
			break
		}
		names = append(names, nameIn(b.policy))
	}
	return setTier{pass: t.Pass, deny: nodestate.Rule{Kind: "default-deny", Name: strings.Join(names, ","), Detail: dir.String(), Tier: name}}
}

func (t *setTier) text() string {
	if t.pass {
		return " passes"
	}
	return " denies"
}

// fallThrough is the rule of what every tier passes on, or of endpoints in no tier: pods' implicit
// profiles allow it.
func fallThrough(dir direction) nodestate.Rule {
	return nodestate.Rule{Kind: "default-allow", Name: "profile", Detail: dir.String()}
}

// comparePolicies orders policies as they are looked at: by tier, order, then name.
func comparePolicies(c *cluster.View, a, b *model.Policy) int {
	return cmp.Or(compareTiers(c, a.Tier, b.Tier), cmp.Compare(a.Order, b.Order), table.CompareNames(a.Name, b.Name),
		strings.Compare(model.KindInForce(a.Kind), model.KindInForce(b.Kind)))
}

// nameIn is how lists of policies name one.
func nameIn(p *model.Policy) string {
	if model.KindInForce(p.Kind) != p.Kind {
		return p.Name.String() + " (staged)"
	}
	return p.Name.String()
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
