// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ruleIDs gives the rules of policies their numbers, and keeps both from one computation to the
// next: of a policy of many rules only those that came or went are looked at.
type ruleIDs struct {
	ids      *table.Ids[nodestate.RuleID]
	table    *table.Table[nodestate.RuleID, nodestate.Rule] // of a state, with rules that are not policies'
	of       [directions]map[model.PolicyID]*bound
	defaults map[string]nodestate.Rule // that sets have alongside those of policies, in the table
	named    map[string]bool           // these, and those that are in the table once a set is refused
	refused  map[string]nodestate.Rule // which are in the table
	sets     *table.Ids[nodestate.SetID]
	// renumbered says that others than those that came have other numbers than before: two texts
	// have one digest.
	renumbered bool
}

func newRuleIDs(t *table.Table[nodestate.RuleID, nodestate.Rule]) *ruleIDs {
	return &ruleIDs{ids: table.NewIDs(table.DigestPolicyRule[nodestate.RuleID]), table: t, defaults: map[string]nodestate.Rule{},
		named: map[string]bool{}, refused: map[string]nodestate.Rule{}, sets: table.NewIDs(table.Digest64[nodestate.SetID])}
}

// setIDs gives these sets, and no others, their numbers.
func (n *ruleIDs) setIDs(names map[string]struct{}) map[string]nodestate.SetID {
	var gone, come []string
	for name := range n.sets.ByText {
		if _, still := names[name]; !still {
			gone = append(gone, name)
		}
	}
	for name := range names {
		if _, had := n.sets.ByText[name]; !had {
			come = append(come, name)
		}
	}
	n.sets.Update(gone, come)
	return n.sets.ByText
}

// clear takes all rules of policies out of the table.
func (n *ruleIDs) clear() {
	for _, id := range n.ids.ByText {
		n.table.Delete(id)
	}
	*n = *newRuleIDs(n.table)
}

// update makes the rules of these policies, and those that sets have alongside, the ones that have
// numbers. Those named in refusals are not in the table until they are cut.
func (n *ruleIDs) update(compiled [directions]map[*model.Policy]*bound, ends, refusals map[string]nodestate.Rule) {
	var gone, come []string
	fresh := map[string]nodestate.Rule{}
	var numberless []*rule
	for dir := range directions {
		now := make(map[model.PolicyID]*bound, len(compiled[dir]))
		for p, b := range compiled[dir] {
			id := p.ID()
			now[id] = b
			was := n.of[dir][id]
			if was == b {
				continue
			}
			n.compare(was, b, func(r *rule) { gone = append(gone, table.RuleText(r.name)) }, func(r *rule) {
				text := table.RuleText(r.name)
				come = append(come, text)
				fresh[text], numberless = r.name, append(numberless, r)
			})
		}
		for id, b := range n.of[dir] {
			if now[id] == nil {
				for _, r := range b.rules {
					gone = append(gone, table.RuleText(r.name))
				}
			}
		}
		n.of[dir] = now
	}
	named := make(map[string]bool, len(ends)+len(refusals))
	for _, of := range []map[string]nodestate.Rule{ends, refusals} {
		for text := range of {
			if named[text] = true; !n.named[text] {
				come = append(come, text)
			}
		}
	}
	for text := range n.named {
		if !named[text] {
			gone = append(gone, text)
		}
	}
	for _, text := range gone {
		n.table.Delete(n.ids.ByText[text])
	}
	n.named = named
	if n.renumbered = len(n.ids.Update(gone, come)) > 0; n.renumbered {
		n.rewrite()
	}
	for _, r := range numberless {
		r.id = n.ids.ByText[table.RuleText(r.name)]
	}
	for text, r := range fresh {
		n.table.Put(n.ids.ByText[text], r)
	}
	n.updateDefaults(ends, refusals)
}

// compare calls gone and come for what differs between two versions of a policy's rules, nil for
// none before. Rules of one name keep their number.
func (n *ruleIDs) compare(was, is *bound, gone, come func(*rule)) {
	var before []*rule
	if was != nil {
		before = was.rules
	}
	for i := range max(len(before), len(is.rules)) {
		switch {
		case i >= len(before):
			come(is.rules[i])
		case i >= len(is.rules):
			gone(before[i])
		case before[i].name == is.rules[i].name:
			is.rules[i].id = before[i].id
		default:
			gone(before[i])
			come(is.rules[i])
		}
	}
}

// updateDefaults brings the rules that sets have alongside those of policies up to date in the
// table.
func (n *ruleIDs) updateDefaults(ends, refusals map[string]nodestate.Rule) {
	for text := range refusals {
		delete(ends, text)
	}
	for text := range n.defaults {
		if _, still := ends[text]; !still {
			if id := n.ids.ByText[text]; id != 0 && n.refused[text].Kind == "" {
				n.table.Delete(id)
			}
		}
	}
	for text, r := range ends {
		n.table.Put(n.ids.ByText[text], r)
	}
	n.defaults = ends
}

// rewrite makes the table anew.
func (n *ruleIDs) rewrite() {
	var all []nodestate.RuleID
	for id := range n.table.All() {
		if id&table.PolicyRuleBit != 0 {
			all = append(all, id)
		}
	}
	for _, id := range all {
		n.table.Delete(id)
	}
	for dir := range directions {
		for _, b := range n.of[dir] {
			for _, r := range b.rules {
				r.id = n.ids.ByText[table.RuleText(r.name)]
				n.table.Put(r.id, r.name)
			}
		}
	}
	for text, r := range n.refused {
		if id := n.ids.ByText[text]; id != 0 {
			n.table.Put(id, r)
		}
	}
}

// setRefused makes the rules of refused sets those that are in the table.
func (n *ruleIDs) setRefused(cut map[string]nodestate.Rule) {
	for text := range n.refused {
		if _, still := cut[text]; !still && n.defaults[text].Kind == "" {
			if id := n.ids.ByText[text]; id != 0 {
				n.table.Delete(id)
			}
		}
	}
	for text, r := range cut {
		n.table.Put(n.ids.ByText[text], r)
	}
	n.refused = cut
}
