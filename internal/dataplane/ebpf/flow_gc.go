// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sleep"
)

// The programs look at time-outs when they meet an entry, so an entry that nobody meets stays until
// an LRU table needs its place. The sweep walks the tables in small batches with long pauses
// between: it removes what is expired, so that eviction meets live flows last, and counts what is
// left.

const (
	// gcShare is the part of one core that the sweep may take: 1 in gcShare.
	gcShare = 200
	// gcSharePressed is the same while the table of connections is nearly full: pods are held to
	// what the last round counted.
	gcSharePressed = 20
	// gcPause is the least time between two batches, gcRest that between two rounds.
	gcPause = 20 * time.Millisecond
	gcRest  = 10 * time.Second
	// nameSweep is the time between two sweeps of the addresses of domain names.
	nameSweep = 30 * time.Second
)

// collectGarbage works until ctx ends.
func (d *Driver) collectGarbage(ctx context.Context) {
	clock, err := flowtable.NewKernelClock()
	if err != nil {
		d.log.Error("expired flows stay until their place is needed", "error", err)
		return
	}
	defer clock.Close()
	all := map[*object.Collection]sweep{}
	defer func() { d.keepTableGCs(all, nil) }()
	for {
		d.mu.Lock()
		families := d.both()
		d.keepTableGCs(all, families) // while they cannot be closed
		d.mu.Unlock()
		for _, l := range families {
			of := all[l]
			d.warnEvicted(l, of.begin())
			for _, s := range of.tables {
				if !d.gcRound(ctx, l, s, clock) {
					return
				}
			}
			d.warnEvicted(l, of.end())
			if n, known := of.count(); known {
				d.expired.noteEvicted(l, n)
			}
		}
		if !d.rest(ctx, all) {
			return
		}
	}
}

// sweep is what the tables of a family are swept by, and what says how many flows were evicted from
// them; nil = flows are not accounted for.
type sweep struct {
	tables  []*flowtable.TableGC
	evicted *flowtable.Evicted
}

func (s sweep) begin() error {
	if s.evicted == nil {
		return nil
	}
	return s.evicted.Begin()
}

func (s sweep) end() error {
	if s.evicted == nil {
		return nil
	}
	return s.evicted.End()
}

func (s sweep) count() (n uint64, known bool) {
	if s.evicted == nil {
		return 0, false
	}
	return s.evicted.Count()
}

func (s sweep) close() {
	for _, t := range s.tables {
		t.Close()
	}
	if s.evicted != nil {
		s.evicted.Close()
	}
}

func (d *Driver) warnEvicted(l *object.Collection, err error) {
	if err != nil {
		d.log.Warn("evicted flows are not counted", "family", l.Family, "error", err)
	}
}

// rest waits for the next round, shorter when a table is pressed.
func (d *Driver) rest(ctx context.Context, all map[*object.Collection]sweep) bool {
	for range int(gcRest / time.Second) {
		if sleep.For(ctx, time.Second) != nil {
			return false
		}
		for _, of := range all {
			if slices.ContainsFunc(of.tables, (*flowtable.TableGC).Pressed) {
				return true
			}
		}
	}
	return true
}

// keepTableGCs makes those of families that came, and lets go of those of families that went. A
// family whose tables cannot be opened is tried again in the next round.
func (d *Driver) keepTableGCs(all map[*object.Collection]sweep, families []*object.Collection) {
	for l, of := range all {
		if !slices.Contains(families, l) {
			of.close()
			delete(all, l)
		}
	}
	for _, l := range families {
		if _, ok := all[l]; ok {
			continue
		}
		list, err := flowtable.NewTableGCs(l.Maps, l.ICMP)
		if err != nil {
			d.log.Error("tables are not swept", "family", l.Family, "error", err)
			continue
		}
		of := sweep{tables: list}
		if d.opts.FlowRecords > 0 {
			for _, s := range list {
				s.Removed = d.expired.note(l, s.Name)
			}
			if of.evicted, err = flowtable.NewEvicted(l.Maps["weir_counts"], list); err != nil {
				d.warnEvicted(l, err)
			}
		}
		all[l] = of
	}
}

