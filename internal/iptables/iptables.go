// SPDX-License-Identifier: Apache-2.0

// Package iptables removes what another program left in the tables of iptables, of both kinds: the
// chains that are its own, the rules that lead to them, and rules with its comments in chains of
// others. Each table is changed at once, all or nothing. Nothing is touched that the owner does not
// name, and no program of iptables is needed.
package iptables

import (
	"errors"
	"fmt"
)

// Owner says what in a table is somebody's.
type Owner struct {
	// Chain reports whether a chain of the user's, by its name, is.
	Chain func(name string) bool
	// Comment reports whether a rule of another chain is, by its comment; nil = none is.
	Comment func(text string) bool
}

func (o Owner) comments(text string) bool { return text != "" && o.Comment != nil && o.Comment(text) }

// tables are those that are looked at.
var tables = []string{"raw", "mangle", "nat", "filter"}

// Removed counts what was removed.
type Removed struct{ Rules, Chains int }

// Add adds what else was removed.
func (r *Removed) Add(o Removed) {
	r.Rules += o.Rules
	r.Chains += o.Chains
}

// Remove removes an owner's chains and rules from all tables of this network namespace. With an
// error it returns what was removed nevertheless.
func Remove(of Owner) (Removed, error) {
	out, err := removeNFT(of)
	if err != nil {
		err = fmt.Errorf("nftables: %w", err)
	}
	legacy, err2 := removeLegacy(of)
	if err2 != nil {
		err2 = fmt.Errorf("iptables (legacy): %w", err2)
	}
	out.Add(legacy)
	return out, errors.Join(err, err2)
}
