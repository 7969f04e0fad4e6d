// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/kernel"
)

// sizeSettings names the FelixConfiguration field that sets the size of a map.
var sizeSettings = map[string]string{
	"weir_addrs":      "bpfMapSizeRoute",
	"weir_routes":     "bpfMapSizeRoute",
	"weir_services":   "bpfMapSizeNATFrontend",
	"weir_backends":   "bpfMapSizeNATBackend",
	"weir_live":       "bpfMapSizeNATBackend",
	"weir_affinity":   "bpfMapSizeNATAffinity",
	"weir_peers":      "bpfMapSizeIPSets",
	"weir_peer_cidrs": "bpfMapSizeIPSets",
	"weir_flows":      "bpfMapSizeConntrack",
	"weir_flows_new":  "bpfMapSizeConntrack",
	"weir_events":     "bpfExportBufferSizeMB",
}

// headroom are maps that take, while they change, what was and what will be, and by how much more
// they are made than their setting says. Entries that are not there take no memory.
var headroom = map[string]uint32{"weir_peer_cidrs": 2}

// roomOf is how many entries a map may hold as its setting says.
func roomOf(name string, m *ebpf.Map) int { return int(m.MaxEntries() / max(headroom[name], 1)) }

// stateful are the maps whose contents only traffic makes: they keep the size that they have rather
// than lose what they know.
var stateful = map[string]bool{
	"weir_flows": true, "weir_flows_new": true, "weir_affinity": true, "weir_sockets": true, "weir_drops": true,
	"weir_answers": true, "weir_frags": true, "weir_frag_slots": true, "weir_frag_rings": true,
	"weir_dsr_tries": true, "weir_dsr_fallen": true, "weir_counts": true, "weir_shares": true, "weir_resolves": true, "weir_spent": true, "weir_streams": true,
}

// shared maps are the same for both families: what they hold has no addresses.
var shared = []string{"weir_policy", "weir_ports", "weir_drops", "weir_answers", "weir_events", "weir_event_rate", "weir_hosts", "weir_hosts_staged", "weir_trace_rule"}

// programsOfIPv6 is the map by which the programs of IPv4, which are the ones attached, call those
// of IPv6.
const programsOfIPv6 = "weir_ipv6"

// ipv6Slots are the programs in programsOfIPv6 by their index, enum hook.
var ipv6Slots = []string{"weir_from_workload", "weir_to_workload", "weir_from_uplink", "weir_to_uplink", "weir_from_tunnel"}

// call makes the programs of IPv4 call those of six, nil = none, and returns how many of these
// calls were others.
func (l *loaded) call(six *loaded) (int, error) {
	changed := 0
	m := l.Maps[programsOfIPv6]
	for i, name := range ipv6Slots {
		slot, have := uint32(i), uint32(0)
		err := m.Lookup(slot, &have)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changed, fmt.Errorf("looking for %s for IPv6: %w", name, err)
		}
		if six == nil {
			if err == nil {
				err = m.Delete(slot)
				changed++
			}
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return changed, fmt.Errorf("taking out %s for IPv6: %w", name, err)
			}
			continue
		}
		id, idErr := attach.ProgramID(six.Programs[name])
		if idErr == nil && err == nil && have == uint32(id) {
			continue
		}
		if err := m.Put(slot, six.Programs[name]); err != nil {
			return changed, fmt.Errorf("putting in %s for IPv6: %w", name, err)
		}
		changed++
	}
	return changed, nil
}

// unpinned maps hold nothing from one packet to the next, or, as that of events, nothing that
// outlives its reader.
var unpinned = map[string]bool{"weir_events": true, "weir_event_rate": true, "weir_trace": true, "weir_trace_rule": true, "weir_scratch": true, "weir_reply": true, "weir_frag_saved": true, ".rodata": true, ".bss": true, ".data": true}

// loaded are the programs and maps in the kernel, not attached yet.
type loaded struct {
	*ebpf.Collection
	found     int             // maps that were there before
	recreated map[string]bool // maps that were there with another layout or size, and are empty now
	tables    func(*counts) family
	family    string         // bpffs.IPv4 or bpffs.IPv6
	icmp      uint8          // the protocol number that is ICMP
	counted   map[string]int // Entries of tables that programs fill, at the last sweep
	read      func() (*ebpf.CollectionSpec, error)
	constants constants
	spec      *ebpf.CollectionSpec // of programs that are not loaded yet; nil = they are
	pinned    int                  // maps that are pinned by this family
}

// constants are the load-time constants of the programs.
type constants struct {
	trace     bool
	setRetval bool
	events    uint32 // bytes of the ring of events, a power of 2; 0 = as compiled
	// unlimited lets every event through, whatever the rate.
	unlimited bool
	// eventInterval is the time between two events of a CPU in the long run; 0 = as compiled.
	eventInterval time.Duration
	// answers are how many packets a CPU may answer by itself in a second, and burst how many at
	// once; 0 = as compiled.
	answers, burst uint32
}

