package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/kernel"
)

// A link lives as long as its pin or somebody who holds it. Where both go, because pins are removed
// and the agent ends, its program goes with it. So behind the links of each pod's interface the
// same programs stay as clsact filters, which belong to the interface: they carry the pod's packets
// as before, by the same maps, which live as long as they do. While there is a link they see
// nothing: its verdicts are final. The map by which programs of IPv4 call those of IPv6 is emptied
// when nobody has it open or pinned, so those of IPv6 have a filter of their own before.

// backstopAfter is how long no interface must have been attached before one without a clsact qdisc
// gets it: it drops what it sends to the pod for a grace period of RCU.
const backstopAfter = time.Minute

// backed is what stands behind the links of a site: programs of IPv4 and of IPv6.
type backed [2]ebpf.ProgramID

func ofWorkload(h hook) bool { return h == fromWorkload || h == toWorkload }

// six is the same place for the program of IPv6.
func (s site) six() site { return site{s.ifindex, hook{ipv6Prefix + s.hook.name, s.hook.at}} }

// backstop makes the filters behind pods' links what they should be. An interface without a clsact
// qdisc gets it with anew, one at a call.
func (a *attachments) backstop(anew bool) error {
	var errs []error
	for s := range a.at {
		want := backed{a.ids[s.hook.name], a.ids[s.six().hook.name]}
		have, known := a.back[s]
		if !ofWorkload(s.hook) || have == want || known && have == (backed{}) && !anew {
			continue
		}
		made := known && have == (backed{})
		if made {
			if err := netlink.QdiscAdd(clsactQdisc(s.ifindex)); err != nil && !errors.Is(err, unix.EEXIST) {
				errs = append(errs, fmt.Errorf("adding a clsact qdisc to interface %d: %w", s.ifindex, err))
			}
		}
		switch err := a.putBackstop(s); {
		case err == nil:
			a.back[s] = want
		case errors.Is(err, unix.ENODEV):
		case made:
			errs = append(errs, err)
		default:
			a.back[s] = backed{} // it has no such qdisc
		}
		if made {
			break
		}
	}
	return errors.Join(errs...)
}

// putBackstop puts the programs of a site into its filters. What they took the place of goes after
// it.
func (a *attachments) putBackstop(s site) error {
	if err := (filter{filterName(s)}).put(s, a.prog[s.hook.name]); err != nil {
		return fmt.Errorf("adding filter %s to interface %d: %w", filterName(s), s.ifindex, err)
	}
	if err := removeFiltersIf(s.ifindex, parentOf(s), func(b *netlink.BpfFilter) bool {
		return b.Priority == priority6 && b.Protocol == unix.ETH_P_ALL && strings.HasPrefix(b.Name, "weir_")
	}); err != nil { // of a version that knew no others
		return err
	}
	six := s.six()
	if prog := a.prog[six.hook.name]; prog != nil {
		if err := (filter{filterName(six)}).put(six, prog); err != nil {
			return fmt.Errorf("adding filter %s to interface %d: %w", filterName(six), s.ifindex, err)
		}
		return nil
	}
	return removeFiltersAt(s.ifindex, parentOf(s), filterName(six))
}

// dropBackstop removes the filters of a site.
func (a *attachments) dropBackstop(s site) error {
	delete(a.back, s)
	if !ofWorkload(s.hook) {
		return nil
	}
	return errors.Join(removeFiltersAt(s.ifindex, parentOf(s), filterName(s)), removeFiltersAt(s.ifindex, parentOf(s), filterName(s.six())))
}

// checkPins pins maps again whose pin somebody removed, or put another one in its place. Those of
// links are looked at with the links.
func (d *Driver) checkPins() {
	if d.opts.BPFFS == "" {
		return
	}
	if _, err := os.Lstat(linksDir(d.opts.BPFFS)); err != nil {
		if err := prepareDirs(d.opts.BPFFSMount, d.opts.BPFFS); err != nil {
			d.log.Error("the folder of pins is gone and cannot be made again; programs and maps end with the agent but for those of pods' interfaces", "error", err)
			return
		}
	}
	lost := 0
	for _, l := range d.both() {
		dir := familyDir(d.opts.BPFFS, l.family)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			d.log.Error("the folder of pinned maps cannot be made again", "folder", dir, "error", err)
			return
		}
		for name, m := range l.Maps {
			if unpinned[name] || l.family == ipv6Name && (isShared(name) || name == programsOfIPv6 || name == untrackedOfIPv6) {
				continue
			}
			path := filepath.Join(dir, name)
			if d.pinnedAt(path, m) {
				continue
			}
			lost++
			if err := pinOver(m, path); err != nil {
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
	if _, err := os.Lstat(filepath.Join(mapsDir(root), "weir_settings")); !errors.Is(err, fs.ErrNotExist) {
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
	s := site{0, fromWorkload}
	for family, of := range map[string]site{ipv4Name: s, ipv6Name: s.six()} {
		var id ebpf.ProgramID
		for _, l := range links {
			filters, err := netlink.FilterList(l, parentOf(of))
			if err != nil {
				continue // no qdisc
			}
			for _, each := range filters {
				if b, ok := each.(*netlink.BpfFilter); ok && b.Name == filterName(of) && b.Priority == of.priority() {
					id = max(id, ebpf.ProgramID(b.Id)) // the newest
				}
			}
		}
		if id == 0 {
			continue
		}
		n, err := pinMapsOf(id, familyDir(root, family), spec, family)
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
		if name != "" && !unpinned[name] && !(family == ipv6Name && isShared(name)) {
			if err = pinOver(m, filepath.Join(dir, name)); err == nil {
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
