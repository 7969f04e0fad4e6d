// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// cleanNFT removes the tables of kube-proxy's mode nftables, and its chains from those that
// iptables keeps in nftables, with the rules that lead to them.
func cleanNFT() (Removed, error) {
	var out Removed
	c, err := nftables.New()
	if err != nil {
		return out, fmt.Errorf("open a netlink socket: %w", err)
	}
	var errs []error
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		tables, err := c.ListTablesOfFamily(family)
		if err != nil {
			if kernel.LacksNFTables(err) {
				continue // no nftables in this kernel
			}
			errs = append(errs, fmt.Errorf("list tables: %w", err))
			continue
		}
		for _, t := range tables {
			var r Removed
			var err error
			switch t.Name {
			case "kube-proxy":
				c.DelTable(t)
				if err = c.Flush(); err == nil {
					r.Tables++
				}
			case "nat", "filter", "mangle":
				r, err = cleanTable(c, t)
			}
			out.add(r)
			if err != nil {
				errs = append(errs, fmt.Errorf("table %s: %w", t.Name, err))
			}
		}
	}
	return out, errors.Join(errs...)
}

// cleanTable removes kube-proxy's chains from one table, at once: all or nothing.
func cleanTable(c *nftables.Conn, t *nftables.Table) (Removed, error) {
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
		if ours(ch.Name) && ch.Hooknum == nil {
			mine = append(mine, ch)
			continue
		}
		rules, err := c.GetRules(t, ch)
		if err != nil {
			return out, fmt.Errorf("list the rules of chain %s: %w", ch.Name, err)
		}
		for _, r := range rules {
			if leads(r) {
				r.Table, r.Chain = t, ch
				others = append(others, r)
			}
		}
	}
	if len(mine) == 0 {
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
		return out, fmt.Errorf("remove kube-proxy's chains: %w", err)
	}
	return Removed{Rules: len(others), Chains: len(mine)}, nil
}

// leads reports whether a rule jumps or goes to a chain of kube-proxy.
func leads(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		if v, ok := e.(*expr.Verdict); ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) && ours(v.Chain) {
			return true
		}
	}
	return false
}

func cleanSets() (Removed, error) {
	all, err := netlink.IpsetListAll()
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
			return Removed{}, nil // no ipset in this kernel
		}
		return Removed{}, fmt.Errorf("list ipsets: %w", err)
	}
	var out Removed
	var errs []error
	for _, s := range all {
		if !ourSet(s.SetName) {
			continue
		}
		if err := netlink.IpsetDestroy(s.SetName); err != nil {
			errs = append(errs, fmt.Errorf("destroy ipset %s: %w", s.SetName, err))
			continue
		}
		out.Sets++
	}
	return out, errors.Join(errs...)
}

// cleanDevice removes the device of mode IPVS, with the addresses of Services on it.
func cleanDevice() (Removed, error) {
	l, err := netlink.LinkByName(ipvsDevice)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return Removed{}, nil
	}
	if err != nil {
		return Removed{}, fmt.Errorf("look for the device: %w", err)
	}
	if l.Type() != "dummy" {
		return Removed{}, fmt.Errorf("it is a device of type %s, not dummy, and left alone", l.Type())
	}
	if err := netlink.LinkDel(l); err != nil {
		return Removed{}, fmt.Errorf("remove the device: %w", err)
	}
	return Removed{Devices: 1}, nil
}
