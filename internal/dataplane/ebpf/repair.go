// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/kernel"
)

const (
	// checkEvery is half of how long a detached program, or a device or route that was removed
	// without notice, stays so: each second check is about the same things.
	checkEvery = 400 * time.Millisecond
	// settle is how long to wait after a change of the network for others that belong to it.
	settle = 20 * time.Millisecond
	// refreshEvery bounds how long a change is missed whose notice was lost.
	refreshEvery = 10 * time.Second
)

// repairCounts are what the driver did alongside writing tables.
type repairCounts struct {
	repairs map[string]uint64 // by what was repaired
	routes  uint64            // of weir0, changed
	last    time.Time         // of the last repair
}

// repaired counts and reports something that somebody else broke.
func (c *repairCounts) repaired(what string, log *slog.Logger, msg string, args ...any) {
	if c.repairs == nil {
		c.repairs = map[string]uint64{}
	}
	c.repairs[what]++
	c.last = time.Now()
	log.Warn(msg, args...)
}

// Run keeps the kernel as the last state wants it until ctx ends: programs that somebody detached,
// devices and routes of ours that somebody removed are put back within a second, and new uplinks
// get their programs. Changed routes and links of others make flows look for their way again.
func (d *Driver) Run(ctx context.Context) error {
	n, err := kernel.Subscribe()
	if err != nil {
		return err
	}
	defer func() { n.Close() }()
	var sweep sync.WaitGroup
	defer sweep.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.mu.Lock()
	d.endRun = stop
	d.mu.Unlock()
	sweep.Go(func() { d.collectGarbage(ctx) })
	sweep.Go(func() { d.sweepConnections(ctx) })
	sweep.Go(func() { d.sweepNames(ctx) })
	sweep.Go(func() { d.readNames(ctx) })
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	soon := time.NewTimer(0)
	defer soon.Stop()
	refreshed := time.Time{}
	links := true // look for uplinks at the next check
	turn := 0
	for {
		lost, noticed := false, false
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-n.Links:
			if lost = !ok; ok && d.noteLink(u) {
				links = true
				soon.Reset(settle)
			}
			if !lost {
				continue
			}
		case u, ok := <-n.Routes:
			if lost = !ok; ok && d.noteRoute(u) {
				soon.Reset(settle)
			}
			if !lost {
				continue
			}
		case <-soon.C:
			noticed = true
		case <-tick.C:
		}
		if lost {
			d.log.Warn("changes of links or routes were lost; looking at everything")
			n.Close()
			if n, err = kernel.Subscribe(); err != nil {
				n = &kernel.Notices{}
				return err
			}
			d.Invalidate()
			links = true
		}
		if time.Since(refreshed) > refreshEvery {
			links = true
		}
		if links {
			refreshed = time.Now()
		}
		turn ^= 1
		d.lookAt(look{links: links, devices: links || noticed || turn == 0, hooks: func(h attach.Hook) bool { return int(h.At)%2 == turn }})
		links = false
	}
}

// noteLink reports whether a link's change concerns the driver at once. Flows remember the
// interface that they leave by, so a change of an uplink makes them look again.
func (d *Driver) noteLink(u netlink.LinkUpdate) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return false
	}
	attrs := u.Link.Attrs()
	_, known := d.uplinks[attrs.Index]
	ours := attrs.Name == hostdev.HostDevice || attrs.Name == hostdev.HostPeer || attrs.Name == hostdev.TunnelDevice
	uplink := known || d.isUplink(attrs.Name)
	if uplink && !ours {
		d.bump = true
	}
	return ours || uplink
}

// noteRoute reports whether a route's change concerns the driver at once: one of its own is gone,
// or flows may have to move.
func (d *Driver) noteRoute(u netlink.RouteUpdate) bool {
	if u.Table == unix.RT_TABLE_LOCAL {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || u.Family == netlink.FAMILY_V6 && d.six == nil {
		return false
	}
	if u.Protocol == hostdev.RouteProtocol {
		return u.Type == unix.RTM_DELROUTE
	}
	if d.programs.Has(attach.Site{Ifindex: u.LinkIndex, Hook: attach.FromWorkload}) {
		return false // the host's route to a pod of this node: flows to pods follow the tables
	}
	d.bump = true
	return true
}

// Invalidate makes every flow evaluate itself and look for its way again.
func (d *Driver) Invalidate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bump = true
}

