// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
)

// untracked are what a driver has of them.
type untracked struct {
	four, six *object.Untracked
	failed    map[int]noXDP // by interface index
}

// noXDP says why XDP cannot be had on an interface.
type noXDP struct {
	err  error
	when time.Time
}

// xdpEvery is how long an interface that refused XDP is left alone.
const xdpEvery = 10 * time.Second

// due reports whether XDP is worth a try on an interface.
func (g *untracked) due(ifindex int) bool {
	f, failed := g.failed[ifindex]
	return !failed || time.Since(f.when) > xdpEvery
}

// tried notes how it went.
func (g *untracked) tried(ifindex int, name string, err error, log *slog.Logger) {
	before, failed := g.failed[ifindex]
	if err == nil {
		delete(g.failed, ifindex)
		return
	}
	if !failed || before.err.Error() != err.Error() {
		log.Warn("no XDP on an uplink: what doNotTrack policy denies is dropped later, at more cost", "interface", name, "error", err)
	}
	if g.failed == nil {
		g.failed = map[int]noXDP{}
	}
	g.failed[ifindex] = noXDP{err, time.Now()}
}

func (g *untracked) close() {
	g.four.Close()
	g.six.Close()
	*g = untracked{}
}

// ensureUntracked loads and offers what is needed for a state that evaluates packets by themselves,
// and makes IPv4's call IPv6's.
func (d *Driver) ensureUntracked() error {
	if !d.state.EvaluatesUntracked() && !d.tables.EvaluatesUntracked() {
		return nil
	}
	if d.untracked.four == nil {
		g, err := object.LoadUntracked(d.loaded)
		if err != nil {
			return err
		}
		d.useUntracked(g)
	}
	if d.untracked.six != nil && d.untracked.six.Of != d.six {
		d.untracked.six.Close()
		d.untracked.six = nil
	}
	// What fails for IPv6 does not keep IPv4's from being in force.
	var errs []error
	if d.six != nil && d.untracked.six == nil {
		g, err := object.LoadUntracked(d.six)
		if err == nil {
			d.untracked.six = g
		}
		errs = append(errs, err)
	}
	if six := d.untracked.six; six != nil {
		errs = append(errs, d.loaded.CallUntracked(six.Arrive, six.Each))
	}
	if g := d.untracked.four; g.Arrive != nil && d.programs.Prog[attach.Arrive.Name] == nil {
		errs = append(errs, d.programs.Offer("", map[string]*ebpf.Program{object.ArriveProgram: g.Arrive}))
	}
	return errors.Join(append(errs, d.programs.Use(attach.ToUplink, d.untracked.four.Each))...)
}

// useUntracked makes programs of IPv4 those that are offered.
func (d *Driver) useUntracked(g *object.Untracked) {
	d.untracked.four = g
	if g.ArriveErr != nil {
		d.log.Warn("this kernel does not take the program for XDP: what doNotTrack policy denies is dropped later, at more cost", "error", g.ArriveErr)
	}
}

// removeUntracked takes everything back once nothing asks for it, also what an earlier run left.
func (d *Driver) removeUntracked() error {
	if d.state.EvaluatesUntracked() || d.tables.EvaluatesUntracked() || d.untracked.four == nil && d.started {
		return nil
	}
	err := errors.Join(d.programs.Withdraw([]attach.Hook{attach.Arrive}), d.programs.Use(attach.ToUplink, d.loaded.Programs["weir_to_uplink"]), d.loaded.CallUntracked(nil, nil))
	if err == nil {
		d.untracked.close()
	}
	return err
}

// arrival is Status.Arrival.
func (d *Driver) arrival() map[string]string {
	if d.untracked.four == nil {
		return nil
	}
	out := map[string]string{}
	for index, name := range d.uplinks {
		switch f, failed := d.untracked.failed[index]; {
		case d.untracked.four.ArriveErr != nil:
			out[name] = d.untracked.four.ArriveErr.Error()
		case failed:
			out[name] = f.err.Error()
		case d.programs.Has(attach.Site{Ifindex: index, Hook: attach.Arrive}):
			out[name] = xdpMode(index)
		}
	}
	return out
}

// xdpMode is how the program of an interface runs; dataplane.XDPNative where the kernel does not
// say.
func xdpMode(ifindex int) string {
	const attachedGeneric = 2 // XDP_ATTACHED_SKB (linux/if_link.h)
	l, err := netlink.LinkByIndex(ifindex)
	if err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.AttachMode == attachedGeneric {
		return dataplane.XDPGeneric
	}
	return dataplane.XDPNative
}
