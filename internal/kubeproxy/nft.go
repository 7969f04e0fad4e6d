// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/iptables"
)

// cleanNFT removes the tables of kube-proxy's mode nftables.
func cleanNFT() (Removed, error) {
	var out Removed
	err := iptables.EachTable(func(c *nftables.Conn, t *nftables.Table) error {
		if t.Name != "kube-proxy" {
			return nil
		}
		c.DelTable(t)
		if err := c.Flush(); err != nil {
			return err
		}
		out.Tables++
		return nil
	})
	return out, err
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

// cleanIPTables removes kube-proxy's chains from iptables of both kinds, with the rules that lead
// to them.
func cleanIPTables() (Removed, error) {
	r, err := iptables.Remove(iptables.Owner{Chain: ours})
	return Removed{Rules: r.Rules, Chains: r.Chains}, err
}