// look is what a check is about.
type look struct {
	links   bool                   // new uplinks
	devices bool                   // our devices and their routes
	hooks   func(attach.Hook) bool // whose programs
}

// check compares the kernel with what should be there alongside the tables, and repairs.
func (d *Driver) check(links bool) {
	d.lookAt(look{links: links, devices: true, hooks: func(attach.Hook) bool { return true }})
}

func (d *Driver) lookAt(l look) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.handingOver || d.loading != nil {
		return
	}
	if l.links {
		if err := d.findUplinks(d.state); err != nil {
			d.log.Error("looking for uplinks", "error", err)
		}
	}
	if l.devices {
		d.checkDevices()
		d.checkPins()
	}
	d.checkPrograms(l.hooks)
	routes := d.count.routes
	before := len(d.problems)
	if err := d.reconcile(l.devices || before > 0); err != nil && before == 0 && !errors.Is(err, dataplane.ErrUnfinished) {
		d.log.Error("keeping the data plane as it should be", "error", err)
	}
	if n := d.count.routes - routes; n > 0 {
		d.count.repaired("route", d.log, "put routes of pools back", "device", hostdev.HostDevice, "routes", n)
	}
	d.settle()
}

// quiet is how long no interface must have been attached before those that began quickly get their
// links: each link holds up everything else that changes interfaces, for a grace period of RCU.
const quiet = 5 * time.Second

// settle gives one program that is attached by a filter its link, when nothing else is going on.
// One at a check: a pod that starts just then waits for that one only.
func (d *Driver) settle() {
	if err := d.programs.Backstop(time.Since(d.attached) >= backstopAfter); err != nil {
		d.attached = time.Now() // not at once again
		d.log.Warn("a pod's interface is without filters behind its links", "error", err)
	}
	if time.Since(d.attached) < quiet {
		return
	}
	if err := d.programs.Settle(); err != nil {
		d.attached = time.Now() // not at once again
		d.log.Warn("a program stays attached by a filter", "error", err)
	}
}

// checkDevices notices when one of our devices was removed. reconcile makes it again.
func (d *Driver) checkDevices() {
	for _, known := range []struct {
		name string
		dev  **hostdev.Device
	}{{hostdev.HostDevice, &d.devices.host}, {hostdev.TunnelDevice, &d.devices.tunnel}} {
		if *known.dev == nil {
			continue
		}
		now, err := hostdev.FindDevice(known.name)
		if err == nil && now != nil && now.Index == (*known.dev).Index {
			continue
		}
		d.count.repaired("device", d.log, "a device of ours was removed; making it again", "device", known.name)
		*known.dev = nil
	}
}

// checkPrograms attaches again what somebody detached.
func (d *Driver) checkPrograms(some func(attach.Hook) bool) {
	broken := d.programs.BrokenAt(some)
	if len(broken) == 0 {
		return
	}
	wanted := d.sites()
	for s, reason := range broken {
		name, ok := wanted.names[s]
		if !ok || s.Ifindex != 0 && !exists(s.Ifindex) {
			// The interface is gone, and its program with it.
			if err := d.programs.Drop(s); err != nil {
				d.log.Debug("letting go of a link whose interface is gone", "site", s.String(), "error", err)
			}
			continue
		}
		if err := d.programs.Renew(s); err != nil {
			d.log.Error("a program was detached and cannot be attached again", "interface", name, "hook", s.Hook.Name, "reason", reason, "error", err)
			continue
		}
		d.count.repaired("program", d.log, "a program was detached; attached it again", "interface", name, "hook", s.Hook.Name, "reason", reason)
	}
}

func exists(ifindex int) bool {
	_, err := netlink.LinkByIndex(ifindex)
	return err == nil
}
