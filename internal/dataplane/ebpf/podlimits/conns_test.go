// SPDX-License-Identifier: Apache-2.0

package podlimits

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nettest"
)

// TestSweep holds that connections count as long as they have a flow, that what is over frees its
// place, and that a count that is wrong, in either direction, becomes what the table holds: a pod
// is never refused for ever.
func TestSweep(t *testing.T) {
	nettest.NeedRoot(t, "makes maps")
	t.Parallel()
	table := func(key, value uintptr) *ebpf.Map {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(key), ValueSize: uint32(value), MaxEntries: 64})
		nettest.Must(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	type flowKey = abi.FlowKey[abi.Ip4]
	limitKey, flow := unsafe.Sizeof(abi.WeirLimitKey{}), table(unsafe.Sizeof(flowKey{}), 8)
	s := &Sweep{
		limits: table(limitKey, unsafe.Sizeof(abi.WeirLimit{})), states: table(limitKey, 16), conns: table(unsafe.Sizeof(abi.WeirConnKey{}), unsafe.Sizeof(abi.WeirConn{})),
		flows: map[bool][]*ebpf.Map{false: {flow, table(unsafe.Sizeof(flowKey{}), 8)}},
	}
	of := abi.WeirLimitKey{Ifindex: 7, Direction: abi.LimitEgress}
	nettest.Must(t, s.limits.Put(of, abi.WeirLimit{Most: 5}))
	opened := func(n uint32) {
		state := make([]byte, 16)
		binary.NativeEndian.PutUint32(state[openAt:], n)
		nettest.Must(t, s.states.Put(of, state))
	}
	mapped := func(last byte) (out [4]uint32) {
		b := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: last}
		for i := range out {
			out[i] = binary.NativeEndian.Uint32(b[i*4:])
		}
		return out
	}
	var now unix.Timespec
	nettest.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	conn := func(ifindex uint32, port uint16, c abi.WeirConn) abi.WeirConnKey {
		k := abi.WeirConnKey{Ifindex: ifindex, Port: port, PeerPort: 80, Pod: mapped(1), Peer: mapped(2)}
		c.Direction = abi.LimitEgress
		nettest.Must(t, s.conns.Put(k, c))
		return k
	}
	old := uint64(now.Nano()) - 2*uint64(young)
	live := conn(7, 1, abi.WeirConn{Begun: old})
	conn(7, 2, abi.WeirConn{Begun: old})                     // its flow is gone
	conn(7, 3, abi.WeirConn{Begun: uint64(now.Nano())})      // has none yet
	conn(7, 4, abi.WeirConn{Begun: old, Ended: 1})           // reset, and gone
	conn(9, 5, abi.WeirConn{Begun: uint64(now.Nano())})      // of a pod that is gone
	resets := conn(7, 6, abi.WeirConn{Begun: old, Ended: 1}) // reset, with a flow: it may go on
	for _, k := range []abi.WeirConnKey{live, resets} {
		nettest.Must(t, flow.Put(flowKey{Saddr: abi.Ip4{10, 0, 0, 1}, Daddr: abi.Ip4{10, 0, 0, 2}, Sport: k.Port, Dport: 80, Proto: unix.IPPROTO_TCP}, make([]byte, 8)))
	}
	// The table has two that count, whatever the programs' number is.
	for _, open := range []uint32{3, 20, 0, 2} {
		opened(open)
		nettest.Must(t, s.Run())
		var l abi.WeirLimit
		nettest.Must(t, s.limits.Lookup(of, &l))
		if got := open - l.Settled; got != 2 {
			t.Errorf("%d counted: %d settled, so %d are open; want 2", open, l.Settled, got)
		}
		var left int
		var k abi.WeirConnKey
		var c abi.WeirConn
		for all := s.conns.Iterate(); all.Next(&k, &c); left++ {
		}
		if left != 3 {
			t.Errorf("%d connections in the table, want 3", left)
		}
	}
	// Something began while the table was read: what was found to be over counts, no more is known.
	nettest.Must(t, s.settle(map[abi.WeirLimitKey]uint32{of: 5}, map[abi.WeirLimitKey]uint32{of: 6}, nil, map[abi.WeirLimitKey]uint32{of: 2}))
	var l abi.WeirLimit
	nettest.Must(t, s.limits.Lookup(of, &l))
	if l.Settled != 2 || l.Most != 5 {
		t.Errorf("%+v", l)
	}
}
