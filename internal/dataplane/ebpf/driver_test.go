// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestConformance(t *testing.T) {
	needRoot(t)
	conformance.Run(t, func(t *testing.T) conformance.Bench { return newBench(t) })
}

// sample is the state of a node without IPv6.
func sample(b *bench) *nodestate.State {
	s := conformance.WithoutIPv6(conformance.Random(6, b.ifaces))
	s.Settings.PoolRoutes = map[netip.Prefix]int{netip.MustParsePrefix("10.244.0.0/16"): 1450}
	for i, ifc := range b.ifaces {
		s.Addrs[netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 2)})] = nodestate.Addr{
			Kind: nodestate.AddrEndpoint, Interface: ifc.Name, IfIndex: ifc.Index}
	}
	s.Routes[netip.MustParsePrefix("10.244.9.0/26")] = nodestate.Route{Pool: true, Tunnel: true, Node: netip.MustParseAddr("172.31.9.9")}
	return s
}

func applied(t *testing.T, d instance, s *nodestate.State) {
	t.Helper()
	if err := applyWhole(d, s); err != nil {
		t.Fatalf("applying: %v", err)
	}
}

// applyWhole applies a state in as many pieces as the driver likes.
func applyWhole(d instance, s *nodestate.State) error {
	for {
		if err := d.Apply(context.Background(), s, nodestate.All()); !errors.Is(err, dataplane.ErrUnfinished) {
			return err
		}
	}
}

func TestDevicesAndRoutes(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	host, tunnel := b.link(hostdev.HostDevice), b.link(hostdev.TunnelDevice)
	if host.Attrs().Flags&net.FlagUp == 0 || tunnel.Attrs().Flags&net.FlagUp == 0 {
		t.Error("a device is down")
	}
	if host.Attrs().HardwareAddr.String() != "ee:ee:ee:ee:ee:ee" {
		t.Errorf("the host device has the MAC address %v", host.Attrs().HardwareAddr)
	}
	for name, path := range map[string][]string{"0": {hostdev.HostDevice, "rp_filter"}, "1": {hostdev.HostDevice, "accept_local"}} {
		if v, err := kernel.Sysctl(append([]string{"net", "ipv4", "conf"}, path...)...); err != nil || strconv.Itoa(v) != name {
			t.Errorf("%v is %d, %v", path, v, err)
		}
	}
	if v, ok := tunnel.(*netlink.Vxlan); !ok || !v.FlowBased || v.Port != 4789 || v.Learning {
		t.Errorf("tunnel device %+v", tunnel)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: host.Attrs().Index}, netlink.RT_FILTER_OIF)
	nettest.Must(t, err)
	if len(routes) != 1 || routes[0].Dst.String() != "10.244.0.0/16" || routes[0].MTU != 1450 || routes[0].Src.String() != "172.31.1.207" {
		t.Errorf("routes of the host device: %v", routes)
	}
	// Without anything that needs it the tunnel device goes, and nothing listens on its port.
	plain := nodestate.New()
	plain.Settings = s.Settings
	plain.Settings.PoolRoutes = nil
	applied(t, d, plain)
	if _, err := netlink.LinkByName(hostdev.TunnelDevice); err == nil {
		t.Error("the tunnel device stays although nothing needs it")
	}
	routes, err = netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: host.Attrs().Index}, netlink.RT_FILTER_OIF)
	nettest.Must(t, err)
	if len(routes) != 0 {
		t.Errorf("routes that are left: %v", routes)
	}
}

// The node's address changes: routes carry the new source, flows evaluate themselves again.
func TestNodeAddressChanges(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	epoch := d.Status().Epoch
	nettest.Must(t, netlink.AddrAdd(b.link("eth0"), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 31, 1, 99), Mask: net.CIDRMask(24, 32)}}))
	moved := *s
	moved.Settings.Node = netip.MustParseAddr("172.31.1.99")
	applied(t, d, &moved)
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: b.link(hostdev.HostDevice).Attrs().Index}, netlink.RT_FILTER_OIF)
	nettest.Must(t, err)
	if len(routes) != 1 || routes[0].Src.String() != "172.31.1.99" {
		t.Errorf("routes %v", routes)
	}
	if d.Status().Epoch == epoch {
		t.Error("the epoch did not move")
	}
	// An address that the machine does not have is named, and does not undo what works.
	moved2 := moved
	moved2.Settings.Node = netip.MustParseAddr("172.31.1.200")
	if err := d.Apply(context.Background(), &moved2, nodestate.All()); err == nil || !strings.Contains(err.Error(), "10.244.0.0/16") {
		t.Errorf("error %v", err)
	}
}

