// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// Drops reads weir_drops, sorted by reason and rule. The error is the kernel's.
func Drops(m *ebpf.Map) ([]dataplane.Drop, error) {
	var out []dataplane.Drop
	var key abi.WeirDropKey
	var cpus []abi.WeirDropValue
	it := m.Iterate()
	for it.Next(&key, &cpus) {
		drop := dataplane.Drop{Reason: key.Reason, Rule: nodestate.RuleID(key.Rule)}
		for _, c := range cpus {
			drop.Packets += c.Packets
			drop.Bytes += c.Bytes
		}
		out = append(out, drop)
	}
	slices.SortFunc(out, func(a, b dataplane.Drop) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Rule, b.Rule))
	})
	return out, it.Err()
}

// Read adds up one counter (abi.Count…) of weir_counts over all CPUs. The error is that of the
// kernel's look-up.
func Read(m *ebpf.Map, which uint32) (uint64, error) {
	var cpus []uint64
	if err := m.Lookup(which, &cpus); err != nil {
		return 0, fmt.Errorf("reading map weir_counts: %w", err)
	}
	var n uint64
	for _, c := range cpus {
		n += c
	}
	return n, nil
}
