// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"

	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
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
