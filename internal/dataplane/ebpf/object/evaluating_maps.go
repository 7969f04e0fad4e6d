// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/kernel"
)

// CheckAttached says why programs that are attached do not work by the maps that are open; six is
// nil where IPv6's are not. Links are pinned below root; noTCX says that interfaces have filters.
// What is attached is read from links (BPF_OBJ_GET_INFO_BY_FD) and filters (RTM_GETTFILTER).
func (l *Collection) CheckAttached(six *Collection, root string, noTCX bool) error {
	ids, err := l.attachedFound(six, root, noTCX)
	if err != nil {
		return err
	}
	open := map[ebpf.MapID]bool{}
	for _, each := range []*Collection{l, six} {
		if each == nil {
			continue
		}
		for name, m := range each.Maps {
			info, err := m.Info()
			if err != nil {
				return fmt.Errorf("map %s: %w", name, err)
			}
			if id, ok := info.ID(); ok {
				open[id] = true
			}
		}
	}
	for id := range ids {
		if err := usesOnly(id, open, l.spec); err != nil {
			return err
		}
	}
	return nil
}

// usesOnly says which pinned map of ours a program uses that is not open.
func usesOnly(id ebpf.ProgramID, open map[ebpf.MapID]bool, spec *ebpf.CollectionSpec) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("opening an attached program: %w", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("reading about an attached program: %w", err)
	}
	used, _ := info.MapIDs()
	for _, id := range used {
		if open[id] {
			continue
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return fmt.Errorf("opening a map of an attached program: %w", err)
		}
		name := fullName(m, spec)
		m.Close()
		if name != "" && !unpinned[name] {
			return fmt.Errorf("the attached program %s has another map %s", info.Name, name)
		}
	}
	return nil
}

// attachedFound returns the programs that an earlier run left in effect: of its links, of filters
// where the kernel has no links for interfaces, and those that these programs call.
func (l *Collection) attachedFound(six *Collection, root string, noTCX bool) (map[ebpf.ProgramID]bool, error) {
	ids := map[ebpf.ProgramID]bool{}
	dir := bpffs.LinksDir(root)
	pins, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("looking for pinned links: %w", err)
	}
	for _, pin := range pins {
		id, err := linkedProgram(filepath.Join(dir, pin.Name()))
		if err != nil {
			return nil, fmt.Errorf("pinned link %s: %w", pin.Name(), err)
		}
		if id != 0 {
			ids[id] = true
		}
	}
	if noTCX {
		if err := filtersFound(ids); err != nil {
			return nil, err
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("no programs of an earlier run are attached")
	}
	calls := []*ebpf.Map{l.Maps[ProgramsOfIPv6], l.Maps[UntrackedOfIPv6], l.Maps[ProgramOfIPIP], l.Maps[CallsOfNames]}
	for _, m := range calls {
		for slot := range m.MaxEntries() {
			var id uint32
			if err := m.Lookup(slot, &id); err == nil {
				ids[ebpf.ProgramID(id)] = true
			} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("reading which programs are called: %w", err)
			}
		}
	}
	for id := range maps.Clone(ids) {
		slow, err := slowOf(id)
		if err != nil {
			return nil, err
		}
		if slow != 0 {
			ids[slow] = true
		}
	}
	return ids, nil
}

// linkedProgram is the program of a pinned link; 0 = it is in effect nowhere.
func linkedProgram(path string) (ebpf.ProgramID, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	tcx, xdp, cgroup := info.TCX(), info.XDP(), info.Cgroup()
	if tcx != nil && tcx.Ifindex == 0 || xdp != nil && xdp.Ifindex == 0 || cgroup != nil && cgroup.CgroupId == 0 {
		return 0, nil
	}
	return info.Program, nil
}

// filtersFound adds the programs of our filters.
func filtersFound(ids map[ebpf.ProgramID]bool) error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range links {
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if err != nil {
				continue // no qdisc
			}
			for _, f := range filters {
				if b, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(b.Name, "weir_") {
					ids[ebpf.ProgramID(b.Id)] = true
				}
			}
		}
	}
	return nil
}

// FlagsFound are the flags of the settings (abi.Set…) as the map of IPv4 has them; SetHandOver
// where the map cannot be read.
func (l *Collection) FlagsFound() uint32 {
	v, err := l.settingsFound()
	if err != nil {
		return abi.SetHandOver
	}
	return v.Flags
}

// StateFound reports whether an earlier run put a state into the maps of IPv4 as a whole.
func (l *Collection) StateFound() bool {
	v, err := l.settingsFound()
	return err == nil && v.Epoch != 0
}

// settingsFound reads the settings of IPv4; the error is that of the kernel's look-up.
func (l *Collection) settingsFound() (v abi.Settings[abi.Ip4], err error) {
	var zero uint32
	err = l.Maps["weir_settings"].Lookup(&zero, unsafe.Pointer(&v))
	return v, err
}

// FoundAll reports whether all maps that have pins were there before, with the size that they are
// to have.
func (l *Collection) FoundAll() bool { return l.Found == l.pinned && len(l.recreated) == 0 }
