// SPDX-License-Identifier: Apache-2.0

package podlimits

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nettest"
)

// TestAdopt holds that connections that were open when a limit came count by the pod and the
// direction that they are of, once; and that no others do: of the node itself, of pods without a
// limit in that direction, of other protocols, those that are over, and those from elsewhere.
func TestAdopt(t *testing.T) {
	nettest.NeedRoot(t, "makes maps")
	t.Parallel()
	table := func(key, value uintptr) *ebpf.Map {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: uint32(key), ValueSize: uint32(value), MaxEntries: 64})
		nettest.Must(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	flows := table(unsafe.Sizeof(abi.FlowKey[abi.Ip4]{}), unsafe.Sizeof(abi.FlowValue[abi.Ip4]{}))
	flows6 := table(unsafe.Sizeof(abi.FlowKey[abi.Ip6]{}), unsafe.Sizeof(abi.FlowValue[abi.Ip6]{}))
	limitKey := unsafe.Sizeof(abi.WeirLimitKey{})
	s := &Sweep{
		limits: table(limitKey, unsafe.Sizeof(abi.WeirLimit{})), states: table(limitKey, 16), conns: table(unsafe.Sizeof(abi.WeirConnKey{}), unsafe.Sizeof(abi.WeirConn{})),
		flows: map[bool][]*ebpf.Map{false: {flows}, true: {flows6}},
	}
	sends, gets := abi.WeirLimitKey{Ifindex: 7, Direction: abi.LimitEgress}, abi.WeirLimitKey{Ifindex: 7, Direction: abi.LimitIngress}
	other := abi.WeirLimitKey{Ifindex: 8, Direction: abi.LimitEgress}
	for _, k := range []abi.WeirLimitKey{sends, gets, other} {
		nettest.Must(t, s.limits.Put(k, abi.WeirLimit{Most: 5}))
		nettest.Must(t, s.states.Put(k, make([]byte, 16)))
	}
	nettest.Must(t, s.limits.Put(abi.WeirLimitKey{Ifindex: 9, Direction: abi.LimitEgress}, abi.WeirLimit{Interval: 5}))
	host := abi.Ip4{172, 30, 0, 8}
	flow := func(ifindex uint32, port uint16, proto, flags, state uint8, peer abi.Ip4) {
		t.Helper()
		v := abi.FlowValue[abi.Ip4]{Flags: flags, State: state}
		v.EnterBy(ifindex)
		value, err := v.Marshal(flows.ValueSize())
		nettest.Must(t, err)
		nettest.Must(t, flows.Put(abi.FlowKey[abi.Ip4]{Saddr: abi.Ip4{10, 0, 0, 1}, Daddr: peer, Sport: port, Dport: 80, Proto: proto}, value))
	}
	peer := abi.Ip4{10, 0, 0, 2}
	flow(7, 1, unix.IPPROTO_TCP, 0, abi.StateReplied, peer)
	flow(7, 2, unix.IPPROTO_TCP, 0, abi.StateFIN, peer)
	flow(7, 3, unix.IPPROTO_TCP, abi.FlowReply, 0, peer)
	flow(8, 4, unix.IPPROTO_TCP, 0, 0, peer)
	flow(7, 10, unix.IPPROTO_UDP, 0, 0, peer)
	flow(7, 11, unix.IPPROTO_TCP, 0, abi.StateClosing, peer)
	flow(7, 12, unix.IPPROTO_TCP, abi.FlowReply|abi.FlowFromHost, 0, peer)
	flow(7, 13, unix.IPPROTO_TCP, abi.FlowReply, 0, host)
	flow(8, 14, unix.IPPROTO_TCP, abi.FlowReply, 0, peer)
	flow(9, 15, unix.IPPROTO_TCP, 0, 0, peer)
	flow(0, 16, unix.IPPROTO_TCP, 0, 0, peer)
	v := abi.FlowValue[abi.Ip6]{}
	v.EnterBy(7)
	value, err := v.Marshal(flows6.ValueSize())
	nettest.Must(t, err)
	nettest.Must(t, flows6.Put(abi.FlowKey[abi.Ip6]{Saddr: abi.Ip6{0xfd, 15: 1}, Daddr: abi.Ip6{0xfd, 15: 2}, Sport: 5, Dport: 80, Proto: unix.IPPROTO_TCP}, value))

	want := map[abi.WeirLimitKey]uint32{sends: 3, gets: 1, other: 1}
	for range 2 {
		nettest.Must(t, s.Adopt(func(a netip.Addr) bool { return a == netip.AddrFrom4(host) }))
		nettest.Must(t, s.Run())
		for k, n := range want {
			var l abi.WeirLimit
			nettest.Must(t, s.limits.Lookup(k, &l))
			if got := -l.Settled; got != n { // programs have counted none
				t.Errorf("%+v: %d are open, want %d", k, got, n)
			}
		}
		var k abi.WeirConnKey
		var c abi.WeirConn
		count := 0
		for all := s.conns.Iterate(); all.Next(&k, &c); count++ {
			if address(k.Pod) != netip.MustParseAddr("10.0.0.1") && address(k.Pod) != netip.MustParseAddr("fd00::1") {
				t.Errorf("a connection of %s", address(k.Pod))
			}
			if fin := c.FinSent == 1; fin != (k.Port == 2) {
				t.Errorf("of port %d the pod has sent a FIN: %t", k.Port, fin)
			}
		}
		if count != 5 {
			t.Errorf("%d connections, want 5", count)
		}
	}
}
