// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// The programs and maps of IPv6 are in the kernel while the node carries it, and only then: nothing
// of them is loaded, attached or pinned on a node of IPv4 alone. They come before a state is
// written and are called once it is; when they go, nothing calls them first.

// ensureIPv6 loads what IPv6 needs when a state is the first to carry it, and unloads it when one
// no longer does. It reports whether it came: its tables are empty, or as an earlier run left them,
// and want the whole state. Without it IPv4 goes on.
func (d *Driver) ensureIPv6(s *nodestate.State, first bool) (came bool) {
	d.sixErr = nil
	var err error
	switch {
	case s.Settings.IPv6 && d.six == nil:
		came, err = true, d.addIPv6(first)
	case !s.Settings.IPv6 && (d.six != nil || first || d.removingIPv6):
		err = d.removeIPv6()
		d.removingIPv6 = err != nil
	}
	if err != nil {
		d.sixErr = &dataplane.KeyError{Table: "programs", Key: "IPv6", Err: err}
	}
	return came && err == nil
}

func (d *Driver) addIPv6(first bool) error {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return fmt.Errorf("the kernel has no IPv6; set FelixConfiguration ipv6Support to false: %w", err)
	}
	dir := ""
	if d.opts.BPFFS != "" {
		dir = bpffs.Maps6Dir(d.opts.BPFFS)
	}
	six, err := d.opts.Preloaded.Take(d.loaded, dir, d.opts.Sizes, d.opts.constants())
	if err == nil && six == nil {
		six, err = object.Load(d.loaded, dir, d.opts.Sizes, d.opts.constants(), d.log)
	}
	if err != nil {
		return err
	}
	if first {
		six.CarryOver(d.opts.BPFFS, true, d.log)
	}
	tables := d.tables.FamilyOf(six)
	if err := errors.Join(tables.Load(), d.programs.Offer(attach.Ipv6Prefix, six.Programs)); err != nil {
		six.Close()
		return err
	}
	d.six = six
	d.tables.Add(tables)
	d.log.Info("the node carries IPv6", "maps found", six.Found)
	return nil
}

