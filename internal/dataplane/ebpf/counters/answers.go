// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// replyNames are the words for enum answer of bpf/abi.h.
var replyNames = map[uint32]string{
	abi.AnswerPortUnreachable: "port unreachable",
	abi.AnswerTimeExceeded:    "time exceeded",
	abi.AnswerTooBig:          "too big",
	abi.AnswerHostUnreachable: "host unreachable",
	abi.AnswerReset:           "reset",
	abi.AnswerLimited:         "limited",
	abi.AnswerFailed:          "failed",
}

// Answers reads weir_answers: the packets that the programs answered by themselves, by what they
// sent. The error is that of the kernel's look-up.
func Answers(m *ebpf.Map) (map[string]uint64, error) {
	out := map[string]uint64{}
	for i, name := range replyNames {
		var cpus []uint64
		if err := m.Lookup(i, &cpus); err != nil {
			return nil, fmt.Errorf("reading map weir_answers: %w", err)
		}
		for _, n := range cpus {
			out[name] += n
		}
	}
	return out, nil
}
