package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clsact attaches by a clsact qdisc and a filter in direct-action mode (Linux 4.5). A filter
// belongs to the interface: it needs no pin, and goes with it. Nothing waits for a grace period of
// RCU, which takes 4 to 15 ms for each tcx link; so the interfaces of new pods begin with it and
// get their links later.
type clsact struct{}

// These priorities are ours; lower ones come first, others may add theirs behind. The program of
// IPv4 is for all packets, and calls that of IPv6; where that is lost (see backstop.go), it has a
// filter of its own before.
const (
	priority6      = 1
	filterPriority = 2
)

// priority is that of a site's filter.
func (s site) priority() uint16 {
	if strings.HasPrefix(s.hook.name, ipv6Prefix) {
		return priority6
	}
	return filterPriority
}

// protocol is that of the packets which a site's filter is for.
func (s site) protocol() uint16 {
	if s.priority() == priority6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_ALL
}

// filter is one program on one side of an interface.
type filter struct{ name string }

func filterName(s site) string { return "weir_" + s.hook.name }

func parentOf(s site) uint32 {
	if s.hook.at == ebpf.AttachTCXIngress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func (clsact) attach(s site, prog *ebpf.Program) (attachment, error) {
	err := netlink.QdiscAdd(clsactQdisc(s.ifindex))
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, errAbsent
	case err != nil && !errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("adding a clsact qdisc to interface %d: %w", s.ifindex, err)
	}
	f := filter{filterName(s)}
	if err := f.put(s, prog); err != nil {
		return nil, fmt.Errorf("adding filter %s to interface %d: %w", f.name, s.ifindex, err)
	}
	return f, nil
}

// reuse takes over a filter of an earlier run; there is no pin to look at.
func (clsact) reuse(s site, _ string) (attachment, error) {
	f := filter{filterName(s)}
	return f, f.check(s, 0)
}

func (clsact) links() bool { return false }

func clsactQdisc(ifindex int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func (f filter) put(s site, prog *ebpf.Program) error {
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: s.ifindex, Parent: parentOf(s), Handle: 1, Protocol: s.protocol(), Priority: s.priority()},
		Fd:          prog.FD(), Name: f.name, DirectAction: true,
	})
}

func (f filter) check(s site, prog ebpf.ProgramID) error {
	filters, err := netlink.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: s.ifindex}}, parentOf(s))
	if err != nil {
		return fmt.Errorf("listing the filters of interface %d: %w", s.ifindex, err)
	}
	for _, each := range filters {
		b, ok := each.(*netlink.BpfFilter)
		if !ok || b.Name != f.name || b.Priority != s.priority() {
			continue
		}
		if prog != 0 && b.Id != int(prog) {
			return fmt.Errorf("another program (id %d) was put into the filter", b.Id)
		}
		return nil
	}
	return errors.New("the filter was removed")
}

func (f filter) update(s site, prog *ebpf.Program) error { return f.put(s, prog) }
func (f filter) pin(string) error                        { return nil }
func (f filter) pinned() bool                            { return false }
func (f filter) close() error                            { return nil }

func (f filter) detach(s site) error {
	err := netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: s.ifindex, Parent: parentOf(s), Handle: 1, Protocol: s.protocol(), Priority: s.priority()}})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("removing filter %s from interface %d: %w", f.name, s.ifindex, err)
	}
	return nil
}

// withoutTCX attaches to interfaces by clsact and to control groups by links: for kernels before
// 6.6.
type withoutTCX struct{ bpfLinks }

func (w withoutTCX) attach(s site, prog *ebpf.Program) (attachment, error) {
	if s.ifindex == 0 || s.hook.at == ebpf.AttachXDP {
		return w.bpfLinks.attach(s, prog)
	}
	return clsact{}.attach(s, prog)
}

func (w withoutTCX) reuse(s site, path string) (attachment, error) {
	if s.ifindex == 0 || s.hook.at == ebpf.AttachXDP {
		return w.bpfLinks.reuse(s, path)
	}
	at, err := clsact{}.reuse(s, path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return at, nil
}

func (withoutTCX) links() bool { return false }
