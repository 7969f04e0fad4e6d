// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// nameCounts are the words for enum name_count of bpf/abi_names.h.
var nameCounts = map[uint32]string{
	abi.NamesLearned:   "noted",
	abi.NamesUnasked:   "unasked",
	abi.NamesUntrusted: "untrusted",
	abi.NamesUnread:    "unread",
	abi.NamesFull:      "full",
}

// Names reads weir_name_counts: answers of DNS servers to pods with domain names in their policy,
// by what became of them; "full" are addresses. The error is that of the kernel's look-up.
func Names(m *ebpf.Map) (map[string]uint64, error) {
	out := map[string]uint64{}
	for i, name := range nameCounts {
		var cpus []uint64
		if err := m.Lookup(i, &cpus); err != nil {
			return nil, fmt.Errorf("reading map weir_name_counts: %w", err)
		}
		for _, n := range cpus {
			out[name] += n
		}
	}
	return out, nil
}
