// SPDX-License-Identifier: Apache-2.0

package maptable

import (
	"errors"

	"github.com/cilium/ebpf"
)

// Clear deletes every entry of a map, whatever the types (BPF_MAP_GET_NEXT_KEY). The error is the
// kernel's.
func Clear(m *ebpf.Map) error {
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
}