func TestForeignDeviceAndRouteAreLeftAlone(t *testing.T) {
	b := newBench(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostdev.TunnelDevice
	nettest.Must(t, netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: 4790}))
	foreign := b.link(hostdev.TunnelDevice)
	t.Cleanup(func() { netlink.LinkDel(foreign) })
	_, prefix, _ := net.ParseCIDR("10.244.0.0/16")
	nettest.Must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: b.link("eth0").Attrs().Index, Dst: prefix, Scope: netlink.SCOPE_LINK}))
	d := b.open(t)
	err := d.Apply(context.Background(), sample(b), nodestate.All())
	if err == nil {
		t.Fatal("no error although the names are taken")
	}
	if b.link(hostdev.TunnelDevice).Attrs().Index != foreign.Attrs().Index {
		t.Error("the foreign device was replaced")
	}
	routes, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: prefix}, netlink.RT_FILTER_DST)
	if len(routes) != 1 || routes[0].LinkIndex != b.link("eth0").Attrs().Index {
		t.Errorf("routes: %v", routes)
	}
}

// An agent that ends between the last write of a change and the move of the epoch leaves a note;
// the next one, which finds nothing to write, moves the epoch all the same.
func TestEndBeforeTheEpochMoves(t *testing.T) {
	everywhere := nodestate.HostInterface{}
	for name, change := range map[string]func(*nodestate.State){
		"settings and routes": func(s *nodestate.State) {
			s.Settings.DSR = !s.Settings.DSR
			s.Routes = maps.Clone(s.Routes)
			s.Routes[netip.MustParsePrefix("10.244.77.0/26")] = nodestate.Route{Pool: true}
		},
		"a host endpoint": func(s *nodestate.State) {
			s.HostEndpoints = map[nodestate.HostInterface]nodestate.HostEndpoint{everywhere: {HostIngress: nodestate.Isolation{Set: 78, Rule: 2}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := sample(b)
			s.HostEndpoints = map[nodestate.HostInterface]nodestate.HostEndpoint{everywhere: {HostIngress: nodestate.Isolation{Set: 77, Rule: 1}}}
			changed := *s
			change(&changed)
			endsBeforeTheEpochMoves(t, b, s, &changed)
		})
	}
}

func endsBeforeTheEpochMoves(t *testing.T, b *bench, s, changed *nodestate.State) {
	t.Helper()
	d := b.open(t)
	applied(t, d, s)
	epoch := d.Status().Epoch
	if d.tables.Changing() {
		t.Fatal("the note of a change is still there after it")
	}
	d.mu.Lock()
	d.tables.Desire(changed, nodestate.All(), d.ifindex)
	d.tables.Write(changed, d.machine)
	d.tables.Remove(changed, d.machine)
	left := d.tables.Changing()
	d.mu.Unlock()
	if !left {
		t.Fatal("a change was written without a note")
	}
	nettest.Must(t, d.Close())
	for i, want := range []uint32{epoch + 1, epoch + 1} {
		d = b.open(t)
		applied(t, d, changed)
		if st := d.Status(); st.Epoch != want || d.tables.Changing() || i == 1 && st.Writes != 0 {
			t.Errorf("start %d: epoch %d, want %d; %d writes; note %t", i, st.Epoch, want, st.Writes, d.tables.Changing())
		}
		nettest.Must(t, d.Close())
	}
}

func linkIDs(t *testing.T, d instance) map[string]int {
	t.Helper()
	ids := map[string]int{}
	for s, at := range d.programs.At {
		l, is := at.(attach.BpfLink)
		if !is {
			t.Skipf("%s has no link: this kernel has none for interfaces (TestConformanceWithoutTCX is about filters)", s)
		}
		info, err := l.Info()
		nettest.Must(t, err)
		ids[s.Pin()] = int(info.ID)
	}
	return ids
}

func TestRepair(t *testing.T) {
	if 2*checkEvery > 900*time.Millisecond {
		t.Errorf("checks every %v: repairs are promised within a second", checkEvery)
	}
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	time.Sleep(100 * time.Millisecond)
	for _, tt := range []struct {
		name, counted string
		harm          func()
		repaired      func() bool
	}{
		{"link detached", "program", func() {
			nettest.Must(t, d.programs.At[attach.Site{Ifindex: b.ifaces[1].Index, Hook: attach.FromWorkload}].(attach.BpfLink).Link.Detach())
		},
			func() bool { return len(d.programs.Broken()) == 0 }},
		{"pin removed", "program", func() { nettest.Must(t, os.Remove(filepath.Join(bpffs.LinksDir(b.bpffs), "cgroup-connect4"))) },
			func() bool { return len(d.programs.Broken()) == 0 }},
		{"another program in the link", "program", func() {
			nettest.Must(t, d.programs.At[attach.Site{Ifindex: b.ifaces[1].Index, Hook: attach.FromWorkload}].Update(attach.Site{Ifindex: b.ifaces[1].Index, Hook: attach.FromWorkload}, d.programs.Prog["to_uplink"]))
		}, func() bool { return len(d.programs.Broken()) == 0 }},
		{"tunnel device removed", "device", func() { nettest.Must(t, netlink.LinkDel(b.link(hostdev.TunnelDevice))) },
			func() bool {
				return up(hostdev.TunnelDevice) && d.programs.Has(attach.Site{Ifindex: d.machine.Tunnel, Hook: attach.FromTunnel})
			}},
		{"host device removed", "device", func() { nettest.Must(t, netlink.LinkDel(b.link(hostdev.HostDevice))) },
			func() bool { return up(hostdev.HostDevice) && hasPoolRoute() }},
		{"host device brought down", "device", func() { nettest.Must(t, netlink.LinkSetDown(b.link(hostdev.HostDevice))) },
			func() bool { return up(hostdev.HostDevice) && hasPoolRoute() }},
		{"route removed", "route", func() {
			_, prefix, _ := net.ParseCIDR("10.244.0.0/16")
			nettest.Must(t, netlink.RouteDel(&netlink.Route{Dst: prefix, LinkIndex: b.link(hostdev.HostDevice).Attrs().Index, Scope: netlink.SCOPE_LINK}))
		}, hasPoolRoute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := d.Status().Repairs[tt.counted]
			d.mu.Lock()
			tt.harm()
			if tt.repaired() {
				t.Error("nothing is broken")
			}
			d.mu.Unlock()
			if !within(patience, func() bool { d.mu.Lock(); defer d.mu.Unlock(); return tt.repaired() }) {
				t.Error("not repaired")
			}
			if !within(patience, func() bool { return d.Status().Repairs[tt.counted] > before }) {
				t.Errorf("not counted: %v", d.Status().Repairs)
			}
		})
	}
}

