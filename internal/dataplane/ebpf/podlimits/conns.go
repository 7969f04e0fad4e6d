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
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
)

// SweepEvery is the time between two rounds of Sweep.
const SweepEvery = 5 * time.Second

// young is how long a connection counts without a flow: it is entered before the flow is.
const young = 3 * time.Second

// Sweep is a round over the connections that programs count: those without a flow any more are
// over, be it that they timed out or that their pod is gone. What it takes out is told to programs
// by limit.settled, which only user space writes. Where nothing began and ended meanwhile, that
// makes the count what the table holds: so what a killed agent or a lost race left wrong is
// repaired, in either direction.
type Sweep struct {
	limits, states, conns *ebpf.Map
	flows                 map[bool][]*ebpf.Map // by whether of IPv6
}

// NewSweep takes the maps, while nobody closes them; six is nil where the node carries no IPv6.
func NewSweep(four, six *object.Collection) (*Sweep, error) {
	s := &Sweep{flows: map[bool][]*ebpf.Map{}}
	var errs []error
	clone := func(l *object.Collection, name string) *ebpf.Map {
		m, err := l.Maps[name].Clone()
		if err != nil {
			errs = append(errs, err)
		}
		return m
	}
	s.limits, s.states, s.conns = clone(four, object.Limits), clone(four, object.LimitStates), clone(four, object.Conns)
	for _, l := range []*object.Collection{four, six} {
		if l != nil {
			s.flows[l == six] = []*ebpf.Map{clone(l, "weir_flows"), clone(l, "weir_flows_new")}
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.Close()
		return nil, fmt.Errorf("opening the maps of connections: %w", err)
	}
	return s, nil
}

// Close lets the maps go.
func (s *Sweep) Close() {
	for _, m := range append([]*ebpf.Map{s.limits, s.states, s.conns}, append(s.flows[false], s.flows[true]...)...) {
		if m != nil {
			m.Close()
		}
	}
}

// Run is the round. Limits may not be written meanwhile.
func (s *Sweep) Run() error {
	before, err := s.open()
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	left, gone := map[abi.WeirLimitKey]uint32{}, map[abi.WeirLimitKey]uint32{}
	var failed []error
	err = flowtable.Walk(s.conns, func(key, value []byte) {
		var k abi.WeirConnKey
		var c abi.WeirConn
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)), value)
		of := abi.WeirLimitKey{Ifindex: k.Ifindex, Direction: uint32(c.Direction)}
		_, counted := before[of]
		has := true
		if counted && time.Duration(now.Nano()-int64(c.Begun)) > young {
			var err error
			if has, err = s.hasFlow(k); err != nil {
				failed = append(failed, err)
			}
		}
		switch {
		case counted && has:
			if c.Ended == 0 {
				left[of]++
			}
		case s.conns.Delete(&k) == nil && c.Ended == 0:
			gone[of]++
		}
	})
	if err := errors.Join(append(failed, err)...); err != nil {
		return fmt.Errorf("looking for connections that are over: %w", err)
	}
	after, err := s.open()
	if err != nil {
		return err
	}
	return s.settle(before, after, left, gone)
}

// settle tells programs what is over.
func (s *Sweep) settle(before, after, left, gone map[abi.WeirLimitKey]uint32) error {
	limits, err := read(s.limits)
	errs := []error{err}
	for k, v := range limits {
		settled := v.Settled + gone[k]
		if open, ok := after[k]; ok && open == before[k] {
			settled = open - left[k]
		}
		if v.Settled != settled {
			v.Settled = settled
			errs = append(errs, s.limits.Update(k, v, ebpf.UpdateExist))
		}
	}
	return errors.Join(errs...)
}

// open are the counts of programs, by whose they are.
func (s *Sweep) open() (map[abi.WeirLimitKey]uint32, error) {
	limits, err := read(s.limits)
	if err != nil {
		return nil, fmt.Errorf("reading limits: %w", err)
	}
	out := map[abi.WeirLimitKey]uint32{}
	for k, v := range limits {
		if v.Most == 0 {
			continue
		}
		state, err := s.states.LookupBytes(k)
		if err != nil {
			return nil, fmt.Errorf("reading what is open: %w", err)
		}
		if len(state) >= openAt+4 {
			out[k] = binary.NativeEndian.Uint32(state[openAt:])
		}
	}
	return out, nil
}

// openAt is where struct limit_state has the number, behind its lock.
const openAt = 4

// hasFlow reports whether a connection has one, half open or not.
func (s *Sweep) hasFlow(k abi.WeirConnKey) (bool, error) {
	pod, peer := address(k.Pod), address(k.Peer)
	if pod.Is4() {
		return hasFlow(s.flows[false], abi.FlowKey[abi.Ip4]{Saddr: pod.As4(), Daddr: peer.As4(), Sport: k.Port, Dport: k.PeerPort, Proto: unix.IPPROTO_TCP})
	}
	return hasFlow(s.flows[true], abi.FlowKey[abi.Ip6]{Saddr: pod.As16(), Daddr: peer.As16(), Sport: k.Port, Dport: k.PeerPort, Proto: unix.IPPROTO_TCP})
}

func hasFlow[A abi.Address](flows []*ebpf.Map, k abi.FlowKey[A]) (bool, error) {
	for _, m := range flows {
		v, err := m.LookupBytes(&k)
		if err != nil || v != nil {
			return v != nil, err
		}
	}
	return false, nil
}

func address(words [4]uint32) netip.Addr {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[i*4:], w)
	}
	return netip.AddrFrom16(b).Unmap()
}
