// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// attachAtOnce bounds how long a state waits for the places to which programs are being attached:
// 25 ms each.
const attachAtOnce = 8

// sites returns where programs belong, with the interfaces' names.
func (d *Driver) sites() map[attach.Site]string {
	out := map[attach.Site]string{}
	both := func(index int, name string, in, eg attach.Hook) {
		out[attach.Site{Ifindex: index, Hook: in}], out[attach.Site{Ifindex: index, Hook: eg}] = name, name
	}
	for _, a := range d.state.Addrs {
		if a.Kind != nodestate.AddrEndpoint {
			continue
		}
		if index := d.ifindex(a); index != 0 {
			both(index, a.Interface, attach.FromWorkload, attach.ToWorkload)
		}
	}
	for index, name := range d.uplinks {
		if _, pod := out[attach.Site{Ifindex: index, Hook: attach.FromWorkload}]; !pod {
			both(index, name, attach.FromUplink, attach.ToUplink)
			if d.programs.Prog[attach.Arrive.Name] != nil {
				out[attach.Site{Ifindex: index, Hook: attach.Arrive}] = name
			}
		}
	}
	if d.devices.host != nil {
		out[attach.Site{Ifindex: d.devices.host.Index, Hook: attach.ToUplink}] = hostdev.HostDevice
	}
	if d.devices.tunnel != nil {
		out[attach.Site{Ifindex: d.devices.tunnel.Index, Hook: attach.FromTunnel}] = hostdev.TunnelDevice
	}
	if d.opts.Cgroup != "" {
		for _, h := range attach.CgroupHooks {
			out[attach.Site{Ifindex: 0, Hook: h}] = "cgroup"
		}
		if d.six != nil {
			for _, h := range attach.CgroupHooks6 {
				out[attach.Site{Ifindex: 0, Hook: h}] = "cgroup"
			}
		}
	}
	return out
}

// attachAll attaches what is wanted and detaches what is not, with strays also what nobody knows
// of. An interface that is gone is no error: its pod is being removed, or its state comes with the
// next one.
func (d *Driver) attachAll(strays bool) []error {
	var errs []error
	wanted := map[attach.Site]bool{}
	clear(d.absent)
	room := cmp.Or(d.opts.AttachAtOnce, attachAtOnce)
	sites := d.sites()
	order := slices.SortedFunc(maps.Keys(sites), func(a, b attach.Site) int { return cmp.Compare(a.Rank(), b.Rank()) })
	for _, s := range order {
		name := sites[s]
		wanted[s] = true
		if d.programs.Has(s) || s.Hook == attach.Arrive && !d.untracked.due(s.Ifindex) {
			continue
		}
		if room <= 0 && s.Ifindex != 0 && d.importing != nil && d.opts.Import == flowhandover.ImportAll {
			return append(errs, dataplane.ErrUnfinished)
		}
		// A new clsact qdisc makes a device drop what it sends for a grace period of RCU: where a
		// pod is in the middle of something, and another data plane goes on meanwhile, its link is
		// waited for.
		quick := d.started || d.importing != nil && d.opts.Import == flowhandover.ImportTranslated
		err := d.programs.Ensure(s, quick && (s.Hook == attach.FromWorkload || s.Hook == attach.ToWorkload))
		if err == nil && s.Ifindex != 0 {
			room--
		}
		switch {
		case errors.Is(err, attach.ErrAbsent):
			d.absent[s] = name
		case s.Hook == attach.Arrive:
			d.untracked.tried(s.Ifindex, name, err, d.log)
		case err != nil:
			errs = append(errs, &dataplane.KeyError{Table: "programs", Key: name + " " + s.Hook.Name, Err: err})
		case s.Ifindex != 0 && (s.Hook == attach.FromWorkload || s.Hook == attach.FromUplink):
			d.relax(s.Ifindex, name)
			d.attached = time.Now()
		}
	}
	if err := d.programs.Retain(wanted, strays); err != nil {
		errs = append(errs, &dataplane.KeyError{Table: "programs", Key: "detach", Err: err})
	}
	return errs
}

// relax lets packets of pods, and answers to the node's own packets to pods, through the kernel's
// reverse-path check: the route to a pod's address leads to weir0, whichever interface its packets
// come from, so the strict check would drop them all. The programs check sources themselves.
func (d *Driver) relax(ifindex int, name string) {
	if name == "" {
		l, err := netlink.LinkByIndex(ifindex)
		if err != nil {
			return
		}
		name = l.Attrs().Name
	}
	changed, err := kernel.LooseReversePath(name)
	if err != nil {
		d.log.Warn("could not relax the reverse-path check; packets of pods may be dropped when it is strict", "interface", name, "error", err)
	}
	if changed {
		d.log.Info("reverse-path check was strict and is loose now: routes to pods lead to "+hostdev.HostDevice, "interface", name)
	}
}
