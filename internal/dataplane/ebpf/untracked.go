// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
)

// What host endpoints say of each packet by itself (doNotTrack) is said by two programs that are in
// the kernel only while a policy asks for it: weir_arrive, in XDP on each uplink, and
// weir_to_uplink_each, which takes the place of weir_to_uplink. Where XDP cannot be had,
// weir_from_uplink evaluates: later, and at more cost.

const (
	arriveProgram = "weir_arrive"
	eachProgram   = "weir_to_uplink_each"
)

// untrackedNames are those.
var untrackedNames = []string{arriveProgram, eachProgram}

// arrive is the hook of weir_arrive.
var arrive = attach.Hook{Name: "arrive", At: ebpf.AttachXDP}

// untrackedOfIPv6 is the map by which IPv4's weir_arrive calls that of IPv6; slotEach is where
// programsOfIPv6 has the other program (HOOK_TO_UPLINK_EACH).
const (
	untrackedOfIPv6 = "weir_xdp_ipv6"
	slotEach        = 5
)

// untrackedPrograms are the programs of a family.
type untrackedPrograms struct {
	of        *loaded
	all       []*ebpf.Collection
	each      *ebpf.Program
	arrive    *ebpf.Program // nil with arriveErr
	arriveErr error
}

// loadUntracked loads the programs of a family alongside those that it has, with the same maps. A
// kernel that has no use for the one in XDP is no error.
func loadUntracked(l *loaded) (*untrackedPrograms, error) {
	g := &untrackedPrograms{of: l}
	var err error
	if g.each, err = g.load(eachProgram); err != nil {
		g.close()
		return nil, err
	}
	g.arrive, g.arriveErr = g.load(arriveProgram)
	return g, nil
}

func (g *untrackedPrograms) load(name string) (*ebpf.Program, error) {
	spec, err := g.of.read()
	if err != nil {
		return nil, fmt.Errorf("reading the compiled programs: %w", err)
	}
	if err := specialize(spec, nil, g.of.constants); err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(have string, _ *ebpf.ProgramSpec) bool { return have != name })
	replaced := map[string]*ebpf.Map{}
	for name, ms := range spec.Maps {
		switch m := g.of.Maps[name]; {
		case strings.HasPrefix(name, "."):
		case m == nil:
			delete(spec.Maps, name) // IPv4's alone
		default:
			ms.MaxEntries, replaced[name] = m.MaxEntries(), m
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced})
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", name, err)
	}
	g.all = append(g.all, c)
	return c.Programs[name], nil
}

func (g *untrackedPrograms) close() {
	if g == nil {
		return
	}
	for _, c := range g.all {
		c.Close()
	}
}

// callUntracked makes IPv4's programs call these of IPv6, or none.
func (l *loaded) callUntracked(arrive, each *ebpf.Program) error {
	put := func(name string, slot uint32, p *ebpf.Program) error {
		m, have := l.Maps[name], uint32(0)
		err := m.Lookup(slot, &have)
		if p == nil && errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if p == nil {
			if err := m.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("taking a program out of %s: %w", name, err)
			}
			return nil
		}
		if id, idErr := attach.ProgramID(p); idErr == nil && err == nil && have == uint32(id) {
			return nil
		}
		if err := m.Put(slot, p); err != nil {
			return fmt.Errorf("putting a program into %s: %w", name, err)
		}
		return nil
	}
	return errors.Join(put(untrackedOfIPv6, 0, arrive), put(programsOfIPv6, slotEach, each))
}

// untracked are what a driver has of them.
type untracked struct {
	four, six *untrackedPrograms
	failed    map[int]noXDP // by interface index
}

// noXDP says why XDP cannot be had on an interface.
type noXDP struct {
	err  error
	when time.Time
}

// xdpEvery is how long an interface that refused XDP is left alone.
const xdpEvery = 10 * time.Second

// due reports whether XDP is worth a try on an interface.
func (g *untracked) due(ifindex int) bool {
	f, failed := g.failed[ifindex]
	return !failed || time.Since(f.when) > xdpEvery
}

