// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"testing"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// What packages that do not know the programs have of their numbers is the same.
func TestNumbersOfOthers(t *testing.T) {
	for _, c := range []struct {
		name        string
		here, there uint64
	}{
		{"kernel.OwnMark", MarkOwn, kernel.OwnMark},
		{"nodestate.AddrHost", AddrHost, uint64(nodestate.AddrHost)},
		{"nodestate.AddrEndpoint", AddrEndpoint, uint64(nodestate.AddrEndpoint)},
		{"nodestate.AddrNode", AddrNode, uint64(nodestate.AddrNode)},
		{"nodestate.AddrPod", AddrPod, uint64(nodestate.AddrPod)},
		{"nodestate.ProtoBitTCP", PolicyTCP, uint64(nodestate.ProtoBitTCP)},
		{"nodestate.ProtoBitUDP", PolicyUDP, uint64(nodestate.ProtoBitUDP)},
		{"nodestate.ProtoBitSCTP", PolicySCTP, uint64(nodestate.ProtoBitSCTP)},
		{"nodestate.ProtoBitICMP", PolicyICMP, uint64(nodestate.ProtoBitICMP)},
		{"nodestate.ProtoBitOther", PolicyOther, uint64(nodestate.ProtoBitOther)},
	} {
		if c.here != c.there {
			t.Errorf("%s is %d, and %d to the programs", c.name, c.there, c.here)
		}
	}
}
