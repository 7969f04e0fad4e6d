// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
)

// ProgramOfIPIP is the map by which IPv4's weir_from_uplink calls what unpacks IP in IP, while the
// node takes such packets. Without an entry they are packets as any other.
const ProgramOfIPIP = "weir_ipip"

// CallIPIP makes the program at uplinks unpack IP in IP, or not, and reports whether it did
// otherwise until now.
func (l *Collection) CallIPIP(on bool) (changed bool, err error) {
	const slot, name = uint32(0), "weir_from_ipip"
	m, have := l.Maps[ProgramOfIPIP], uint32(0)
	err = m.Lookup(slot, &have)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("looking for %s: %w", name, err)
	}
	found := err == nil
	if !on {
		if !found {
			return false, nil
		}
		if err := m.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("taking out %s: %w", name, err)
		}
		return true, nil
	}
	if id, err := attach.ProgramID(l.Programs[name]); err == nil && found && have == uint32(id) {
		return false, nil
	}
	if err := m.Put(slot, l.Programs[name]); err != nil {
		return false, fmt.Errorf("putting in %s: %w", name, err)
	}
	return true, nil
}