func TestStrictReversePathIsRelaxed(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"eth0", b.ifaces[0].Name} {
		_, err := kernel.SetSysctl(1, "net", "ipv4", "conf", name, "rp_filter")
		nettest.Must(t, err)
	}
	d := b.open(t)
	applied(t, d, sample(b))
	for _, name := range []string{"eth0", b.ifaces[0].Name} {
		if v, err := kernel.Sysctl("net", "ipv4", "conf", name, "rp_filter"); err != nil || v != 2 {
			t.Errorf("rp_filter of %s is %d, %v", name, v, err)
		}
	}
}

// Where reverse paths are checked on all interfaces, our devices pass the loose check: it needs an
// address.
func TestReversePathOfAllInterfaces(t *testing.T) {
	b := newBench(t)
	_, err := kernel.SetSysctl(1, "net", "ipv4", "conf", "all", "rp_filter")
	nettest.Must(t, err)
	t.Cleanup(func() { kernel.SetSysctl(0, "net", "ipv4", "conf", "all", "rp_filter") })
	d := b.open(t)
	applied(t, d, sample(b))
	for _, name := range []string{hostdev.HostDevice, hostdev.TunnelDevice, "eth0"} {
		v, err := kernel.Sysctl("net", "ipv4", "conf", name, "rp_filter")
		addrs, _ := netlink.AddrList(b.link(name), netlink.FAMILY_V4)
		if err != nil || v != 2 || len(addrs) != 1 {
			t.Errorf("%s: rp_filter %d, %v; addresses %v", name, v, err, addrs)
		}
	}
}

