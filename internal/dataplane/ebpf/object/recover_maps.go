// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/kernel"
)

// IsShared reports whether both families have the same map of a name.
func IsShared(name string) bool {
	for _, each := range shared {
		if each == name {
			return true
		}
	}
	return false
}

// RecoverMaps pins again the maps of programs that carry on as filters of pods' interfaces, when
// the pins are gone: what an agent before this one knew of flows is kept, and its policy stays in
// force until ours is written. Maps of another layout that have their pins are not ours: what is in
// them is carried over (CarryOver).
func RecoverMaps(root string, log *slog.Logger) error {
	if pinned, err := hasSettings(bpffs.MapsDir(root)); pinned || err != nil {
		return err
	}
	if others, err := OldLayouts(root); len(others) > 0 || err != nil {
		return err
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	spec, err := abi.LoadWeir()
	if err != nil {
		return err
	}
	s := attach.Site{Ifindex: 0, Hook: attach.FromWorkload}
	for family, of := range map[string]attach.Site{bpffs.IPv4: s, bpffs.IPv6: s.Six()} {
		var id ebpf.ProgramID
		for _, l := range links {
			filters, err := netlink.FilterList(l, attach.ParentOf(of))
			if err != nil {
				continue // no qdisc
			}
			for _, each := range filters {
				if b, ok := each.(*netlink.BpfFilter); ok && b.Name == attach.FilterName(of) && b.Priority == of.Priority() {
					id = max(id, ebpf.ProgramID(b.Id)) // the newest
				}
			}
		}
		if id == 0 {
			continue
		}
		n, err := pinMapsOf(id, bpffs.FamilyDir(root, family), spec, family)
		if err != nil {
			return err
		}
		log.Warn("pins were lost; took over the maps of programs that pods' interfaces hold", "family", family, "maps", n)
	}
	return nil
}

// pinMapsOf pins the maps that a program uses.
func pinMapsOf(id ebpf.ProgramID, dir string, spec *ebpf.CollectionSpec, family string) (int, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return 0, fmt.Errorf("opening the program of a filter: %w", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	ids, _ := info.MapIDs()
	n := 0
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return n, fmt.Errorf("opening a map of a filter: %w", err)
		}
		name := fullName(m, spec)
		if name != "" && !unpinned[name] && !(family == bpffs.IPv6 && IsShared(name)) {
			if err = bpffs.PinOver(m, filepath.Join(dir, name)); err == nil {
				n++
			}
		}
		m.Close()
		if err != nil {
			return n, fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
	return n, nil
}

// nameKept is how many bytes of a map's name the kernel keeps.
const nameKept = 15

// fullName is the name of a map that the kernel has cut; "" = it is none of ours.
func fullName(m *ebpf.Map, spec *ebpf.CollectionSpec) string {
	info, err := m.Info()
	if err != nil || info.Name == "" {
		return ""
	}
	for name := range spec.Maps {
		if name[:min(len(name), nameKept)] == info.Name {
			return name
		}
	}
	return ""
}
