// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// What a set denies whose rules have domain names is asked again for each pattern that led the pod
// to the address, or by which the flow began: by the set that Names.Sets leads to, whose chains say
// by the packet's priority that they allow (docs/design/domain-names.md).

const (
	mapNamed       = "verdicts-by-name" // as verdicts, of sets that names lead to
	allowedByName  = "allowed-by-name"
	beganPrefix    = "began-by-"  // and the number of a pattern: notes the flow
	deniedPrefix   = "ask-names-" // in the place of a chain that denies
	patternsPrefix = "each-name-" // what it leads to for addresses that any name led to
	triedPrefix    = "try-by-name-"
)

// allowedNumber is the priority that says so: no set has this number.
var allowedNumber = expr.PriorityText(0xffff, 1)

// patternOf is a pattern of a set, with its number and the set that it leads to.
type patternOf struct {
	number uint32
	set    nodestate.SetID
}

// namesOf are the patterns of each set that is used, and the sets that they lead to.
func namesOf(s *nodestate.State, whys map[nodestate.SetID]reason.Reason) (out map[nodestate.SetID][]patternOf, tried map[nodestate.SetID]bool) {
	out, tried = map[nodestate.SetID][]patternOf{}, map[nodestate.SetID]bool{}
	if len(s.Names.Sets) == 0 {
		return out, tried
	}
	numbers := names.Numbers(&s.Names)
	for k, set := range s.Names.Sets {
		if n, has := numbers[k.Name]; has && whys[k.Set] == reason.PolicyEgress {
			out[k.Set] = append(out[k.Set], patternOf{n, set})
			tried[set] = true
		}
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b patternOf) int { return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.number, b.number)) })
	}
	return out, tried
}

// nameChains makes look-up 2 of sets that names lead to, and the chains that try them.
func (r *policyRender) nameChains() {
	by := *r
	by.byName = true
	for _, set := range slices.Sorted(maps.Keys(r.tried)) {
		by.verdictsFor(set)
	}
}

// withNames is what denies in a set, but for what its names allow.
func (r *policyRender) withNames(set nodestate.SetID, v nodestate.PolicyValue, why reason.Reason) string {
	deny := r.verdict(v, why)
	patterns := r.names[set]
	if len(patterns) == 0 || v.Allow || r.byName || r.turned || r.silent {
		return deny
	}
	const told, began = "ct original $ip saddr . ct reply $ip saddr . meta priority @" + names.Told, "ct id . meta priority @" + names.Began
	by := *r
	by.byName = true
	var each []string
	for _, p := range patterns {
		try := by.setChain(triedPrefix, "ct reply $ip saddr", nodestate.Isolation{Set: p.set})
		number := names.NumberText(p.number)
		note := beganPrefix + fmt.Sprintf("%08x", p.number)
		// A look-up evaluates the count of the element, too: it has to hold.
		r.table.Chains[note] = table.Chain{Rules: []string{"meta priority set " + number, fmt.Sprintf("add @%s { ct id . meta priority ct count %d }", names.Began, uint32(1<<31))}}
		for _, known := range []string{told, fmt.Sprintf("ct mark and %#x != 0 ", marks.EpochMask) + began} {
			each = append(each, "meta priority set "+number, known+" jump "+try, "meta priority "+allowedNumber+" goto "+note)
		}
	}
	each = append(each, "meta priority set none", deny)
	all := r.chain(patternsPrefix, r.expand(each))
	first := r.chain(deniedPrefix, r.expand([]string{
		"meta priority set none",
		told + " goto " + all,
		fmt.Sprintf("ct mark and %#x != 0 goto ", marks.EpochMask) + all,
		deny,
	}))
	*r.sum += table.Hash(first)
	return "goto " + first
}

// namedVerdict is a verdict of a set that names lead to: it says that it allows, and comes back.
func (r *policyRender) namedVerdict(v nodestate.PolicyValue, why reason.Reason) string {
	if !v.Allow {
		return "return"
	}
	name := allowedByName
	var rules []string
	if v.Log {
		name = fmt.Sprintf("%s-%d-%d", allowedByName, why, v.Rule)
		rules = events.ShowRules(events.Allow, why, v.Rule)
	}
	r.table.Chains[name] = table.Chain{Rules: append(rules, "meta priority set "+allowedNumber)}
	return "goto " + name
}

// WithoutCounts has flows that a name allowed not be noted, where the kernel does not count
// connections: they are evaluated again by what names lead to then.
func WithoutCounts(t *table.Table) {
	for name, c := range t.Chains {
		if strings.HasPrefix(name, beganPrefix) {
			t.Chains[name] = table.Chain{Rules: c.Rules[:1]}
		}
	}
}