// A map that changes its size is filled before programs use it.
func TestSizeChange(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	var key abi.FlowKey[abi.Ip4]
	key.Sport = 1
	addFlow(t, d.loaded.Maps["weir_flows"], key, abi.FlowValue[abi.Ip4]{Epoch: 3})
	nettest.Must(t, d.Close())
	b.edit = func(o *Options) {
		o.Sizes["weir_services"], o.Sizes["weir_flows"], o.Sizes["weir_peer_cidrs"] = 1000, 2048, 1000
	}
	d = b.open(t)
	applied(t, d, s)
	if n := d.loaded.Maps["weir_services"].MaxEntries(); n != 1000 {
		t.Errorf("services have %d entries", n)
	}
	var flow abi.FlowValue[abi.Ip4]
	if err := flowtable.LookUpFlow(d.loaded.Maps["weir_flows"], key, &flow); err != nil || flow.Epoch != 3 {
		t.Errorf("a flow is lost: %v", err)
	}
	if n := d.loaded.Maps["weir_flows"].MaxEntries(); n != 2048 {
		t.Errorf("there is room for %d flows", n)
	}
	got, err := d.Load()
	nettest.Must(t, err)
	if !nodestate.EqualMaps(got.Frontends, s.Frontends) || len(s.PeerCIDRs) == 0 || !maps.Equal(got.PeerCIDRs, s.PeerCIDRs) {
		t.Error("the services or networks are not all there")
	}
	if broken := d.programs.Broken(); len(broken) != 0 {
		t.Errorf("broken: %v", broken)
	}
}

// All networks that fit may be others at once; how full their map is counts by its setting.
func TestNetworksChangeAtOnce(t *testing.T) {
	b := newBench(t)
	const room = 40
	b.edit = func(o *Options) { o.Sizes["weir_peer_cidrs"] = room }
	d := b.open(t)
	s := sample(b)
	networks := func(first byte) map[netip.Prefix]nodestate.Class {
		m := map[netip.Prefix]nodestate.Class{}
		for i := range room {
			m[netip.PrefixFrom(netip.AddrFrom4([4]byte{first, byte(i), 0, 0}), 16)] = nodestate.Class(10 + i%3)
		}
		return m
	}
	for _, first := range []byte{20, 30, 40} {
		next := *s
		next.PeerCIDRs = networks(first)
		s = &next
		nettest.Must(t, d.Apply(context.Background(), s, nodestate.Keys{Tables: nodestate.TablePolicy}))
		got, err := d.Load()
		nettest.Must(t, err)
		if !maps.Equal(got.PeerCIDRs, s.PeerCIDRs) {
			t.Fatalf("networks are not those of %d.0.0.0: %v", first, got.PeerCIDRs)
		}
	}
	i := slices.IndexFunc(d.Pressures(), func(p dataplane.Pressure) bool { return p.Map == "weir_peer_cidrs" })
	if p := d.Pressures()[i]; p.Entries != room || p.Capacity != room || !p.High() || p.Setting != "bpfMapSizeIPSets" {
		t.Errorf("pressure %+v", p)
	}
}

func TestFullMapIsNamed(t *testing.T) {
	b := newBench(t)
	b.edit = func(o *Options) { o.Sizes["weir_services"] = 1 }
	d := b.open(t)
	s := sample(b)
	err := d.Apply(context.Background(), s, nodestate.All())
	if err == nil {
		t.Fatal("no error")
	}
	t.Log(err)
	if !strings.Contains(err.Error(), "bpfMapSizeNATFrontend") {
		t.Errorf("the error does not name the setting: %v", err)
	}
}

func up(name string) bool {
	l, err := netlink.LinkByName(name)
	return err == nil && l.Attrs().Flags&net.FlagUp != 0
}

func hasPoolRoute() bool {
	_, prefix, _ := net.ParseCIDR("10.244.0.0/16")
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: prefix}, netlink.RT_FILTER_DST)
	return err == nil && len(routes) == 1
}

func within(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
