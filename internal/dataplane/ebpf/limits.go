// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/podlimits"
	"github.com/weir-net/weir/internal/dataplane/shape"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// limits are what a driver has of limited pods.
type limits struct {
	queues   *shape.Queues
	programs *object.Programs // nil = none is needed
	six      *object.Programs // of IPv6
	sixOf    *object.Collection
	want     podlimits.Limits
	used     bool              // an interface has one of the programs
	others   map[string]string // queues of uplinks that somebody chose
	told     bool              // that there are no departure times
	writing  sync.Mutex        // held while limits are written
	adopt    bool              // connections are open that began before they were counted
	wake     chan struct{}     // they are to be counted now
}

func (l *limits) close() {
	l.six.Close()
	l.programs.Close()
	l.six, l.sixOf, l.programs = nil, nil, nil
}

func (l *limits) write(to *object.Collection) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	begins, err := podlimits.Write(to, l.want)
	if begins {
		l.adoptSoon()
	}
	return err
}

// adoptSoon has connections counted that are open.
func (l *limits) adoptSoon() {
	l.adopt = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *limits) remove(from *object.Collection) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return podlimits.Remove(from, l.want)
}

// sweepConnections counts what pods have open until ctx ends.
func (d *Driver) sweepConnections(ctx context.Context) {
	tick := time.NewTicker(podlimits.SweepEvery)
	defer tick.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.limits.wake:
		}
		used, err := d.sweepOnce(last)
		if err != nil {
			d.log.Error("connections of pods that are over still count", "error", err)
		}
		last = used
	}
}

// sweepOnce reports whether a pod is limited; with last it looks once more when none is.
func (d *Driver) sweepOnce(last bool) (used bool, _ error) {
	d.mu.Lock()
	used = d.limits.used
	if !used && !last {
		d.mu.Unlock()
		return used, nil
	}
	s, err := podlimits.NewSweep(d.loaded, d.six)
	adopt, addrs := d.limits.adopt, d.state.Addrs
	if err == nil {
		d.limits.adopt = false
	}
	d.mu.Unlock()
	if err != nil {
		return used, err
	}
	defer s.Close()
	d.limits.writing.Lock()
	defer d.limits.writing.Unlock()
	if adopt {
		err = s.Adopt(func(a netip.Addr) bool { return addrs[a].Kind == nodestate.AddrHost })
	}
	return used, errors.Join(err, s.Run())
}

// ensureLimits makes the queues that pods' packets wait in, and what they are counted by, before
// programs are attached, and says which interfaces have the programs that ask for them.
func (d *Driver) ensureLimits() []error {
	errs := d.limits.queues.Add(d.state.QoS)
	departures := podlimits.Departures{}
	own := map[attach.Site]string{}
	pairs := map[uint32]uint32{}
	d.limits.want = podlimits.Limits{}
	for name, q := range d.state.QoS {
		index := q.IfIndex
		if l, err := netlink.LinkByName(name); index == 0 && err == nil {
			index = l.Attrs().Index
		}
		if index == 0 { // the pod is being removed, or its interface comes with the next state
			continue
		}
		d.limits.want.Add(index, q.QoS)
		if q.LimitsSent() {
			own[attach.Site{Ifindex: index, Hook: attach.FromWorkload}] = "from_limited"
		}
		if q.LimitsGot() {
			own[attach.Site{Ifindex: index, Hook: attach.ToWorkload}] = "to_limited"
		}
		if dev, ok := d.limits.queues.Devices()[name]; ok && q.Egress.Bandwidth > 0 {
			pairs[uint32(dev.Pod)], pairs[uint32(dev.Back)] = uint32(dev.Queue), uint32(dev.Pod)
			if dev.Departure.Rate > 0 {
				departures[uint32(dev.Pod)] = dev.Departure
			}
		}
	}
	for index := range d.uplinks {
		// Where each packet is evaluated by itself another program is there.
		if dscp := d.state.HostEndpointAt(index, netip.IPv4Unspecified()).DSCP; dscp > 0 && !d.state.EvaluatesUntracked() {
			d.limits.want.Add(index, model.QoS{DSCP: dscp})
			own[attach.Site{Ifindex: index, Hook: attach.ToUplink}] = "to_uplink_marked"
		}
	}
	d.limits.used = len(own) > 0
	fail := func(err error) []error {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "queues", Key: "programs", Err: err})
		}
		return errs
	}
	if err := d.loadLimits(); err != nil {
		return fail(err)
	}
	if err := errors.Join(d.ensureDepartures(departures), setPairs(d.loaded.Maps[object.Queues], pairs), d.limits.write(d.loaded)); err != nil {
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

// ensureDepartures makes packets wait by departure times: at the uplinks where nobody has chosen
// other queues for them, and nothing encrypts what goes there.
func (d *Driver) ensureDepartures(want podlimits.Departures) error {
	links := len(want) > 0 && !d.state.WireGuard4.On() && !d.state.WireGuard6.On()
	var errs []error
	if links {
		others, err := d.limits.queues.Links(d.uplinks)
		errs = append(errs, err)
		if links = err == nil && len(others) == 0; len(others) > 0 && !maps.Equal(others, d.limits.others) {
			d.log.Warn("uplinks have queues that somebody chose: what pods with a bandwidth send waits before it is evaluated", "uplinks", others)
		}
		d.limits.others = others
	}
	if err := d.limits.queues.WithoutFQ(); err != nil && !d.limits.told {
		d.limits.told = true
		d.log.Warn("no departure times: pods are held to their bandwidth by queues with a rate", "error", err)
	}
	return errors.Join(append(errs, podlimits.WriteDepartures(d.loaded, want, links))...)
}

// hasDepartures reports whether the kernel keeps a time of departure that a program sets where a
// packet comes in (5.18).
func hasDepartures() bool {
	return features.HaveProgramHelper(ebpf.SchedCLS, asm.FnSkbSetTstamp) == nil
}

// loadLimits loads the programs that are wanted, and makes IPv4's call IPv6's.
func (d *Driver) loadLimits() error {
	if !d.limits.used {
		return nil
	}
	if d.limits.programs == nil {
		p, err := object.LoadLimited(d.loaded)
		if err != nil {
			return err
		}
		d.limits.programs = p
		if err := d.programs.Offer("", p.Programs); err != nil {
			return err
		}
	}
	if d.limits.sixOf != d.six {
		d.limits.six.Close()
		d.limits.six, d.limits.sixOf = nil, nil
	}
	if d.six != nil && d.limits.six == nil {
		p, err := object.LoadLimited(d.six)
		if err != nil {
			return err
		}
		d.limits.six, d.limits.sixOf = p, d.six
	}
	return d.loaded.CallLimited(d.limits.six)
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

// removeLimits takes away queues that nothing leads to any more, and what nothing asks for.
func (d *Driver) removeLimits() []error {
	errs := d.limits.queues.Remove(d.state.QoS)
	if !d.limits.queues.Departing() {
		if err := d.limits.queues.DropLinks(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := d.limits.remove(d.loaded); err != nil {
		errs = append(errs, &dataplane.KeyError{Table: "queues", Key: "limits", Err: err})
	}
	if len(d.limits.queues.Devices()) == 0 && !d.limits.used && d.limits.programs != nil && len(errs) == 0 {
		if err := errors.Join(d.programs.Withdraw([]attach.Hook{attach.FromQueue}), d.loaded.CallLimited(nil)); err != nil {
			return append(errs, err)
		}
		d.limits.close()
	}
	return errs
}
