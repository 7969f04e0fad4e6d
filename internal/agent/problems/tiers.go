// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"cmp"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// MissingTiers names the policies whose tier does not exist: they are not in force.
func MissingTiers(c *model.Cluster) []weirv1.Problem {
	var out []weirv1.Problem
	note := func(p *model.Policy, message string) {
		if _, there := c.Tier(p.Tier); there {
			return
		}
		out = append(out, weirv1.Problem{Object: p.Kind + " " + p.Name.String(), Field: "spec.tier", Value: p.Tier, Message: message,
			Action: "create the Tier " + p.Tier + ", or give the policy another tier, or delete it"})
	}
	for _, p := range c.Policies {
		note(p, "there is no such tier: the policy is not in force, and neither allows nor denies anything")
	}
	for _, p := range c.Staged {
		note(&p.Policy, "there is no such tier: what the policy would do is not found out")
	}
	slices.SortFunc(out, func(a, b weirv1.Problem) int { return cmp.Compare(a.Object, b.Object) })
	return out
}
