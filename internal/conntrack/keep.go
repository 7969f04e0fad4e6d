// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// keptTable is the name of the tables by which the kernel goes on translating.
const keptTable = "weir-kept"

var keptFamilies = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}

// Keep lets connection tracking go on translating the connections that it translates, whose rules
// will be taken away. The kernel does it for as long as a network namespace has any chain of type
// nat (nf_nat_register_fn), and tracks connections for as long as any rule asks for that
// (nf_ct_netns_get), whatever they say: with the last one that goes, open connections are
// translated no longer. So it makes such a chain for each family, in the tables ip and ip6
// weir-kept, with a rule that changes nothing. They may be there already.
func Keep() error {
	var errs []error
	for _, family := range keptFamilies {
		conn, err := nftables.New()
		if err != nil {
			return keepError(err)
		}
		t := conn.AddTable(&nftables.Table{Family: family, Name: keptTable})
		c := conn.AddChain(&nftables.Chain{Table: t, Name: "keep", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource})
		conn.FlushChain(c)
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{ // ct direction original accept
			&expr.Ct{Register: 1, Key: expr.CtKeyDIRECTION}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
			&expr.Verdict{Kind: expr.VerdictAccept},
		}})
		if err := conn.Flush(); err != nil && !(family == nftables.TableFamilyIPv6 && lacksFamily(err)) {
			errs = append(errs, err)
		}
	}
	return keepError(errors.Join(errs...))
}

// Unkeep takes away what Keep made, if it is there: at once, or with idle only when connection
// tracking translates nothing any more.
func Unkeep(idle bool) error {
	conn, err := nftables.New()
	if err != nil {
		return keepError(err)
	}
	var found []*nftables.Table
	for _, family := range keptFamilies {
		tables, err := conn.ListTablesOfFamily(family)
		if lacksFamily(err) {
			continue
		}
		if err != nil {
			return keepError(err)
		}
		for _, t := range tables {
			if t.Name == keptTable {
				found = append(found, t)
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	if idle {
		if some, err := translates(); some || err != nil {
			return keepError(err)
		}
	}
	for _, t := range found {
		conn.DelTable(t)
	}
	return keepError(conn.Flush())
}

// translates reports whether connection tracking translates any connection.
func translates() (bool, error) {
	t, err := Open()
	if err != nil {
		return false, err
	}
	defer t.Close()
	some := false
	for _, six := range []bool{false, true} {
		if err := t.Each(six, func(e Entry) { some = some || e.Translated() }); err != nil {
			return false, err
		}
	}
	return some, nil
}

// lacksFamily reports whether an answer of nftables says that the kernel has no such family.
func lacksFamily(err error) bool {
	return kernel.LacksNFTables(err) || errors.Is(err, unix.EAFNOSUPPORT)
}

func keepError(err error) error {
	if err != nil {
		err = fmt.Errorf("letting connection tracking go on translating open connections: %w", err)
	}
	return err
}
