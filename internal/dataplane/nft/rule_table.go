package nft

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"
)

// ruleTable is our table of a family other than those of IP; it has one chain with one rule.
type ruleTable struct {
	nft    knftables.Interface
	name   string // with the family, for messages
	family uint8  // NFPROTO_…
	chain  string

	known   bool   // what the kernel has is what was asked for last, or cannot be
	there   bool   // the kernel has the table
	commits uint32 // transactions
}

// write makes the table anew, of sets and the chain; without a rule it is removed.
func (t *ruleTable) write(ctx context.Context, c Chain, sets ...knftables.Object) error {
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
		return fmt.Errorf("writing table %s: %w", t.name, err)
	}
	t.there = len(c.Rules) > 0
	t.commits++
	return nil
}

// lost says what somebody else took away of the table, which the next apply makes again.
func (t *ruleTable) lost() error {
	if !t.known || !t.there {
		return nil
	}
	found, err := comments(t.family)
	if err == nil && len(found[t.chain]) != 1 {
		err = fmt.Errorf("chain %s has %d rules, want 1", t.chain, len(found[t.chain]))
	}
	t.known = err == nil
	return err
}
