// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
)

// setCall puts a program into a slot of a map by which programs call others
// (BPF_MAP_TYPE_PROG_ARRAY), or with nil empties it, and reports whether it was otherwise until
// now. Name is for errors.
func setCall(m *ebpf.Map, slot uint32, name string, p *ebpf.Program) (changed bool, err error) {
	var have uint32
	err = m.Lookup(slot, &have)
	found := err == nil
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("looking for %s: %w", name, err)
	}
	if p == nil {
		if !found {
			return false, nil
		}
		if err := m.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("taking out %s: %w", name, err)
		}
		return true, nil
	}
	if id, err := attach.ProgramID(p); err == nil && found && have == uint32(id) {
		return false, nil
	}
	if err := m.Put(slot, p); err != nil {
		return false, fmt.Errorf("putting in %s: %w", name, err)
	}
	return true, nil
}
