// SPDX-License-Identifier: Apache-2.0

package object

import "github.com/cilium/ebpf"

// ProgramOfIPIP is the map by which IPv4's weir_from_uplink calls what unpacks IP in IP, while the
// node takes such packets. Without an entry they are packets as any other.
const ProgramOfIPIP = "weir_ipip"

// CallIPIP makes the program at uplinks unpack IP in IP, or not, and reports whether it did
// otherwise until now.
func (l *Collection) CallIPIP(on bool) (changed bool, err error) {
	const name = "weir_from_ipip"
	var p *ebpf.Program
	if on {
		p = l.Programs[name]
	}
	return setCall(l.Maps[ProgramOfIPIP], 0, name, p)
}
