// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net/netip"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
)

// Leave implements handover.Predecessor. New interfaces get no programs from then on, and Run ends.
func (d *Driver) Leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handingOver = true
	d.endRun()
}

// ExportFlows is the function of that name for a driver that goes on applying states to its tables
// meanwhile. Leave was called before.
func (d *Driver) ExportFlows(ctx context.Context, to flowhandover.Successor) error {
	return flowhandover.ExportWith(ctx, d.opts.BPFFS, to, d.handOver, d.log)
}

// handOver lets what has no flow pass the programs, and with apart what they translate for the
// stack be marked; or lets them begin flows again. The next Apply writes the same.
func (d *Driver) handOver(on, apart bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.HandOver, d.machine.Apart = on, apart
	set, clear := flowhandover.SettingsFlags(on, apart)
	return d.tables.ChangeFlags(set, clear)
}

// keepTables makes the tables equal to what is desired, and nothing else.
func (d *Driver) keepTables() error {
	before := d.tables.Reevaluated()
	d.tables.Write(d.state, d.machine)
	d.tables.Remove(d.state, d.machine)
	errs := d.endTables(before)
	d.note(errs)
	return errors.Join(errs...)
}

// FlowsOf implements vmflows.DataPlane.
func (d *Driver) FlowsOf(a netip.Addr) (out []conntrack.Entry, err error) {
	d.mu.Lock()
	f := d.tablesOf(a)
	d.mu.Unlock()
	now, err := flowtable.Now()
	if f == nil || err != nil {
		return nil, err
	}
	err = f.FlowsOf(a, now, func(e conntrack.Entry) { out = append(out, e) })
	return out, err
}

// PutFlows implements vmflows.DataPlane.
func (d *Driver) PutFlows(a netip.Addr, ifindex int, flows []conntrack.Entry) error {
	now, err := flowtable.Now()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.tablesOf(a)
	if f == nil {
		return nil
	}
	from := flowhandover.Importer{State: d.state, Ifindex: d.ifindex, Which: flowhandover.ImportAll, Route: kernelRoute,
		Moved: flowhandover.Moved{Addr: a, IfIndex: ifindex}}
	var some conntrack.Some
	for _, e := range flows {
		some.Add(f.PutFlow(from, e, now, ifindex == 0))
	}
	return some.Err()
}

// tablesOf are those of an address's family; nil = the node does not carry it. d.mu is held.
func (d *Driver) tablesOf(a netip.Addr) tables.Family {
	all := d.tables.Families()
	if d.state == nil || a.Is6() && len(all) < 2 {
		return nil
	}
	if a.Is6() {
		return all[1]
	}
	return all[0]
}
