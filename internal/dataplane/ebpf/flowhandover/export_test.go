// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/nettest"
)

// TestExportMissesNone: a flow that becomes established while flows are read, so moves from one map
// to the other, is not missed.
func TestExportMissesNone(t *testing.T) {
	nettest.NeedRoot(t, "making maps")
	var maps [2]*ebpf.Map
	for i := range maps {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.FlowKey[abi.Ip4]{})), ValueSize: uint32(unsafe.Sizeof(abi.FlowValue[abi.Ip4]{})), MaxEntries: 16})
		nettest.Must(t, err)
		defer m.Close()
		maps[i] = m
	}
	g := &familyExporter[abi.Ip4]{flows: maps[0], half: maps[1]}
	there, moves := flowKeyOf(unix.IPPROTO_UDP, "10.244.1.2:40010", "10.244.2.3:53"), flowKeyOf(unix.IPPROTO_UDP, "10.244.1.2:40011", "10.244.2.3:53")
	v := flowTo(moves, 0, 0, abi.ActNeigh)
	for k, m := range map[abi.FlowKey[abi.Ip4]]*ebpf.Map{there: g.flows, moves: g.half} {
		if put, err := flowtable.AddFlow(m, k, v); !put || err != nil {
			t.Fatalf("adding a flow: %v, %v", put, err)
		}
	}
	came := map[abi.FlowKey[abi.Ip4]]bool{}
	nettest.Must(t, g.each(func(k abi.FlowKey[abi.Ip4], _ abi.FlowValue[abi.Ip4]) {
		came[k] = true
		if k == there { // as flow_promote does it, when the established ones have been read
			_, err := flowtable.AddFlow(g.flows, moves, v)
			nettest.Must(t, errors.Join(err, g.half.Delete(&moves)))
		}
	}))
	if !came[there] || !came[moves] {
		t.Errorf("what came is %v", came)
	}
	if !g.find(moves, &v) {
		t.Error("what has moved is not found")
	}
}
