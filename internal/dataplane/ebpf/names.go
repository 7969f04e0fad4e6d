// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sleep"
)

const (
	nameSweep = 30 * time.Second
	// nameRest is for how long what is over stays: a program that renews an entry at the moment at
	// which it is removed would renew nothing.
	nameRest = 30
)

// sweepNames removes, until ctx ends, the addresses that pods were told of names and that count no
// more, and corrects how many each pod has.
func (d *Driver) sweepNames(ctx context.Context) {
	for sleep.For(ctx, nameSweep) == nil {
		now, err := monotonicSeconds()
		if err == nil {
			err = d.removeNames(now)
		}
		if err != nil {
			d.log.Warn("addresses of domain names that count no more stay in their table", "error", err)
		}
	}
}

// monotonicSeconds is the clock that programs write into weir_names.
func monotonicSeconds() (uint32, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint32(t.Sec), err
}

// removeNames does one round.
func (d *Driver) removeNames(now uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return nil
	}
	here := map[uint32]bool{}
	for _, a := range d.state.Addrs {
		if a.Kind == nodestate.AddrEndpoint {
			here[uint32(a.IfIndex)] = true
		}
	}
	names, used := d.loaded.Maps["weir_names"], d.loaded.Maps["weir_name_used"]
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
		if err := names.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	var pod, n uint32
	var free []uint32
	it = used.Iterate()
	for it.Next(&pod, &n) {
		if left[pod] == 0 {
			free = append(free, pod)
		} else if err := used.Put(pod, left[pod]); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, it.Err())
	for _, pod := range free {
		if err := used.Delete(pod); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	d.loaded.Swept = swept(d.loaded.Swept, "weir_names", int(left[0]))
	return errors.Join(errs...)
}

func swept(to map[string]int, name string, n int) map[string]int {
	if to == nil {
		to = map[string]int{}
	}
	to[name] = n
	return to
}

func lastUntil(v *abi.WeirNamedValue) (last uint32) {
	for _, s := range v.Slots {
		if s.Pattern != 0 {
			last = max(last, s.Until)
		}
	}
	return last
}

// Names implements dataplane.Reporter.
func (d *Driver) Names() (map[string]uint64, error) {
	return counters.Names(d.loaded.Maps["weir_name_counts"])
}

// NamesOf returns the patterns of domain names that led the pod at an interface to an address, as
// far as they count, with for how long they do.
func (d *Driver) NamesOf(ifindex int, a netip.Addr) ([]dataplane.NamedBy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := monotonicSeconds()
	if err != nil {
		return nil, err
	}
	var v abi.WeirNamedValue
	err = d.loaded.Maps["weir_names"].Lookup(abi.WeirNamedKey{Ifindex: uint32(ifindex), Addr: abi.Widen(a)}, &v)
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
