// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// nameRest is for how many seconds what is over stays: a program that renews an entry at the moment
// at which it is removed would renew nothing.
const nameRest = 30

// MonotonicSeconds is the clock that programs write into weir_names.
func MonotonicSeconds() (uint32, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint32(t.Sec), err
}

// RemoveNames removes the addresses that pods were told of domain names (weir_names) and that count
// no more, and those of interfaces that are not here; it corrects how many each pod has
// (weir_name_used), and returns how many there are.
func RemoveNames(names, used *ebpf.Map, here map[uint32]bool, now uint32) (int, error) {
	var key abi.WeirNamedKey
	var value abi.WeirNamedValue
	left := map[uint32]uint32{0: 0} // by pod; 0 = all
	var gone []abi.WeirNamedKey
	it := names.Iterate()
	for it.Next(&key, &value) {
		if here[key.Ifindex] && lastUntil(&value)+nameRest >= now {
			left[key.Ifindex]++
			left[0]++
		} else {
			gone = append(gone, key)
		}
	}
	errs := []error{it.Err()}
	for _, k := range gone {
		errs = append(errs, removeKey(names, k))
	}
	var pod, n uint32
	var free []uint32
	it = used.Iterate()
	for it.Next(&pod, &n) {
		if left[pod] == 0 {
			free = append(free, pod)
		} else {
			errs = append(errs, used.Put(pod, left[pod]))
		}
	}
	errs = append(errs, it.Err())
	for _, pod := range free {
		errs = append(errs, removeKey(used, pod))
	}
	return int(left[0]), errors.Join(errs...)
}

// RemoveSaid removes the names that pods asked for (weir_name_said) where they count no more, and
// those of interfaces that are not here.
func RemoveSaid(said *ebpf.Map, here map[uint32]bool, now uint32) error {
	var key abi.WeirNamedKey
	var value abi.WeirNameSaid
	var gone []abi.WeirNamedKey
	it := said.Iterate()
	for it.Next(&key, &value) {
		if !here[key.Ifindex] || value.Until+nameRest < now {
			gone = append(gone, key)
		}
	}
	errs := []error{it.Err()}
	for _, k := range gone {
		errs = append(errs, removeKey(said, k))
	}
	return errors.Join(errs...)
}

// AskedName returns the name that the pod at an interface asked for (weir_name_said), in lower
// case, and that led it to an address; empty = none is known.
func AskedName(said *ebpf.Map, ifindex int, to netip.Addr) string {
	var v abi.WeirNameSaid
	if said.Lookup(abi.WeirNamedKey{Ifindex: uint32(ifindex), Addr: abi.Widen(to)}, &v) != nil || int(v.Len) > len(v.Name) {
		return ""
	}
	return string(v.Name[:v.Len])
}

func removeKey(m *ebpf.Map, key any) error {
	if err := m.Delete(key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func lastUntil(v *abi.WeirNamedValue) (last uint32) {
	for _, s := range v.Slots {
		if s.Pattern != 0 {
			last = max(last, s.Until)
		}
	}
	return last
}

// NamesOf returns the patterns of domain names that led the pod at an interface to an address, as
// far as they count.
func NamesOf(names *ebpf.Map, ifindex int, a netip.Addr) ([]dataplane.NamedBy, error) {
	now, err := MonotonicSeconds()
	if err != nil {
		return nil, err
	}
	var v abi.WeirNamedValue
	err = names.Lookup(abi.WeirNamedKey{Ifindex: uint32(ifindex), Addr: abi.Widen(a)}, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	var out []dataplane.NamedBy
	for _, s := range v.Slots {
		if s.Pattern != 0 && s.Until >= now {
			out = append(out, dataplane.NamedBy{Name: nodestate.NameID(s.Pattern), Left: time.Duration(s.Until-now) * time.Second})
		}
	}
	return out, err
}

// Told returns all that counts of what pods were told of domain names.
func Told(names *ebpf.Map) (out []conntrack.Told, err error) {
	now, err := MonotonicSeconds()
	if err != nil {
		return nil, err
	}
	var key abi.WeirNamedKey
	var value abi.WeirNamedValue
	it := names.Iterate()
	for it.Next(&key, &value) {
		for _, s := range value.Slots {
			if s.Pattern != 0 && s.Until > now {
				out = append(out, conntrack.Told{IfIndex: int(key.Ifindex), Addr: abi.Unwiden(key.Addr), Name: s.Pattern, Left: time.Duration(s.Until-now) * time.Second})
			}
		}
	}
	if err := it.Err(); err != nil {
		return out, fmt.Errorf("reading the addresses of domain names: %w", err)
	}
	return out, nil
}

// Learn has pods know what they were told of domain names, but for addresses of which programs have
// noted something since. How many addresses a pod has RemoveNames finds out.
func Learn(names *ebpf.Map, all []conntrack.Told) error {
	now, err := MonotonicSeconds()
	if err != nil {
		return err
	}
	values := map[abi.WeirNamedKey]*abi.WeirNamedValue{}
	used := map[abi.WeirNamedKey]int{}
	for _, t := range all {
		key := abi.WeirNamedKey{Ifindex: uint32(t.IfIndex), Addr: abi.Widen(t.Addr)}
		if values[key] == nil {
			values[key] = &abi.WeirNamedValue{}
		}
		if n := used[key]; n < len(values[key].Slots) {
			values[key].Slots[n].Pattern, values[key].Slots[n].Until = t.Name, now+uint32(t.Left/time.Second)
			used[key]++
		}
	}
	var errs []error
	for key, value := range values {
		if err := names.Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			errs = append(errs, fmt.Errorf("writing the addresses of domain names: %w", err))
		}
	}
	return errors.Join(errs...)
}
