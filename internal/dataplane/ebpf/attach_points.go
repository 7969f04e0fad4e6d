package ebpf

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// attachAtOnce bounds how long a state waits for the places to which programs are being attached:
// 25 ms each.
const attachAtOnce = 8

// sites returns where programs belong, with the interfaces' names.
func (d *Driver) sites() map[site]string {
	out := map[site]string{}
	both := func(index int, name string, in, eg hook) {
		out[site{index, in}], out[site{index, eg}] = name, name
	}
	for _, a := range d.state.Addrs {
		if a.Kind != nodestate.AddrEndpoint {
			continue
		}
		if index := d.ifindex(a); index != 0 {
			both(index, a.Interface, fromWorkload, toWorkload)
		}
	}
	for index, name := range d.uplinks {
		if _, pod := out[site{index, fromWorkload}]; !pod {
			both(index, name, fromUplink, toUplink)
			if d.programs.prog[arrive.name] != nil {
				out[site{index, arrive}] = name
			}
		}
	}
	if d.devices.host != nil {
		out[site{d.devices.host.index, toUplink}] = hostDevice
	}
	if d.devices.tunnel != nil {
		out[site{d.devices.tunnel.index, fromTunnel}] = tunnelDevice
	}
	if d.opts.Cgroup != "" {
		for _, h := range cgroupHooks {
			out[site{0, h}] = "cgroup"
		}
		if d.six != nil {
			for _, h := range cgroupHooks6 {
				out[site{0, h}] = "cgroup"
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
	wanted := map[site]bool{}
	clear(d.absent)
	room := cmp.Or(d.opts.AttachAtOnce, attachAtOnce)
	sites := d.sites()
	order := slices.SortedFunc(maps.Keys(sites), func(a, b site) int { return cmp.Compare(a.rank(), b.rank()) })
	for _, s := range order {
		name := sites[s]
		wanted[s] = true
		if d.programs.has(s) || s.hook == arrive && !d.untracked.due(s.ifindex) {
			continue
		}
		if room <= 0 && s.ifindex != 0 && d.importing != nil && d.opts.TakeOver == TakeAll {
			return append(errs, dataplane.ErrUnfinished)
		}
		// A new clsact qdisc makes a device drop what it sends for a grace period of RCU: where a
		// pod is in the middle of something, and another data plane goes on meanwhile, its link is
		// waited for.
		quick := d.started || d.importing != nil && d.opts.TakeOver == TakeTranslated
		err := d.programs.ensure(s, quick && (s.hook == fromWorkload || s.hook == toWorkload))
		if err == nil && s.ifindex != 0 {
			room--
		}
		switch {
		case errors.Is(err, errAbsent):
			d.absent[s] = name
		case s.hook == arrive:
			d.untracked.tried(s.ifindex, name, err, d.log)
		case err != nil:
			errs = append(errs, &dataplane.KeyError{Table: "programs", Key: name + " " + s.hook.name, Err: err})
		case s.ifindex != 0 && (s.hook == fromWorkload || s.hook == fromUplink):
			d.relax(s.ifindex, name)
			d.attached = time.Now()
		}
	}
	if err := d.programs.retain(wanted, strays); err != nil {
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
		d.log.Info("reverse-path check was strict and is loose now: routes to pods lead to "+hostDevice, "interface", name)
	}
}
