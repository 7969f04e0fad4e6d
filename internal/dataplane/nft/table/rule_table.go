// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"
)

// RuleTable is our table of a family other than those of IP; it has one chain with one rule.
type RuleTable struct {
	nft    knftables.Interface
	Name   string // with the family, for messages
	family uint8  // NFPROTO_…
	chain  string

	Known   bool   // what the kernel has is what was asked for last, or cannot be
	There   bool   // the kernel has the table
	Commits uint32 // transactions
}

// NewRuleTable is the table of a family (NFPROTO_…) with a chain of a name; title is for messages.
func NewRuleTable(n knftables.Interface, title string, family uint8, chain string) RuleTable {
	return RuleTable{nft: n, Name: title, family: family, chain: chain}
}

// Write makes the table anew, of sets and the chain; without a rule it is removed.
func (t *RuleTable) Write(ctx context.Context, c Chain, sets ...knftables.Object) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if len(c.Rules) > 0 {
		tx.Add(&knftables.Table{})
		for _, s := range sets {
			tx.Add(s)
		}
		tx.Add(c.object(t.chain))
		for _, r := range c.Rules {
			tx.Add(&knftables.Rule{Chain: t.chain, Rule: r})
		}
	}
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("writing table %s: %w", t.Name, err)
	}
	t.There = len(c.Rules) > 0
	t.Commits++
	return nil
}

// Lost says what somebody else took away of the table, which the next apply makes again.
func (t *RuleTable) Lost() error {
	if !t.Known || !t.There {
		return nil
	}
	found, err := Comments(t.family)
	if err == nil && len(found[t.chain]) != 1 {
		err = fmt.Errorf("chain %s has %d rules, want 1", t.chain, len(found[t.chain]))
	}
	t.Known = err == nil
	return err
}
