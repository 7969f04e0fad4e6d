// SPDX-License-Identifier: Apache-2.0

package ebpf

import "github.com/weir-net/weir/internal/dataplane"

// callIPIP makes the programs unpack IP in IP of other nodes while the state asks for it. The
// settings that say so are written before.
func (d *Driver) callIPIP() error {
	on := d.state.Settings.IPIP.Accept
	changed, err := d.loaded.CallIPIP(on)
	if err != nil {
		return &dataplane.KeyError{Table: "programs", Key: "IP in IP", Err: err}
	}
	if changed && on == d.unpacks && d.started {
		d.count.repaired("program", d.log, "what unpacks IP in IP was not as it should be; put it right", "unpacks", on)
	}
	d.unpacks = on
	return nil
}
