// SPDX-License-Identifier: Apache-2.0

// Package podlimits keeps the maps by which programs hold limited pods to a number of packets and
// of connections, and give what they send out of the cluster a DSCP. What user space wants and what
// packets use up are two maps: a change of a limit begins nothing anew. Limits come before the
// programs that ask for them are attached, and go after these.
package podlimits

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/model"
)

// Limits are what the maps should hold.
type Limits map[abi.WeirLimitKey]abi.WeirLimit

// Add wants the limits of the pod at an interface.
func (l Limits) Add(ifindex int, q model.QoS) {
	for direction, of := range map[uint32]model.Limits{abi.LimitIngress: q.Ingress, abi.LimitEgress: q.Egress} {
		v := abi.WeirLimit{Most: of.Connections}
		if of.PacketRate > 0 {
			v.Interval = uint64(time.Second) / uint64(of.PacketRate)
			v.Burst = v.Interval * uint64(of.PacketsAtOnce())
		}
		if direction == abi.LimitEgress {
			v.Dscp = uint32(q.DSCP)
		}
		if v != (abi.WeirLimit{}) {
			l[abi.WeirLimitKey{Ifindex: uint32(ifindex), Direction: direction}] = v
		}
	}
}

// Write adds and changes what differs; what is not wanted stays until Remove. begins reports
// whether connections are counted that were not.
func Write(l *object.Collection, want Limits) (begins bool, _ error) {
	have, err := read(l.Maps[object.Limits])
	if err != nil {
		return false, err
	}
	states := l.Maps[object.LimitStates]
	var errs []error
	for k, v := range want {
		// The size is the kernel's: a value has a lock, which user space leaves alone.
		err := states.Update(k, make([]byte, states.ValueSize()), ebpf.UpdateNoExist)
		if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			errs = append(errs, err)
		}
		v.Settled = have[k].Settled
		begins = begins || v.Most > 0 && have[k].Most == 0
		if is, ok := have[k]; !ok || is != v {
			errs = append(errs, l.Maps[object.Limits].Put(k, v))
		}
	}
	return begins, errors.Join(errs...)
}

// Remove takes away what is not wanted.
func Remove(l *object.Collection, want Limits) error {
	have, err := read(l.Maps[object.Limits])
	errs := []error{err}
	for k := range have {
		if _, ok := want[k]; !ok {
			errs = append(errs, remove(l.Maps[object.Limits], k), remove(l.Maps[object.LimitStates], k))
		}
	}
	return errors.Join(errs...)
}

func read(m *ebpf.Map) (Limits, error) {
	out := Limits{}
	var k abi.WeirLimitKey
	var v abi.WeirLimit
	all := m.Iterate()
	for all.Next(&k, &v) {
		out[k] = v
	}
	return out, all.Err()
}

func remove(m *ebpf.Map, k abi.WeirLimitKey) error {
	if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}
