// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/shape"
)

// limits are what a driver has of pods whose bandwidth is limited.
type limits struct {
	queues   *shape.Queues
	programs *object.Programs // nil = none is needed
}

// ensureLimits makes the queues that pods' packets wait in, before programs are attached, and says
// which interfaces have the program that leads there.
func (d *Driver) ensureLimits() []error {
	errs := d.limits.queues.Add(d.state.QoS)
	own := map[attach.Site]string{}
	pairs := map[uint32]uint32{}
	for name, dev := range d.limits.queues.Devices() {
		if q := d.state.QoS[name]; q.Egress.Bandwidth > 0 {
			pairs[uint32(dev.Pod)], pairs[uint32(dev.Back)] = uint32(dev.Queue), uint32(dev.Pod)
			own[attach.Site{Ifindex: dev.Pod, Hook: attach.FromWorkload}] = "from_limited"
		}
	}
	fail := func(err error) []error {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "queues", Key: "programs", Err: err})
		}
		return errs
	}
	if len(pairs) > 0 && d.limits.programs == nil {
		p, err := object.LoadLimited(d.loaded)
		if err != nil {
			return fail(err)
		}
		d.limits.programs = p
		if err := d.programs.Offer("", p.Programs); err != nil {
			return fail(err)
		}
	}
	if err := setPairs(d.loaded.Maps[object.Queues], pairs); err != nil {
		return fail(err)
	}
	if d.limits.programs == nil {
		return errs
	}
	// Where packets come back is attached before what leads them away.
	for name, dev := range d.limits.queues.Devices() {
		if _, is := pairs[uint32(dev.Back)]; is {
			if err := d.programs.Ensure(attach.Site{Ifindex: dev.Back, Hook: attach.FromQueue}, false); err != nil {
				return fail(fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return fail(d.programs.Give(own))
}

// setPairs makes a map of indexes what it should be.
func setPairs(m *ebpf.Map, want map[uint32]uint32) error {
	var k, v uint32
	var stale []uint32
	have := map[uint32]uint32{}
	for all := m.Iterate(); all.Next(&k, &v); {
		if have[k] = v; want[k] == 0 {
			stale = append(stale, k)
		}
	}
	var errs []error
	for k, v := range want {
		if have[k] != v {
			errs = append(errs, m.Put(k, v))
		}
	}
	for _, k := range stale {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeLimits takes away queues that nothing leads to any more.
func (d *Driver) removeLimits() []error {
	errs := d.limits.queues.Remove(d.state.QoS)
	if len(d.limits.queues.Devices()) == 0 && d.limits.programs != nil && len(errs) == 0 {
		if err := d.programs.Withdraw([]attach.Hook{attach.FromQueue}); err != nil {
			return append(errs, err)
		}
		d.limits.programs.Close()
		d.limits.programs = nil
	}
	return errs
}
