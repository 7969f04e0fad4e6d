// SPDX-License-Identifier: Apache-2.0

package ebpf

// endTables lets flows evaluate themselves again where entries were written since there were before
// of them, and returns what could not be written.
func (d *Driver) endTables(before uint64) []error {
	if d.tables.Reevaluated() != before || d.tables.Stale() {
		d.bump = true
	}
	err := d.raiseEpoch()
	if err == nil && d.tables.RemoveVerdicts() {
		d.bump = true
		err = d.raiseEpoch()
	}
	errs := d.tables.Errors()
	if err != nil {
		errs = append(errs, err)
	}
	return errs
}

// raiseEpoch makes flows evaluate themselves again when something changed that they depend on.
func (d *Driver) raiseEpoch() error {
	if !d.bump {
		return d.tables.Settle()
	}
	if err := d.tables.NextEpoch(); err != nil {
		return err
	}
	d.bump = false
	return nil
}
