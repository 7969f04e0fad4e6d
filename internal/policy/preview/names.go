// SPDX-License-Identifier: Apache-2.0

package preview

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/past"
)

// domainsOf returns the domain names and wildcards that the policies of clusters have, sorted.
func domainsOf(all ...*model.Cluster) []string {
	out := map[string]struct{}{}
	add := func(names []string) {
		for _, n := range names {
			out[n] = struct{}{}
		}
	}
	for _, c := range all {
		for _, p := range c.Policies {
			for _, r := range p.Egress {
				for i := range r.Peers {
					add(r.Peers[i].Domains)
				}
			}
		}
		for _, s := range c.NetworkSets {
			add(s.Domains)
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// askEgress asks what policy says at the source. A record has the name in policy by which a
// connection was allowed, and no other: what that name, or all that the wildcard is, has in
// policies counts. Where the verdict would be another one with more names, it is not known.
func (r *run) askEgress(by *policy.Explainer, q *past.Question, asked policy.Question, out *evaluated) *policy.Explanation {
	inside := q.To.Pod != nil || r.nodes[q.To.Addr] != ""
	if !inside {
		for _, n := range r.domains {
			if slices.ContainsFunc(q.Domains, func(of string) bool { return n == of || model.DomainMatches(n, of) }) {
				asked.Names = append(asked.Names, n)
			}
		}
	}
	x, _ := by.Explain(asked)
	if !x.Allow && !inside && len(asked.Names) < len(r.domains) {
		asked.Names = r.domains
		if y, _ := by.Explain(asked); y.Allow {
			out.unknown = cmp.Or(out.unknown, LackDomains)
		}
	}
	return &x
}
