// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// The kernel's verifier takes seconds for the programs of both families. Where programs of an
// earlier run evaluate packets by the maps that this run has opened, states are written to these at
// once: a change of policy, of Services or of endpoints does not wait for the programs. Devices,
// routes and what is attached stay as they are until then. Programs of another version with the
// same layout number know these tables: that is what the number says.

// loading are programs that are being loaded in the background.
type loading struct {
	began  time.Time
	missed bool          // a state was not written
	done   chan struct{} // closed when the fields below are set

	err, err6 error // why IPv4's, and why IPv6's programs are not loaded
	four, six *ebpf.Collection
	untracked []*untrackedPrograms // of doNotTrack, by family as in Driver.both; none = not asked for, or not loaded
}

// over reports whether the programs are loaded, or cannot be.
func (p *loading) over() bool {
	select {
	case <-p.done:
		return p.err == nil
	default:
		return false
	}
}

// drop waits for the programs and forgets them.
func (p *loading) drop() {
	<-p.done
	for _, c := range []*ebpf.Collection{p.four, p.six} {
		if c != nil {
			c.Close()
		}
	}
	for _, g := range p.untracked {
		g.close()
	}
}

// beginLoading loads the programs of the maps that are open.
func (d *Driver) beginLoading() {
	p := &loading{began: time.Now(), done: make(chan struct{})}
	d.loading = p
	families, alone := d.both(), d.flagsFound()&abi.SetUntracked != 0
	go func() {
		defer close(p.done)
		if d.opts.BeforeLoad != nil {
			d.opts.BeforeLoad()
		}
		if p.four, p.err = families[0].verify(); p.err != nil {
			return
		}
		if len(families) > 1 {
			p.six, p.err6 = families[1].verify()
		}
		for i, l := range families {
			if !alone || i > 0 && p.err6 != nil {
				break
			}
			g, err := loadUntracked(l)
			if err != nil {
				break // the Apply that needs them says why
			}
			p.untracked = append(p.untracked, g)
		}
	}()
}

// Loaded returns once the programs are in the kernel, or why they cannot be: ErrRefused where its
// verifier does not take them. Programs of an earlier run go on then, by tables that are kept up to
// date.
func (d *Driver) Loaded(ctx context.Context) error {
	d.mu.Lock()
	p := d.loading
	d.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		return p.err
	}
}

// endLoading makes the programs that were loaded in the background those to attach.
func (d *Driver) endLoading() error {
	p := d.loading
	if err := d.programs.Offer("", p.four.Programs); err != nil {
		return err
	}
	d.loading = nil
	d.loaded.install(p.four)
	if p.six != nil {
		d.six.install(p.six)
		p.err6 = d.programs.Offer(attach.Ipv6Prefix, d.six.Programs)
	}
	if p.err6 != nil { // ensureIPv6 tries again
		d.tables.families = d.tables.families[:1]
		d.six.Close()
		d.six = nil
	} else if d.six != nil {
		d.log.Info("the node carries IPv6", "maps found", d.six.found)
	}
	for i, g := range p.untracked {
		switch {
		case i == 0:
			d.useUntracked(g)
		case g.of == d.six:
			d.untracked.six = g
		default:
			g.close()
		}
	}
	d.log.Info("the programs are loaded; policy and Services were kept up to date meanwhile", "took", time.Since(p.began).Round(time.Millisecond))
	return nil
}