// removeIPv6 also takes away what an earlier run left.
func (d *Driver) removeIPv6() error {
	_, err := d.loaded.CallIPv6(nil)
	errs := []error{err, d.loaded.CallUntracked(nil, nil), d.loaded.CallLimited(nil), d.programs.Withdraw(attach.CgroupHooks6)}
	if d.six != nil {
		d.tables.RemoveIPv6()
		d.six.Close()
		d.six = nil
		d.log.Info("the node does not carry IPv6 any more")
	}
	if d.opts.BPFFS != "" {
		errs = append(errs, object.UnpinAll(bpffs.Maps6Dir(d.opts.BPFFS)))
	}
	for _, name := range []string{hostdev.HostDevice, hostdev.TunnelDevice} { // its routes go with it
		if dev, err := hostdev.FindDevice(name); err == nil && dev != nil {
			_, err := kernel.DisableIPv6(name)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// callSlow makes the programs of hooks call those that do all but the fast path, once these have
// their tables.
func (d *Driver) callSlow() error {
	for _, l := range d.both() {
		changed, err := l.CallSlow()
		if err != nil {
			return &dataplane.KeyError{Table: "programs", Key: object.SlowProgram, Err: err}
		}
		if changed && d.slow[l] {
			d.count.repaired("program", d.log, "what is not on the fast path was not evaluated any more; put it back", "program", object.SlowProgram, "family", l.Family)
		}
		if d.slow == nil {
			d.slow = map[*object.Collection]bool{}
		}
		d.slow[l] = true
	}
	maps.DeleteFunc(d.slow, func(l *object.Collection, _ bool) bool { return l != d.loaded && l != d.six })
	return nil
}

// callIPv6 makes IPv4's programs, which are the ones attached, call those of IPv6, once these have
// their tables.
func (d *Driver) callIPv6() error {
	if d.six == nil {
		return nil
	}
	n, err := d.loaded.CallIPv6(d.six)
	if err != nil {
		return &dataplane.KeyError{Table: "programs", Key: "IPv6", Err: err}
	}
	if n > 0 && d.called == d.six {
		d.count.repaired("program", d.log, "programs of IPv6 were not called any more; put them back", "programs", n)
	}
	d.called = d.six
	return nil
}

// both are the families that the node carries, IPv4 first.
func (d *Driver) both() []*object.Collection {
	if d.six == nil {
		return []*object.Collection{d.loaded}
	}
	return []*object.Collection{d.loaded, d.six}
}

// openRoutes makes the routes of weir0 those of the pools and Services, and those to nodes that are
// reached through the tunnel.
func (d *Driver) openRoutes() (errs []error) {
	c := d.state.Settings
	for table, routes := range map[int]map[netip.Prefix]int{unix.RT_TABLE_MAIN: c.PoolRoutes, kernel.NodeRouteTable: c.NodeRoutes} {
		n, err := hostdev.EnsureRoutes(netlink.FAMILY_V4, d.devices.host.Index, table, hostdev.OfFamily(routes, false), c.Node)
		d.count.routes, errs = d.count.routes+uint64(n), append(errs, err...)
		if d.six != nil && !d.narrow[hostdev.HostDevice] {
			n, err := hostdev.EnsureRoutes(netlink.FAMILY_V6, d.devices.host.Index, table, hostdev.OfFamily(routes, true), c.Node6)
			d.count.routes, errs = d.count.routes+uint64(n), append(errs, err...)
		}
	}
	return errs
}

// carryIPv6 lets IPv6 pass one of our devices. Below its least MTU (1,280; RFC 8200, section 5) the
// kernel has no IPv6 on a device: that is reported once, and all else is in force.
func (d *Driver) carryIPv6(name string) error {
	narrow := !hostdev.Exists6(name)
	if narrow && !d.narrow[name] {
		d.log.Warn("the uplink's MTU is too small for IPv6: it is not carried by this device", "device", name, "least", leastMTU6)
	}
	d.narrow[name] = narrow
	if narrow {
		return nil
	}
	return hostdev.CarryIPv6(name)
}

// leastMTU6 is what every link of IPv6 carries, bytes.
const leastMTU6 = 1280

// forwardPods has the interfaces of pods forward IPv6, which the programs' look-ups in the kernel's
// routes want, where another CNI plugin made them: Amazon's sets them not to. Each is looked at
// once.
func (d *Driver) forwardPods() []error {
	pods, fresh := map[int]string{}, map[int]string{}
	if !d.state.Settings.Chained || d.six == nil {
		return nil
	}
	for a, v := range d.state.Addrs {
		if v.Kind != nodestate.AddrEndpoint || !a.Is6() {
			continue
		}
		pods[v.IfIndex] = v.Interface
		if d.forwarding[v.IfIndex] != v.Interface {
			fresh[v.IfIndex] = v.Interface
		}
	}
	var errs []error
	for index, name := range fresh {
		if _, err := kernel.SetSysctl(1, hostdev.Sysctl6(name, "forwarding")...); err != nil && hostdev.Exists6(name) {
			errs = append(errs, &dataplane.KeyError{Table: "devices", Key: name, Err: err})
			delete(pods, index)
		}
	}
	d.forwarding = pods
	return errs
}

// forwardIPv6 leaves a node alone that has IPv6 but no pods and no Services of it.
func (d *Driver) forwardIPv6() error {
	if len(hostdev.OfFamily(d.state.Settings.PoolRoutes, true)) == 0 {
		return nil
	}
	except := map[string]bool{hostdev.HostDevice: true, hostdev.HostPeer: true, hostdev.TunnelDevice: true}
	for _, a := range d.state.Addrs {
		if a.Kind == nodestate.AddrEndpoint {
			except[a.Interface] = true
		}
	}
	kept, err := hostdev.ForwardIPv6(d.uplinks, except)
	if len(kept) > 0 {
		d.log.Info("the node forwards IPv6 now; interfaces that took router advertisements go on taking them (accept_ra 2)", "interfaces", kept)
	}
	return err
}
