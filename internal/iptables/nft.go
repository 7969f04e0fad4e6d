// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"

	"github.com/weir-net/weir/internal/kernel"
)

// removeNFT removes an owner's chains and rules from the tables that iptables keeps in nftables.
func removeNFT(of Owner) (Removed, error) {
	var out Removed
	err := EachTable(func(c *nftables.Conn, t *nftables.Table) error {
		if !slices.Contains(tables, t.Name) {
			return nil
		}
		r, err := cleanTable(c, t, of)
		out.Add(r)
		return err
	})
	return out, err
}

// EachTable calls f with each table of nftables of both families, by a connection to change it by.
// Where f returns an error it goes on; a kernel without nftables has none.
func EachTable(f func(*nftables.Conn, *nftables.Table) error) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	var errs []error
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		all, err := c.ListTablesOfFamily(family)
		if err != nil {
			if kernel.LacksNFTables(err) {
				continue // no nftables in this kernel
			}
			errs = append(errs, fmt.Errorf("list tables: %w", err))
			continue
		}
		for _, t := range all {
			if err := f(c, t); err != nil {
				errs = append(errs, fmt.Errorf("table %s: %w", t.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// cleanTable removes an owner's chains from one table, at once: all or nothing.
func cleanTable(c *nftables.Conn, t *nftables.Table, of Owner) (Removed, error) {
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return Removed{}, fmt.Errorf("list chains: %w", err)
	}
	var out Removed
	var mine []*nftables.Chain
	var others []*nftables.Rule
	for _, ch := range chains {
		if ch.Table.Name != t.Name {
			continue
		}
		if of.Chain(ch.Name) && ch.Hooknum == nil {
			mine = append(mine, ch)
			continue
		}
		rules, err := c.GetRules(t, ch)
		if err != nil {
			return out, fmt.Errorf("list the rules of chain %s: %w", ch.Name, err)
		}
		for _, r := range rules {
			if leads(r, of) || of.comments(comment(r)) {
				r.Table, r.Chain = t, ch
				others = append(others, r)
			}
		}
	}
	if len(mine) == 0 && len(others) == 0 {
		return out, nil
	}
	for _, r := range others {
		if err := c.DelRule(r); err != nil {
			return out, fmt.Errorf("remove a rule of chain %s: %w", r.Chain.Name, err)
		}
	}
	for _, ch := range mine {
		c.FlushChain(ch)
	}
	for _, ch := range mine {
		c.DelChain(ch)
	}
	if err := c.Flush(); err != nil {
		return out, fmt.Errorf("remove chains: %w", err)
	}
	return Removed{Rules: len(others), Chains: len(mine)}, nil
}

// leads reports whether a rule jumps or goes to a chain of the owner.
func leads(r *nftables.Rule, of Owner) bool {
	for _, e := range r.Exprs {
		if v, ok := e.(*expr.Verdict); ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) && of.Chain(v.Chain) {
			return true
		}
	}
	return false
}

// comment is that of a rule: versions of iptables write it as a match, or beside the rule.
func comment(r *nftables.Rule) string {
	if text, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
		return strings.TrimRight(text, "\x00")
	}
	for _, e := range r.Exprs {
		if m, ok := e.(*expr.Match); ok && m.Name == "comment" {
			switch info := m.Info.(type) {
			case *xt.Comment:
				text, _, _ := strings.Cut(string(*info), "\x00")
				return text
			case *xt.Unknown:
				text, _, _ := strings.Cut(string(*info), "\x00")
				return text
			}
		}
	}
	return ""
}
