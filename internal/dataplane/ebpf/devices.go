// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/dataplane/ebpf/namereader"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sleep"
)

// devices is what is known of our own devices.
type devices struct {
	host, tunnel *hostdev.Device
	fresh        map[string]bool // made since programs were attached last; still down
}

// prepareDevices makes our devices, down, so that their indexes are known and nothing passes them
// before their programs are attached.
func (d *Driver) prepareDevices() []error {
	var errs []error
	fail := func(name string, err error) {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "devices", Key: name, Err: err})
		}
	}
	uplinkMTU := d.state.Settings.Tunnel.MTU + hostdev.VxlanOverhead
	if d.state.Settings.Tunnel.MTU <= 0 {
		uplinkMTU = defaultMTU
	}
	host, made, err := hostdev.EnsureHostDevice(uplinkMTU)
	fail(hostdev.HostDevice, err)
	d.devices.host = host
	if made {
		d.devices.fresh[hostdev.HostDevice], d.devices.fresh[hostdev.HostPeer] = true, true
		d.log.Info("made the host device", "device", hostdev.HostDevice, "index", host.Index)
	}
	if d.state.NeedsTunnel() {
		tunnel, made, err := hostdev.EnsureTunnel(d.state.Settings.Tunnel.Port, uplinkMTU)
		fail(hostdev.TunnelDevice, err)
		d.devices.tunnel = tunnel
		if made {
			d.devices.fresh[hostdev.TunnelDevice] = true
			d.log.Info("made the tunnel device", "device", hostdev.TunnelDevice, "index", tunnel.Index, "port", d.state.Settings.Tunnel.Port, "mtu", uplinkMTU)
		}
	} else if d.devices.tunnel != nil || !d.started {
		fail(hostdev.TunnelDevice, removeTunnelIfOurs())
		d.devices.tunnel = nil
	}
	d.machine.Host, d.machine.Tunnel = indexOf(d.devices.host), indexOf(d.devices.tunnel)
	return errs
}

// defaultMTU is used while the uplink's is not known, bytes.
const defaultMTU = 1500

// removeTunnelIfOurs leaves a foreign device of the tunnel's name alone: no tunnel is wanted, so it
// is nobody's concern.
func removeTunnelIfOurs() error {
	l, err := netlink.LinkByName(hostdev.TunnelDevice)
	if err != nil || l.Attrs().Alias != kernel.DeviceAlias {
		return nil
	}
	return hostdev.RemoveDevice(hostdev.TunnelDevice)
}

func indexOf(d *hostdev.Device) int {
	if d == nil {
		return 0
	}
	return d.Index
}

// openDevices brings our devices up, when their programs are attached, and sets routes.
func (d *Driver) openDevices() []error {
	var errs []error
	fail := func(name string, err error) {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "devices", Key: name, Err: err})
		}
	}
	open := func(name string) {
		up, err := hostdev.SetUp(name)
		fail(name, err)
		if up && !d.devices.fresh[name] {
			d.count.repaired("device", d.log, "brought a device up again", "device", name)
		}
		fail(name, kernel.TrustDevice(name))
		if d.six != nil && name != hostdev.HostPeer {
			fail(name, d.carryIPv6(name))
		}
		delete(d.devices.fresh, name)
	}
	if d.devices.host != nil && d.programs.Has(attach.Site{Ifindex: d.devices.host.Index, Hook: attach.ToUplink}) {
		open(hostdev.HostPeer)
		open(hostdev.HostDevice)
		errs = append(errs, d.openRoutes()...)
	}
	if d.devices.tunnel != nil && d.programs.Has(attach.Site{Ifindex: d.devices.tunnel.Index, Hook: attach.FromTunnel}) {
		open(hostdev.TunnelDevice)
	}
	if _, err := kernel.SetSysctl(1, "net", "ipv4", "ip_forward"); err != nil {
		fail("ip_forward", err)
	}
	if d.six != nil {
		fail("forwarding of IPv6", d.forwardIPv6())
	}
	return errs
}

// deviceWish is what of a state our devices and their routes are made from.
type deviceWish struct {
	made   bool
	tunnel nodestate.Tunnel
	needed bool // the tunnel
	node   netip.Addr
	six    bool
	node6  netip.Addr
	routes map[netip.Prefix]int
	nodes  map[netip.Prefix]int // routes to these
}

func (d *Driver) wish(s *nodestate.State) deviceWish {
	return deviceWish{made: true, tunnel: s.Settings.Tunnel, needed: d.needsTunnel, node: s.Settings.Node,
		six: s.Settings.IPv6, node6: s.Settings.Node6, routes: s.Settings.PoolRoutes, nodes: s.Settings.NodeRoutes}
}

func (w deviceWish) equal(o deviceWish) bool {
	return w.made == o.made && w.tunnel == o.tunnel && w.needed == o.needed && w.node == o.node &&
		w.six == o.six && w.node6 == o.node6 && maps.Equal(w.routes, o.routes) && maps.Equal(w.nodes, o.nodes)
}

// callNames makes the programs to pods hand answers of DNS servers to what reads them, while policy
// has domain names.
func (d *Driver) callNames() error {
	on := len(d.state.Names.Sets) > 0
	changed, err := d.loaded.CallNames(on)
	if err != nil {
		return &dataplane.KeyError{Table: "programs", Key: "domain names", Err: err}
	}
	if changed && on == d.readsNames && d.started {
		d.count.repaired("program", d.log, "what reads answers of DNS servers was not as it should be; put it right", "reads", on)
	}
	d.readsNames = on
	if on {
		d.names.Store(d.state)
	} else {
		d.names.Store(nil)
	}
	return nil
}

const (
	nameReaderLook  = 200 * time.Millisecond // how soon it is there, or ends, once policy says so
	nameReaderAgain = 10 * time.Second       // after it failed
)

// readNames reads, until ctx ends, the answers of DNS servers that programs cannot, while policy
// has domain names.
func (d *Driver) readNames(ctx context.Context) {
	wanted := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.readsNames && d.loaded.Programs[object.NamesProgram] != nil
	}
	for sleep.For(ctx, nameReaderLook) == nil {
		if !wanted() {
			continue
		}
		if err := d.readNamesWhile(ctx, wanted); err != nil {
			d.log.Warn("answers of DNS servers that the programs cannot read go on to pods unread", "error", err)
			if sleep.For(ctx, nameReaderAgain) != nil {
				return
			}
		}
	}
}

func (d *Driver) readNamesWhile(ctx context.Context, wanted func() bool) error {
	copied, err := object.LoadTeacher(d.loaded)
	if err != nil {
		return err
	}
	defer copied.Close()
	r := namereader.New(d.loaded.Maps, copied, d.log)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.mu.Lock()
	if d.nameReader != nil {
		r.CountOn(d.nameReader)
	}
	d.nameReader = r
	d.mu.Unlock()
	go func() {
		for sleep.For(ctx, nameReaderLook) == nil {
			if !wanted() {
				stop()
			}
		}
	}()
	return r.Run(ctx)
}

// callIPIP makes the programs unpack IP in IP of other nodes while the state asks for it. The
// settings that say so are written before.
func (d *Driver) callIPIP() error {
	on := d.state.Settings.IPIP.Accept
	changed, err := d.loaded.CallIPIP(on)
	if err != nil {
		return &dataplane.KeyError{Table: "programs", Key: "IP in IP", Err: err}
	}
	if changed && on == d.unpacks && d.started {
		d.count.repaired("program", d.log, "what unpacks IP in IP was not as it should be; put it right", "unpacks", on)
	}
	d.unpacks = on
	return nil
}