// load puts the programs and maps into the kernel: see openMaps.
func load(four *loaded, dir string, sizes map[string]uint32, c constants, log *slog.Logger) (*loaded, error) {
	l, err := openMaps(four, dir, sizes, c, log)
	if err != nil {
		return nil, err
	}
	programs, err := l.verify()
	if err != nil {
		l.Close()
		return nil, err
	}
	l.install(programs)
	return l, nil
}

// openMaps makes the maps. With a folder on bpffs, maps pinned there are taken over, and the others
// are pinned there.
//
// The maps of IPv6 are opened alongside those of IPv4, given as four, some of which both families
// share.
func openMaps(four *loaded, dir string, sizes map[string]uint32, c constants, log *slog.Logger) (_ *loaded, err error) {
	l := &loaded{recreated: map[string]bool{}, family: bpffs.IPv4, icmp: unix.IPPROTO_ICMP}
	l.tables = func(c *counts) family { return newFamily[abi.Ip4](l.Maps, c) }
	l.read, l.constants = abi.LoadWeir, c
	if four != nil {
		l.tables = func(c *counts) family { return newFamily[abi.Ip6](l.Maps, c) }
		l.read = abi.LoadWeir6
		l.family, l.icmp = bpffs.IPv6, unix.IPPROTO_ICMPV6
	}
	spec, err := l.read()
	if err != nil {
		return nil, fmt.Errorf("reading the compiled programs: %w", err)
	}
	if err := specialize(spec, sizes, c); err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return slices.Contains(untrackedNames, name) })
	if err := rlimit.RemoveMemlock(); err != nil {
		log.Debug("could not lift the limit on locked memory; needed before Linux 5.11 only", "error", err)
	}
	l.Collection, l.spec = &ebpf.Collection{Maps: map[string]*ebpf.Map{}}, spec
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if four != nil {
		delete(spec.Maps, programsOfIPv6)
		delete(spec.Maps, untrackedOfIPv6)
		for _, name := range shared {
			if l.Maps[name], err = four.Maps[name].Clone(); err != nil {
				return nil, fmt.Errorf("sharing map %s: %w", name, err)
			}
		}
	}
	for name, ms := range spec.Maps {
		if strings.HasPrefix(name, ".") || l.Maps[name] != nil {
			continue // data of programs comes with them
		}
		var m *ebpf.Map
		if dir == "" || unpinned[name] {
			if m, err = ebpf.NewMap(ms); err != nil {
				return nil, fmt.Errorf("making map %s of %d entries: %w", name, ms.MaxEntries, err)
			}
		} else if m, err = l.openMap(filepath.Join(dir, name), ms, log); err != nil {
			return nil, err
		} else {
			l.pinned++
		}
		l.Maps[name] = m
	}
	return l, nil
}

// verify loads the programs, which takes the kernel's verifier seconds, and changes nothing of l.
// The error is ErrRefused where it does not take them.
func (l *loaded) verify() (*ebpf.Collection, error) {
	c, err := ebpf.NewCollectionWithOptions(l.spec, ebpf.CollectionOptions{MapReplacements: l.Maps})
	if err != nil {
		return nil, refused(fmt.Errorf("loading the programs: %w", err))
	}
	return c, nil
}

// install makes programs that verify loaded those of l.
func (l *loaded) install(c *ebpf.Collection) {
	for name, m := range c.Maps {
		if l.Maps[name] != nil {
			m.Close() // a clone
			continue
		}
		l.Maps[name] = m
	}
	l.Programs, l.Variables, l.spec = c.Programs, c.Variables, nil
}

// ErrRefused is of programs that the kernel's verifier does not take: another data plane has to
// take their place.
var ErrRefused = errors.New("this kernel's verifier does not take the programs")