// tried notes how it went.
func (g *untracked) tried(ifindex int, name string, err error, log *slog.Logger) {
	before, failed := g.failed[ifindex]
	if err == nil {
		delete(g.failed, ifindex)
		return
	}
	if !failed || before.err.Error() != err.Error() {
		log.Warn("no XDP on an uplink: what doNotTrack policy denies is dropped later, at more cost", "interface", name, "error", err)
	}
	if g.failed == nil {
		g.failed = map[int]noXDP{}
	}
	g.failed[ifindex] = noXDP{err, time.Now()}
}

func (g *untracked) close() {
	g.four.close()
	g.six.close()
	*g = untracked{}
}

// ensureUntracked loads and offers what is needed for a state that evaluates packets by themselves,
// and makes IPv4's call IPv6's.
func (d *Driver) ensureUntracked() error {
	if !d.state.JudgesAlone() && !d.tables.evaluatesUntracked() {
		return nil
	}
	if d.untracked.four == nil {
		g, err := loadUntracked(d.loaded)
		if err != nil {
			return err
		}
		d.useUntracked(g)
	}
	if d.untracked.six != nil && d.untracked.six.of != d.six {
		d.untracked.six.close()
		d.untracked.six = nil
	}
	// What fails for IPv6 does not keep IPv4's from being in force.
	var errs []error
	if d.six != nil && d.untracked.six == nil {
		g, err := loadUntracked(d.six)
		if err == nil {
			d.untracked.six = g
		}
		errs = append(errs, err)
	}
	if six := d.untracked.six; six != nil {
		errs = append(errs, d.loaded.callUntracked(six.arrive, six.each))
	}
	if g := d.untracked.four; g.arrive != nil && d.programs.Prog[arrive.Name] == nil {
		errs = append(errs, d.programs.Offer("", map[string]*ebpf.Program{arriveProgram: g.arrive}))
	}
	return errors.Join(append(errs, d.programs.Use(attach.ToUplink, d.untracked.four.each))...)
}

// useUntracked makes programs of IPv4 those that are offered.
func (d *Driver) useUntracked(g *untrackedPrograms) {
	d.untracked.four = g
	if g.arriveErr != nil {
		d.log.Warn("this kernel does not take the program for XDP: what doNotTrack policy denies is dropped later, at more cost", "error", g.arriveErr)
	}
}

// removeUntracked takes everything back once nothing asks for it, also what an earlier run left.
func (d *Driver) removeUntracked() error {
	if d.state.JudgesAlone() || d.tables.evaluatesUntracked() || d.untracked.four == nil && d.started {
		return nil
	}
	err := errors.Join(d.programs.Withdraw([]attach.Hook{arrive}), d.programs.Use(attach.ToUplink, d.loaded.Programs["weir_to_uplink"]), d.loaded.callUntracked(nil, nil))
	if err == nil {
		d.untracked.close()
	}
	return err
}

// Where a program in XDP runs.
const (
	XDPNative  = "native"
	XDPGeneric = "generic"
)

// arrival is Status.Arrival.
func (d *Driver) arrival() map[string]string {
	if d.untracked.four == nil {
		return nil
	}
	out := map[string]string{}
	for index, name := range d.uplinks {
		switch f, failed := d.untracked.failed[index]; {
		case d.untracked.four.arriveErr != nil:
			out[name] = d.untracked.four.arriveErr.Error()
		case failed:
			out[name] = f.err.Error()
		case d.programs.Has(attach.Site{Ifindex: index, Hook: arrive}):
			out[name] = xdpMode(index)
		}
	}
	return out
}

// xdpMode is how the program of an interface runs; XDPNative where the kernel does not tell.
func xdpMode(ifindex int) string {
	const attachedGeneric = 2 // XDP_ATTACHED_SKB (linux/if_link.h)
	l, err := netlink.LinkByIndex(ifindex)
	if err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.AttachMode == attachedGeneric {
		return XDPGeneric
	}
	return XDPNative
}
