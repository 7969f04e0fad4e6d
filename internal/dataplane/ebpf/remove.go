package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/kernel"
)

// Remove takes away what drivers left in the kernel below a folder of pins: links, whose programs
// are detached with them, maps, and filters of interfaces in this network namespace. Devices and
// routes stay, which another data plane uses. No driver may be open.
func Remove(bpffs string) error {
	var errs []error
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range links {
		errs = append(errs, removeFilters(l.Attrs().Index))
	}
	entries, err := os.ReadDir(bpffs)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("looking for pins: %w", err))
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(bpffs, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("removing pins: %w", err))
		}
	}
	return errors.Join(append(errs, conntrack.Release())...) // as long as programs translate, what they mark is led
}

// removeFilters removes our clsact filters from an interface.
func removeFilters(ifindex int) error {
	return errors.Join(removeFiltersAt(ifindex, netlink.HANDLE_MIN_INGRESS, "weir_"), removeFiltersAt(ifindex, netlink.HANDLE_MIN_EGRESS, "weir_"))
}

// removeFilter removes the filters of a hook from an interface, those of both families, when it has
// any.
func removeFilter(ifindex int, h hook) error {
	s := site{ifindex, h}
	return errors.Join(removeFiltersAt(ifindex, parentOf(s), filterName(s)), removeFiltersAt(ifindex, parentOf(s), filterName(s.six())))
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
