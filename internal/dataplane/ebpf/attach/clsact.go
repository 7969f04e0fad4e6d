// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Clsact attaches by a clsact qdisc and a filter in direct-action mode (Linux 4.5). A filter
// belongs to the interface: it needs no pin, and goes with it. Nothing waits for a grace period of
// RCU, which takes 4 to 15 ms for each tcx link; so the interfaces of new pods begin with it and
// get their links later.
type Clsact struct{}

// These priorities are ours; lower ones come first, others may add theirs behind. The program of
// IPv4 is for all packets, and calls that of IPv6; where that is lost (see backstop.go), it has a
// filter of its own before.
const (
	priority6      = 1
	filterPriority = 2
)

// Priority is that of a site's filter.
func (s Site) Priority() uint16 {
	if strings.HasPrefix(s.Hook.Name, Ipv6Prefix) {
		return priority6
	}
	return filterPriority
}

// protocol is that of the packets which a site's filter is for.
func (s Site) protocol() uint16 {
	if s.Priority() == priority6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_ALL
}

// Filter is one program on one side of an interface.
type Filter struct{ Name string }

func FilterName(s Site) string { return "weir_" + s.Hook.Name }

func ParentOf(s Site) uint32 {
	if s.Hook.At == ebpf.AttachTCXIngress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func (Clsact) attach(s Site, prog *ebpf.Program) (attachment, error) {
	err := netlink.QdiscAdd(ClsactQdisc(s.Ifindex))
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, ErrAbsent
	case err != nil && !errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("adding a clsact qdisc to interface %d: %w", s.Ifindex, err)
	}
	f := Filter{FilterName(s)}
	if err := f.put(s, prog); err != nil {
		return nil, fmt.Errorf("adding filter %s to interface %d: %w", f.Name, s.Ifindex, err)
	}
	return f, nil
}

// Reuse takes over a filter of an earlier run; there is no pin to look at.
func (Clsact) Reuse(s Site, _ string) (attachment, error) {
	f := Filter{FilterName(s)}
	return f, f.Check(s, 0)
}

func (Clsact) links() bool { return false }

func ClsactQdisc(ifindex int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func (f Filter) put(s Site, prog *ebpf.Program) error {
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: s.Ifindex, Parent: ParentOf(s), Handle: 1, Protocol: s.protocol(), Priority: s.Priority()},
		Fd:          prog.FD(), Name: f.Name, DirectAction: true,
	})
}

func (f Filter) Check(s Site, prog ebpf.ProgramID) error {
	filters, err := netlink.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: s.Ifindex}}, ParentOf(s))
	if err != nil {
		return fmt.Errorf("listing the filters of interface %d: %w", s.Ifindex, err)
	}
	for _, each := range filters {
		b, ok := each.(*netlink.BpfFilter)
		if !ok || b.Name != f.Name || b.Priority != s.Priority() {
			continue
		}
		if prog != 0 && b.Id != int(prog) {
			return fmt.Errorf("another program (id %d) was put into the filter", b.Id)
		}
		return nil
	}
	return errors.New("the filter was removed")
}

func (f Filter) Update(s Site, prog *ebpf.Program) error { return f.put(s, prog) }
func (f Filter) Pin(string) error                        { return nil }
func (f Filter) Pinned() bool                            { return false }
func (f Filter) Close() error                            { return nil }

func (f Filter) detach(s Site) error {
	err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: s.Ifindex, Parent: ParentOf(s), Handle: 1, Protocol: s.protocol(), Priority: s.Priority()}})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("removing filter %s from interface %d: %w", f.Name, s.Ifindex, err)
	}
	return nil
}

// WithoutTCX attaches to interfaces by clsact and to control groups by links: for kernels before
// 6.6.
type WithoutTCX struct{ BpfLinks }

func (w WithoutTCX) attach(s Site, prog *ebpf.Program) (attachment, error) {
	if s.Ifindex == 0 || s.Hook.At == ebpf.AttachXDP {
		return w.BpfLinks.attach(s, prog)
	}
	return Clsact{}.attach(s, prog)
}

func (w WithoutTCX) Reuse(s Site, path string) (attachment, error) {
	if s.Ifindex == 0 || s.Hook.At == ebpf.AttachXDP {
		return w.BpfLinks.Reuse(s, path)
	}
	at, err := Clsact{}.Reuse(s, path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return at, nil
}

func (WithoutTCX) links() bool { return false }
