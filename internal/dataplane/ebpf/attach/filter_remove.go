// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// RemoveFilters removes our clsact filters from an interface.
func RemoveFilters(ifindex int) error {
	return errors.Join(removeFiltersAt(ifindex, netlink.HANDLE_MIN_INGRESS, "weir_"), removeFiltersAt(ifindex, netlink.HANDLE_MIN_EGRESS, "weir_"))
}

// RemoveFilter removes the filters of a hook from an interface, those of both families, when it has
// any.
func RemoveFilter(ifindex int, h Hook) error {
	s := Site{ifindex, h}
	return errors.Join(removeFiltersAt(ifindex, ParentOf(s), FilterName(s)), removeFiltersAt(ifindex, ParentOf(s), FilterName(s.Six())))
}

// removeFiltersAt removes our filters whose names begin with a prefix from one side of an
// interface.
func removeFiltersAt(ifindex int, parent uint32, prefix string) error {
	return removeFiltersIf(ifindex, parent, func(b *netlink.BpfFilter) bool {
		return (b.Priority == filterPriority || b.Priority == priority6) && strings.HasPrefix(b.Name, prefix)
	})
}

func removeFiltersIf(ifindex int, parent uint32, ours func(*netlink.BpfFilter) bool) error {
	filters, err := kernel.Dump(func() ([]netlink.Filter, error) {
		return netlink.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}, parent)
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil // no qdisc, or the interface is gone
	}
	if err != nil {
		return fmt.Errorf("listing filters of interface %d: %w", ifindex, err)
	}
	var errs []error
	for _, each := range filters {
		b, ok := each.(*netlink.BpfFilter)
		if !ok || !ours(b) {
			continue
		}
		if err := netlink.FilterDel(b); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("removing filter %s from interface %d: %w", b.Name, ifindex, err))
		}
	}
	return errors.Join(errs...)
}
