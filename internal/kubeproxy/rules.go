// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/iptables"
	"github.com/weir-net/weir/internal/kernel"
)

// Modes of kube-proxy, as its --proxy-mode has them.
const (
	ModeIPTables = "iptables"
	ModeNFTables = "nftables"
	ModeIPVS     = "ipvs"
)

// ipvsDevice holds the addresses of Services in mode ipvs.
const ipvsDevice = "kube-ipvs0"

// servicesChain is where kube-proxy's rules begin, in the table nat of iptables of either kind.
const servicesChain = "KUBE-SERVICES"

// ruleFinder looks for the rules of a kube-proxy in this network namespace. A table of the older
// kind of iptables is read again only when its size changed.
type ruleFinder struct {
	legacy map[int]legacySeen // by family
}

type legacySeen struct {
	size iptables.LegacySize
	has  bool
}

// RulesThere reports whether rules of a kube-proxy are in this network namespace.
func RulesThere() (bool, error) {
	var f ruleFinder
	mode, err := f.mode()
	return mode != "", err
}

// mode says whose rules are there, "" for none.
func (f *ruleFinder) mode() (string, error) {
	mode, err := nftMode()
	if mode == "" {
		legacy, err2 := f.inLegacy()
		if !legacy {
			return "", errors.Join(err, err2)
		}
		mode = ModeIPTables
	}
	if mode == ModeIPTables {
		if l, err := netlink.LinkByName(ipvsDevice); err == nil && l.Type() == "dummy" {
			return ModeIPVS, nil
		}
	}
	return mode, nil
}

func nftMode() (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("open a netlink socket: %w", err)
	}
	tables, err := c.ListTables()
	if kernel.LacksNFTables(err) {
		return "", nil // no nftables in this kernel
	}
	if err != nil {
		return "", fmt.Errorf("list tables of nftables: %w", err)
	}
	mode, errs := "", []error(nil)
	for _, t := range tables {
		if t.Family != nftables.TableFamilyIPv4 && t.Family != nftables.TableFamilyIPv6 {
			continue
		}
		switch t.Name {
		case "kube-proxy":
			return ModeNFTables, nil
		case "nat":
			has, err := hasChain(c, t, servicesChain)
			if has {
				mode = ModeIPTables
			}
			errs = append(errs, err)
		}
	}
	if mode != "" {
		return mode, nil
	}
	return "", errors.Join(errs...)
}

// hasChain reports whether a table has a chain. The library keeps the text of the kernel's error
// alone.
func hasChain(c *nftables.Conn, t *nftables.Table, name string) (bool, error) {
	_, err := c.ListChain(t, name)
	switch {
	case err == nil:
		return true, nil
	case strings.Contains(err.Error(), unix.ENOENT.Error()):
		return false, nil
	}
	return false, fmt.Errorf("look for chain %s of table %s: %w", name, t.Name, err)
}

func (f *ruleFinder) inLegacy() (bool, error) {
	var errs []error
	for _, t := range iptables.LegacyInUse("nat") {
		has, err := f.inLegacyTable(t)
		if has {
			return true, nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("iptables (legacy), table nat: %w", err))
		}
	}
	return false, errors.Join(errs...)
}

func (f *ruleFinder) inLegacyTable(t iptables.LegacyTable) (bool, error) {
	size, err := t.Size()
	if err != nil {
		return false, err
	}
	seen, known := f.legacy[t.Family()]
	if known && seen.size == size {
		return seen.has, nil
	}
	has, err := t.HasChain(servicesChain)
	if err != nil {
		return false, err
	}
	if f.legacy == nil {
		f.legacy = map[int]legacySeen{}
	}
	f.legacy[t.Family()] = legacySeen{size: size, has: has}
	return has, nil
}
