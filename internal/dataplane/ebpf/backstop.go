// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/kernel"
)

// backstopAfter is how long no interface must have been attached before one without a clsact qdisc
// gets it: it drops what it sends to the pod for a grace period of RCU.
const backstopAfter = time.Minute

// checkPins pins maps again whose pin somebody removed, or put another one in its place. Those of
// links are looked at with the links.
func (d *Driver) checkPins() {
	if d.opts.BPFFS == "" {
		return
	}
	if _, err := os.Lstat(bpffs.LinksDir(d.opts.BPFFS)); err != nil {
		if err := prepareDirs(d.opts.BPFFSMount, d.opts.BPFFS); err != nil {
			d.log.Error("the folder of pins is gone and cannot be made again; programs and maps end with the agent but for those of pods' interfaces", "error", err)
			return
		}
	}
	lost := 0
	for _, l := range d.both() {
		dir := bpffs.FamilyDir(d.opts.BPFFS, l.family)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			d.log.Error("the folder of pinned maps cannot be made again", "folder", dir, "error", err)
			return
		}
		for name, m := range l.Maps {
			if unpinned[name] || l.family == bpffs.IPv6 && (isShared(name) || name == programsOfIPv6 || name == untrackedOfIPv6) {
				continue
			}
			path := filepath.Join(dir, name)
			if d.pinnedAt(path, m) {
				continue
			}
			lost++
			if err := bpffs.PinOver(m, path); err != nil {
				d.log.Error("pinning a map again", "map", name, "error", err)
			}
		}
	}
	if lost > 0 {
		d.count.repaired("pin", d.log, "pins of maps were removed or replaced; pinned them again", "maps", lost)
	}
}

func isShared(name string) bool {
	for _, each := range shared {
		if each == name {
			return true
		}
	}
	return false
}

// pinnedAt reports whether what is pinned at a path is the map. One look at the file is enough
// where it is the one of the last time.
func (d *Driver) pinnedAt(path string, m *ebpf.Map) bool {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return false
	}
	if known, ok := d.pins[path]; ok && known == st.Ino {
		return true
	}
	delete(d.pins, path)
	there, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return false
	}
	defer there.Close()
	if !sameMapID(there, m) {
		return false
	}
	if d.pins == nil {
		d.pins = map[string]uint64{}
	}
	d.pins[path] = st.Ino
	return true
}

func sameMapID(a, b *ebpf.Map) bool {
	x, err1 := a.Info()
	y, err2 := b.Info()
	if err1 != nil || err2 != nil {
		return false
	}
	m, ok1 := x.ID()
	n, ok2 := y.ID()
	return ok1 && ok2 && m == n
}

// recoverMaps pins again the maps of programs that carry on as filters of pods' interfaces, when
// the pins are gone: what an agent before this one knew of flows is kept, and its policy stays in
// force until ours is written.
func recoverMaps(root string, log *slog.Logger) error {
	if _, err := os.Lstat(filepath.Join(bpffs.MapsDir(root), "weir_settings")); !errors.Is(err, fs.ErrNotExist) {
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
		if name != "" && !unpinned[name] && !(family == bpffs.IPv6 && isShared(name)) {
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

// fullName is the name of a map, of which the kernel keeps 15 bytes; "" = it is none of ours.
func fullName(m *ebpf.Map, spec *ebpf.CollectionSpec) string {
	const kept = 15
	info, err := m.Info()
	if err != nil || info.Name == "" {
		return ""
	}
	for name := range spec.Maps {
		if name[:min(len(name), kept)] == info.Name {
			return name
		}
	}
	return ""
}
