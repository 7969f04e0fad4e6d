// SPDX-License-Identifier: Apache-2.0

package podlimits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// Adopt enters the connections that were open when limits came, as flows say: the next Run counts
// them. Those that the node itself opened do not count, nor do any to its addresses here.
func (s *Sweep) Adopt(isHost func(netip.Addr) bool) error {
	limits, err := read(s.limits)
	if err != nil {
		return fmt.Errorf("reading limits: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	begun := uint64(max(time.Duration(now.Nano())-young, 0))
	counted := func(of abi.WeirLimitKey) bool { return limits[of].Most > 0 }
	return errors.Join(adopt[abi.Ip4](s.conns, s.flows[false], begun, counted, isHost), adopt[abi.Ip6](s.conns, s.flows[true], begun, counted, isHost))
}

// adopt enters those of a family.
func adopt[A abi.Address](conns *ebpf.Map, flows []*ebpf.Map, begun uint64, counted func(abi.WeirLimitKey) bool, isHost func(netip.Addr) bool) error {
	var errs []error
	for _, m := range flows {
		err := flowtable.Walk(m, func(key, value []byte) {
			var k abi.FlowKey[A]
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
			var v abi.FlowValue[A]
			if err := v.Unmarshal(value); err != nil {
				errs = append(errs, err)
				return
			}
			ifindex := v.EntersBy()
			if ifindex == 0 || k.Proto != unix.IPPROTO_TCP || v.State&abi.StateClosing != 0 {
				return
			}
			c := abi.WeirConn{Begun: begun, Direction: abi.LimitEgress}
			if v.State&abi.StateFIN != 0 {
				c.FinSent = 1
			}
			pod, peer := wide(k.Saddr), wide(k.Daddr)
			if v.Flags&abi.FlowReply != 0 {
				c.Direction = abi.LimitIngress
				if v.Flags&abi.FlowFromHost != 0 || isHost(address(peer)) {
					return
				}
			}
			if !counted(abi.WeirLimitKey{Ifindex: ifindex, Direction: uint32(c.Direction)}) {
				return
			}
			err := conns.Update(abi.WeirConnKey{Ifindex: ifindex, Port: k.Sport, PeerPort: k.Dport, Pod: pod, Peer: peer}, c, ebpf.UpdateNoExist)
			if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				errs = append(errs, fmt.Errorf("counting a connection that was open: %w", err))
			}
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// wide is an address as struct conn_key has it.
func wide[A abi.Address](a A) (out [4]uint32) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	full := [16]byte{10: 0xff, 11: 0xff}
	copy(full[16-len(b):], b)
	for i := range out {
		out[i] = binary.NativeEndian.Uint32(full[i*4:])
	}
	return out
}