// gcRound goes through one table once and reports whether to go on.
func (d *Driver) gcRound(ctx context.Context, l *object.Collection, s *flowtable.TableGC, clock *flowtable.KernelClock) bool {
	for over := false; !over; {
		d.mu.Lock()
		known, there := d.state != nil, slices.Contains(d.both(), l)
		if known {
			s.Timeouts = tables.Timeouts(d.state, d.machine)
		}
		d.mu.Unlock()
		if !known {
			return sleep.For(ctx, time.Second) == nil
		}
		if !there {
			return true
		}
		began := time.Now()
		var err error
		if s.Now, err = clock.Now(); err == nil {
			over, err = s.Step()
		}
		if err != nil {
			d.log.Warn("sweeping a table", "family", l.Family, "error", err)
			return sleep.For(ctx, gcRest) == nil
		}
		share := gcShare
		if s.Pressed() {
			share = gcSharePressed
		}
		if sleep.For(ctx, max(gcPause, time.Since(began)*time.Duration(share-1))) != nil {
			return false
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.Swept == nil {
		l.Swept = map[string]int{}
	}
	l.Swept[s.Name] = s.Entries
	return true
}

// sweepNames removes, until ctx ends, the addresses that pods were told of domain names and that
// count no more.
func (d *Driver) sweepNames(ctx context.Context) {
	for sleep.For(ctx, nameSweep) == nil {
		now, err := flowtable.MonotonicSeconds()
		if err == nil {
			err = d.removeNames(now)
		}
		if err != nil {
			d.log.Warn("addresses of domain names that count no more stay in their table", "error", err)
		}
	}
}

// removeNames does one round.
func (d *Driver) removeNames(now uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return nil
	}
	here := map[uint32]bool{}
	for _, a := range d.state.Addrs {
		if a.Kind == nodestate.AddrEndpoint {
			here[uint32(d.ifindex(a))] = true
		}
	}
	n, err := flowtable.RemoveNames(d.loaded.Maps["weir_names"], d.loaded.Maps["weir_name_used"], here, now)
	if d.loaded.Swept == nil {
		d.loaded.Swept = map[string]int{}
	}
	d.loaded.Swept["weir_names"] = n
	return errors.Join(err, flowtable.RemoveSaid(d.loaded.Maps["weir_name_said"], here, now))
}

// Pressures returns how full the maps are, sorted by name. A map that was not counted yet is left
// out.
func (d *Driver) Pressures() []dataplane.Pressure {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dataplane.Pressure
	add := func(l *object.Collection, family, name string, entries int) {
		if m := l.Maps[name]; m != nil {
			out = append(out, dataplane.Pressure{Map: name, Family: family, Setting: object.SizeSetting(name), Entries: entries, Capacity: object.Room(name, m)})
		}
	}
	add(d.loaded, "", "weir_policy", d.tables.Verdicts())
	for i, l := range d.both() {
		for table, n := range d.tables.Families()[i].Entries() {
			add(l, l.Family, "weir_"+table, n)
		}
		for name, n := range l.Swept {
			add(l, l.Family, name, n)
		}
	}
	slices.SortFunc(out, func(a, b dataplane.Pressure) int {
		return cmp.Or(cmp.Compare(a.Map, b.Map), cmp.Compare(a.Family, b.Family))
	})
	return out
}

// warnTables reports before a state is written which tables it does not fit into: such a state is
// written as far as it fits.
func (d *Driver) warnTables(s *nodestate.State) {
	for _, l := range d.both() {
		for name, n := range needed(s, l.Family == bpffs.IPv6) {
			if m := l.Maps[name]; m != nil && n > int(m.MaxEntries()) {
				d.log.Error("the cluster does not fit into a map; what is beyond is not carried", "map", name, "family", l.Family,
					"needed", n, "entries", m.MaxEntries(), "setting", object.SizeSetting(name))
			}
		}
	}
}

// needed counts the entries of a family that a state wants in the tables that follow the size of
// the cluster.
func needed(s *nodestate.State, six bool) map[string]int {
	of := func(a netip.Addr) bool { return a.Is6() == six }
	n := map[string]int{}
	count := func(name string, yes bool, by int) {
		if yes {
			n[name] += by
		}
	}
	for f := range s.Frontends.All() {
		count("weir_services", of(f.Addr), 1)
	}
	for id, list := range s.Backends.All() {
		count("weir_backends", of(id.Addr), len(list))
	}
	for a := range s.Addrs {
		count("weir_addrs", of(a), 1)
	}
	for a := range s.Peers.All() {
		count("weir_peers", of(a), 1)
	}
	return n
}