// applyEarly writes what it can of a state while the programs of an earlier run evaluate packets.
func (d *Driver) applyEarly(s *nodestate.State, changed nodestate.Keys, first bool) error {
	waiting := &dataplane.Waiting{For: "the programs to be loaded", Until: d.loading.done}
	select {
	case <-d.loading.done: // in vain: whoever waits for Loaded decides
		waiting.For, waiting.Until = "another data plane: "+d.loading.err.Error(), nil
	default:
	}
	if s.Settings.IPv6 != (d.six != nil) { // programs come or go with it
		d.loading.missed = true
		return waiting
	}
	if first || d.loading.missed {
		d.loading.missed = false
		changed = nodestate.All()
		d.warnTables(s)
		d.bump = d.bump || d.tables.changing()
	}
	if err := d.ensureUplinks(s); err != nil {
		return errors.Join(err, waiting)
	}
	d.tables.desire(s, changed, d.ifindex)
	d.state = s
	err := d.keepTables()
	if first {
		d.log.Info("the node's policy and Services are in the kernel, and its programs are being loaded", "maps found", d.loaded.found,
			"entries written", d.tables.counts.reevaluated+d.tables.counts.quiet, "epoch", d.tables.epoch())
	}
	return errors.Join(err, waiting)
}

// findEvaluating reports whether programs of an earlier run evaluate packets by the maps that are
// open, and no others do: all maps were there, with the size that they are to have, and are those
// of the programs that are attached. It opens the maps of IPv6 where that run carried it.
func (d *Driver) findEvaluating() bool {
	if !d.opts.InBackground || d.opts.BPFFS == "" || d.opts.Import != flowhandover.ImportNone || d.loaded.found != d.loaded.pinned || len(d.loaded.recreated) > 0 {
		return false
	}
	if others, err := oldLayouts(d.opts.BPFFS); err != nil || len(others) > 0 {
		return false
	}
	if d.flagsFound()&(abi.SetHandOver|abi.SetApart) != 0 || !d.tables.families[0].(*familyTables[abi.Ip4]).found() {
		return false
	}
	var six *loaded
	if _, err := os.Stat(filepath.Join(bpffs.Maps6Dir(d.opts.BPFFS), "weir_settings")); err == nil {
		six, err = openMaps(d.loaded, bpffs.Maps6Dir(d.opts.BPFFS), d.opts.Sizes, d.opts.constants(), d.log)
		if err != nil {
			return false // the first Apply says why
		}
		if six.found != six.pinned || len(six.recreated) > 0 {
			six.Close()
			return false
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err := d.sameMaps(six); err != nil {
		d.log.Info("policy is applied when the programs are loaded", "reason", err)
		if six != nil {
			six.Close()
		}
		return false
	}
	if six != nil {
		d.six = six
		d.tables.families = append(d.tables.families, six.tables(d.tables.counts))
	}
	return true
}

// flagsFound are the flags of the settings as the map of IPv4 has them.
func (d *Driver) flagsFound() uint32 {
	var zero uint32
	var v abi.Settings[abi.Ip4]
	if err := d.loaded.Maps["weir_settings"].Lookup(&zero, unsafe.Pointer(&v)); err != nil {
		return abi.SetHandOver
	}
	return v.Flags
}

// found reports whether an earlier run put a state into the maps as a whole.
func (t *familyTables[A]) found() bool {
	var zero uint32
	var v abi.Settings[A]
	return t.settings.Lookup(&zero, unsafe.Pointer(&v)) == nil && v.Epoch != 0
}

// sameMaps says why programs that are attached do not work by the maps that are open; six is nil
// where IPv6's are not.
func (d *Driver) sameMaps(six *loaded) error {
	ids, err := d.attachedFound()
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("no programs of an earlier run are attached")
	}
	open := map[ebpf.MapID]bool{}
	for _, l := range []*loaded{d.loaded, six} {
		if l == nil {
			continue
		}
		for name, m := range l.Maps {
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
		if err := usesOnly(id, open, d.loaded.spec); err != nil {
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
func (d *Driver) attachedFound() (map[ebpf.ProgramID]bool, error) {
	ids := map[ebpf.ProgramID]bool{}
	dir := bpffs.LinksDir(d.opts.BPFFS)
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
	if d.opts.NoTCX {
		if err := filtersFound(ids); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{programsOfIPv6, untrackedOfIPv6} {
		m := d.loaded.Maps[name]
		for slot := range m.MaxEntries() {
			var id uint32
			if err := m.Lookup(slot, &id); err == nil {
				ids[ebpf.ProgramID(id)] = true
			} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("reading map %s: %w", name, err)
			}
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
