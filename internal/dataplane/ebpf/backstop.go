// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
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
		if err := object.PrepareDirs(d.opts.BPFFSMount, d.opts.BPFFS); err != nil {
			d.log.Error("the folder of pins is gone and cannot be made again; programs and maps end with the agent but for those of pods' interfaces", "error", err)
			return
		}
	}
	lost := 0
	for _, l := range d.both() {
		dir := bpffs.FamilyDir(d.opts.BPFFS, l.Family)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			d.log.Error("the folder of pinned maps cannot be made again", "folder", dir, "error", err)
			return
		}
		for name, m := range l.PinnedMaps() {
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
