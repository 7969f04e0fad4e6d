// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"testing"
)

// A table that is not what it should be is refused, not guessed at.
func FuzzEntries(f *testing.F) {
	l := layouts[0]
	block := make([]byte, 176)
	binary.NativeEndian.PutUint16(block[88:], 112)
	binary.NativeEndian.PutUint16(block[90:], 176)
	copy(block[114:], "ERROR")
	copy(block[144:], "KUBE-SERVICES")
	f.Add(block)
	f.Fuzz(func(t *testing.T, block []byte) {
		out, after, _, err := l.without(tableInfo{ValidHooks: 31, Size: uint32(len(block))}, block, Owner{Chain: func(name string) bool { return name == "KUBE-SERVICES" }, Comment: func(string) bool { return true }})
		if err == nil && (len(out) > len(block) || int(after.Size) != len(out)) {
			t.Errorf("%d bytes of %d", len(out), len(block))
		}
	})
}