// refused tells what the verifier said from what else stood against loading.
func refused(err error) error {
	if v := (*ebpf.VerifierError)(nil); errors.As(err, &v) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// Try loads the programs of both families and forgets them, to say whether this kernel takes them;
// nothing is attached. The error is ErrRefused where its verifier does not.
func Try(log *slog.Logger) error {
	small := map[string]uint32{"weir_flows": 1024, "weir_flows_new": 1024}
	four, err := load(nil, "", small, constants{}, log)
	if err != nil {
		return err
	}
	defer four.Close()
	six, err := load(four, "", nil, constants{}, log)
	if err != nil {
		return fmt.Errorf("of IPv6: %w", err)
	}
	six.Close()
	return nil
}

// specialize sets sizes and constants.
func specialize(spec *ebpf.CollectionSpec, sizes map[string]uint32, c constants) error {
	for name, n := range sizes {
		ms, ok := spec.Maps[name]
		if !ok {
			return fmt.Errorf("size given for map %s, which does not exist", name)
		}
		if n > 0 {
			ms.MaxEntries = n * max(headroom[name], 1)
		}
	}
	for name, on := range map[string]bool{"trace_enabled": c.trace, "can_set_retval": c.setRetval} {
		v, ok := spec.Variables[name]
		if !ok {
			return fmt.Errorf("the programs have no constant %s", name)
		}
		var value uint8
		if on {
			value = 1
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("setting the programs' constant %s: %w", name, err)
		}
	}
	if c.unlimited || c.eventInterval > 0 {
		if err := spec.Variables["event_interval_ns"].Set(uint64(c.eventInterval)); err != nil {
			return fmt.Errorf("setting the rate of events: %w", err)
		}
	}
	if c.answers == 0 {
		return nil
	}
	interval := uint64(time.Second) / uint64(c.answers)
	return errors.Join(spec.Variables["reply_interval_ns"].Set(interval), spec.Variables["reply_burst"].Set(c.burst))
}

// openMap takes over the map that is pinned at path, or makes one and pins it there. It may adapt
// the size in spec to that of a map that is kept.
func (l *loaded) openMap(path string, spec *ebpf.MapSpec, log *slog.Logger) (m *ebpf.Map, err error) {
	old, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case err == nil:
		if l.keep(old, path, spec, log) {
			l.found++
			return old, nil
		}
		defer func() {
			if old != m {
				old.Close()
			}
		}()
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	default:
		return nil, fmt.Errorf("opening the pinned map %s: %w", path, err)
	}
	m, err = ebpf.NewMap(spec)
	if err != nil && old != nil && isCarried(spec.Name) && spec.MaxEntries > old.MaxEntries() {
		wanted := spec.MaxEntries
		if spec.MaxEntries = old.MaxEntries(); spec.Compatible(old) == nil {
			log.Error("a map keeps its size: one of the wanted size cannot be made", "map", spec.Name,
				"entries", old.MaxEntries(), "configured", wanted, "setting", sizeSettings[spec.Name], "error", err)
			l.found++
			return old, nil
		}
		spec.MaxEntries = wanted
	}
	if err != nil {
		return nil, fmt.Errorf("making map %s of %d entries: %w", spec.Name, spec.MaxEntries, err)
	}
	if old != nil {
		l.recreated[spec.Name] = true
		if isCarried(spec.Name) {
			if err := setAside(path); err != nil {
				m.Close()
				return nil, err
			}
		}
	}
	if err := bpffs.PinOver(m, path); err != nil {
		m.Close()
		return nil, fmt.Errorf("pinning map %s: %w", spec.Name, err)
	}
	return m, nil
}

func (l *loaded) keep(m *ebpf.Map, path string, spec *ebpf.MapSpec, log *slog.Logger) bool {
	err := spec.Compatible(m)
	if err == nil {
		return true
	}
	wanted := spec.MaxEntries
	spec.MaxEntries = m.MaxEntries()
	if spec.Compatible(m) != nil {
		spec.MaxEntries = wanted
		log.Warn("a pinned map has another layout and is made anew", "map", spec.Name, "error", err)
		return false
	}
	if isCarried(spec.Name) && isAside(path) {
		log.Warn("a map keeps its size until the agent's next start: the last change of its size was cut short",
			"map", spec.Name, "entries", m.MaxEntries(), "configured", wanted, "setting", sizeSettings[spec.Name])
		return true
	}
	if stateful[spec.Name] && !isCarried(spec.Name) {
		log.Warn("a map keeps its size until the node is restarted, so that nothing is lost",
			"map", spec.Name, "entries", m.MaxEntries(), "configured", wanted, "setting", sizeSettings[spec.Name])
		return true
	}
	spec.MaxEntries = wanted
	log.Info("a map changes its size", "map", spec.Name, "from", m.MaxEntries(), "to", wanted)
	return false
}

// unpinAll removes the pins in a folder. What they name goes when nothing uses it any more.
func unpinAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for pinned maps: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing a pinned map: %w", err))
		}
	}
	return errors.Join(errs...)
}

// prepareDirs makes the folders on bpffs.
func prepareDirs(mount, root string) error {
	for _, dir := range []string{bpffs.MapsDir(root), bpffs.Maps6Dir(root), bpffs.LinksDir(root)} {
		if err := kernel.EnsureBPFFS(mount, dir); err != nil {
			return err
		}
	}
	return nil
}

// removeOldLayouts forgets the maps of other layouts, once no program of ours uses them.
func removeOldLayouts(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("looking for maps of older versions: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err != nil || n == abi.Number {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("removing maps of an older version: %w", err))
		}
	}
	return errors.Join(errs...)
}
