// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"regexp"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/dataplane/shape"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// attachAtOnce bounds how long a state waits for the places to which programs are being attached:
// 25 ms each.
const attachAtOnce = 8

// siteList is where programs belong, with the interfaces' names, and what it follows from.
// Apply forgets it when endpoints change.
type siteList struct {
	uplinks      map[int]string
	host, tunnel int
	six, arrive  bool

	names map[attach.Site]string
	order []attach.Site // as they are attached
}

// sites returns where programs belong. It is asked for a few times a second, mostly with nothing
// that has changed.
func (d *Driver) sites() *siteList {
	now := &siteList{uplinks: d.uplinks, host: indexOf(d.devices.host), tunnel: indexOf(d.devices.tunnel),
		six: d.six != nil, arrive: d.programs.Prog[attach.Arrive.Name] != nil}
	if was := d.siteList; was != nil && was.host == now.host && was.tunnel == now.tunnel && was.six == now.six &&
		was.arrive == now.arrive && maps.Equal(was.uplinks, now.uplinks) {
		return was
	}
	var lasting bool
	now.names, lasting = d.findSites()
	now.order = slices.SortedFunc(maps.Keys(now.names), func(a, b attach.Site) int { return cmp.Compare(a.Rank(), b.Rank()) })
	d.siteList = nil
	if lasting {
		d.siteList = now
	}
	return now
}

// findSites also reports whether they stay while what they follow from does: an interface that is
// looked for by its name may be another one the next time.
func (d *Driver) findSites() (out map[attach.Site]string, lasting bool) {
	out, lasting = map[attach.Site]string{}, true
	both := func(index int, name string, in, eg attach.Hook) {
		out[attach.Site{Ifindex: index, Hook: in}], out[attach.Site{Ifindex: index, Hook: eg}] = name, name
	}
	for _, a := range d.state.Addrs {
		if a.Kind != nodestate.AddrEndpoint {
			continue
		}
		lasting = lasting && a.IfIndex != 0
		if index := d.ifindex(a); index != 0 {
			both(index, a.Interface, attach.FromWorkload, attach.ToWorkload)
		}
	}
	for index, name := range d.state.Held {
		both(index, name, attach.FromWorkload, attach.ToWorkload)
	}
	for index, name := range d.uplinks {
		if _, pod := out[attach.Site{Ifindex: index, Hook: attach.FromWorkload}]; !pod {
			both(index, name, attach.FromUplink, attach.ToUplink)
			if d.programs.Prog[attach.Arrive.Name] != nil {
				out[attach.Site{Ifindex: index, Hook: attach.Arrive}] = name
			}
		}
	}
	for name, dev := range d.limits.queues.Devices() {
		if d.state.QoS[name].Egress.Bandwidth > 0 && d.limits.programs != nil {
			out[attach.Site{Ifindex: dev.Back, Hook: attach.FromQueue}] = name
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
	return out, lasting
}

// attachedAt says where programs were when all of them were attached, and nothing else was.
type attachedAt struct {
	sites   *siteList
	changes int // of the attachments, until then
}

// attachAll attaches what is wanted and detaches what is not, with strays also what nobody knows
// of. An interface that is gone is no error: its pod is being removed, or its state comes with the
// next one.
func (d *Driver) attachAll(strays bool) []error {
	var errs []error
	sites := d.sites()
	if !strays && d.attachedAt == (attachedAt{sites, d.programs.Changes}) {
		return nil
	}
	clear(d.absent)
	room := cmp.Or(d.opts.AttachAtOnce, attachAtOnce)
	for _, s := range sites.order {
		name := sites.names[s]
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
	if err := d.programs.Retain(sites.names, strays); err != nil {
		errs = append(errs, &dataplane.KeyError{Table: "programs", Key: "detach", Err: err})
	}
	d.attachedAt = attachedAt{}
	if len(errs) == 0 && len(d.programs.At) == len(sites.names) { // Retain left no other
		d.attachedAt = attachedAt{sites, d.programs.Changes}
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

// ensureUplinks looks for uplinks where they were not looked for yet, or by another pattern.
func (d *Driver) ensureUplinks(s *nodestate.State) error {
	if d.pattern != nil && d.pattern.String() == s.Settings.DataIfaces && d.uplinks != nil {
		return nil
	}
	pattern, err := regexp.Compile(s.Settings.DataIfaces)
	if err != nil {
		return &dataplane.KeyError{Table: "interfaces", Key: "bpfDataIfacePattern", Err: err}
	}
	d.pattern = pattern
	return d.findUplinks(s)
}

// findUplinks looks for the interfaces that lead out of the node.
func (d *Driver) findUplinks(s *nodestate.State) error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return &dataplane.KeyError{Table: "interfaces", Key: "list", Err: err}
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	pods := map[string]bool{}
	for _, a := range s.Addrs {
		if a.Kind == nodestate.AddrEndpoint {
			pods[a.Interface] = true
		}
	}
	for _, name := range s.Held {
		pods[name] = true
	}
	found, addrs := map[int]string{}, map[uint32]abi.WeirLinkKey{}
	for _, l := range links {
		attrs := l.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 || pods[attrs.Name] || !d.isUplink(attrs.Name) {
			continue
		}
		// A member of a bond that is an uplink itself: the packets are seen there.
		if master, ok := byIndex[attrs.MasterIndex]; ok && d.isUplink(master.Attrs().Name) {
			continue
		}
		found[attrs.Index] = attrs.Name
		if len(attrs.HardwareAddr) == 6 {
			addrs[uint32(attrs.Index)] = abi.WeirLinkKey{Mac: [6]uint8(attrs.HardwareAddr)}
		}
	}
	for index, name := range found {
		if d.uplinks[index] != name {
			d.log.Info("uplink found", "interface", name, "index", index)
		}
	}
	if len(found) == 0 && (d.uplinks == nil || len(d.uplinks) > 0) {
		d.log.Warn("no interface matches bpfDataIfacePattern: nothing from outside reaches pods and Services", "pattern", d.pattern.String())
	}
	d.uplinks, d.machine.Uplinks = found, addrs
	return nil
}

func (d *Driver) isUplink(name string) bool {
	return name != hostdev.HostDevice && name != hostdev.HostPeer && name != hostdev.TunnelDevice && !shape.Is(name) && d.pattern.MatchString(name)
}
