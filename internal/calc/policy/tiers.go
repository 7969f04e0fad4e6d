// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
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

// nameIn is how lists of policies name one.
func nameIn(p *model.Policy) string {
	if model.KindInForce(p.Kind) != p.Kind {
		return p.Name.String() + " (staged)"
	}
	return p.Name.String()
}
