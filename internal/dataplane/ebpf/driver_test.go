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

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
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

func TestAttachesToEverythingAndOnlyThat(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	st := d.Status()
	if !slices.Equal(st.Uplinks, []string{"eth0", "eth0p"}) || st.Endpoints != 4 || !st.Sockets || !st.Tunnel || len(st.Problems) != 0 {
		t.Errorf("status %+v", st)
	}
	if want := 2*4 + 2*2 + 2 + len(attach.CgroupHooks); len(d.programs.At) != want {
		t.Errorf("%d programs attached, want %d", len(d.programs.At), want)
	}
	entries, err := os.ReadDir(linksDir(b.bpffs))
	must(t, err)
	if len(entries) != len(d.programs.At) {
		t.Errorf("%d links pinned for %d programs", len(entries), len(d.programs.At))
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
	must(t, err)
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
	must(t, err)
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
	must(t, netlink.AddrAdd(b.link("eth0"), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 31, 1, 99), Mask: net.CIDRMask(24, 32)}}))
	moved := *s
	moved.Settings.Node = netip.MustParseAddr("172.31.1.99")
	applied(t, d, &moved)
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: b.link(hostdev.HostDevice).Attrs().Index}, netlink.RT_FILTER_OIF)
	must(t, err)
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
	must(t, netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: 4790}))
	foreign := b.link(hostdev.TunnelDevice)
	t.Cleanup(func() { netlink.LinkDel(foreign) })
	_, prefix, _ := net.ParseCIDR("10.244.0.0/16")
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: b.link("eth0").Attrs().Index, Dst: prefix, Scope: netlink.SCOPE_LINK}))
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

// The links outlive the driver, and the next one updates them in place: the kernel's ids of the
// links stay.
func TestRestartKeepsLinks(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	before, epoch := linkIDs(t, d), d.Status().Epoch
	must(t, d.Close())
	d = b.open(t)
	applied(t, d, s)
	if after := linkIDs(t, d); !maps.Equal(before, after) {
		t.Errorf("links before %v, after %v", before, after)
	}
	if st := d.Status(); st.Epoch != epoch || st.Writes != 0 {
		t.Errorf("epoch %d, then %d; %d writes", epoch, st.Epoch, st.Writes)
	}
	if broken := d.programs.Broken(); len(broken) != 0 {
		t.Errorf("broken after restart: %v", broken)
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
	if d.tables.changing() {
		t.Fatal("the note of a change is still there after it")
	}
	d.mu.Lock()
	d.tables.desire(changed, nodestate.All(), d.ifindex)
	d.tables.write(changed, d.machine)
	d.tables.remove(changed, d.machine)
	left := d.tables.changing()
	d.mu.Unlock()
	if !left {
		t.Fatal("a change was written without a note")
	}
	must(t, d.Close())
	for i, want := range []uint32{epoch + 1, epoch + 1} {
		d = b.open(t)
		applied(t, d, changed)
		if st := d.Status(); st.Epoch != want || d.tables.changing() || i == 1 && st.Writes != 0 {
			t.Errorf("start %d: epoch %d, want %d; %d writes; note %t", i, st.Epoch, want, st.Writes, d.tables.changing())
		}
		must(t, d.Close())
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
		must(t, err)
		ids[s.Pin()] = int(info.ID)
	}
	return ids
}

// A new pod's interface begins with filters, which attach at once, and gets its links when things
// are quiet.
func TestNewEndpointBeginsQuickly(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	none := *s
	none.Addrs = map[netip.Addr]nodestate.Addr{}
	applied(t, d, &none)
	applied(t, d, s)
	ep := model.LocalEndpoint{Interface: b.ifaces[0].Name, IfIndex: b.ifaces[0].Index, Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}}
	must(t, d.Enforced(ep))
	for _, h := range []attach.Hook{attach.FromWorkload, attach.ToWorkload} {
		if d.programs.At[attach.Site{Ifindex: ep.IfIndex, Hook: h}].Pinned() {
			t.Errorf("%s began with a link", h.Name)
		}
	}
	// Somebody removes the qdisc.
	must(t, netlink.QdiscDel(attach.ClsactQdisc(ep.IfIndex)))
	if err := d.Enforced(ep); err == nil {
		t.Error("enforced without a filter")
	}
	d.check(false)
	must(t, d.Enforced(ep))
	if d.Status().Repairs["program"] != 2 {
		t.Errorf("repairs %v", d.Status().Repairs)
	}
	d.attached = time.Now().Add(-2 * backstopAfter) // the qdisc was removed
	for range 2 * len(b.ifaces) {
		d.check(false)
	}
	must(t, d.Enforced(ep))
	for s, at := range d.programs.At {
		if !at.Pinned() {
			t.Errorf("%s did not get its link", s)
		}
		_, err := (attach.Clsact{}).Reuse(s, "")
		if backed := s.Ifindex == ep.IfIndex && attach.OfWorkload(s.Hook); backed && err != nil {
			t.Errorf("%s lost the filter behind its link: %v", s, err)
		} else if !backed && !attach.OfWorkload(s.Hook) && s.Ifindex != 0 && err == nil {
			t.Errorf("%s has a filter", s)
		}
	}
}

// A kernel without tcx: the whole suite, with filters on all interfaces.
func TestConformanceWithoutTCX(t *testing.T) {
	needRoot(t)
	conformance.Run(t, func(t *testing.T) conformance.Bench {
		b := newBench(t)
		b.edit = func(o *Options) { o.NoTCX = true }
		return b
	})
	t.Run("filters are attached, taken over and removed", func(t *testing.T) {
		b := newBench(t)
		b.edit = func(o *Options) { o.NoTCX = true }
		d := b.open(t)
		s := sample(b)
		applied(t, d, s)
		must(t, d.Close())
		d = b.open(t)
		applied(t, d, s)
		if d.programs.Reused != len(d.programs.At) || len(d.programs.Broken()) != 0 {
			t.Errorf("%d of %d taken over, broken %v", d.programs.Reused, len(d.programs.At), d.programs.Broken())
		}
		pod := attach.Site{Ifindex: b.ifaces[0].Index, Hook: attach.FromWorkload}
		none := *s
		none.Addrs = map[netip.Addr]nodestate.Addr{}
		applied(t, d, &none)
		if err := (attach.Filter{Name: attach.FilterName(pod)}).Check(pod, 0); err == nil {
			t.Error("the filter of an endpoint that is gone stays")
		}
	})
}

// An agent that ends before its endpoints have their links leaves filters that work, and the next
// one puts links before them.
func TestRestartBeforeLinks(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	none := *s
	none.Addrs = map[netip.Addr]nodestate.Addr{}
	applied(t, d, &none)
	applied(t, d, s)
	must(t, d.Close())
	pod := attach.Site{Ifindex: b.ifaces[0].Index, Hook: attach.FromWorkload}
	if err := (attach.Filter{Name: attach.FilterName(pod)}).Check(pod, 0); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	d = b.open(t)
	applied(t, d, s)
	if st := d.Status(); st.Writes != 0 {
		t.Errorf("%d writes", st.Writes)
	}
	d.check(false)
	if err := (attach.Filter{Name: attach.FilterName(pod)}).Check(pod, d.programs.Ids[attach.FromWorkload.Name]); !d.programs.At[pod].Pinned() || err != nil {
		t.Errorf("no link, or nothing behind it: %v", err)
	}
}

func TestEndpointThatGoesIsDetached(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	s := sample(b)
	applied(t, d, s)
	less := conformance.Random(6, nil)
	applied(t, d, less)
	if n := d.Status().Endpoints; n != 0 {
		t.Errorf("%d endpoints are still attached", n)
	}
	// An interface that vanishes before its endpoint is no error.
	applied(t, d, s)
	must(t, netlink.LinkDel(b.link(b.ifaces[0].Name)))
	d.check(true)
	if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
		t.Errorf("apply with a vanished interface: %v", err)
	}
	if st := d.Status(); !slices.Equal(st.Absent, []string{b.ifaces[0].Name}) || st.Endpoints != 3 {
		t.Errorf("status %+v", st)
	}
}

// What repairs take on a machine with nothing else to do follows from checkEvery.
const patience = await.Patience

func TestRepair(t *testing.T) {
	if checkEvery > 500*time.Millisecond {
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
		mended        func() bool
	}{
		{"link detached", "program", func() {
			must(t, d.programs.At[attach.Site{Ifindex: b.ifaces[1].Index, Hook: attach.FromWorkload}].(attach.BpfLink).Link.Detach())
		},
			func() bool { return len(d.programs.Broken()) == 0 }},
		{"pin removed", "program", func() { must(t, os.Remove(filepath.Join(linksDir(b.bpffs), "cgroup-connect4"))) },
			func() bool { return len(d.programs.Broken()) == 0 }},
		{"another program in the link", "program", func() {
			must(t, d.programs.At[attach.Site{Ifindex: b.ifaces[1].Index, Hook: attach.FromWorkload}].Update(attach.Site{Ifindex: b.ifaces[1].Index, Hook: attach.FromWorkload}, d.programs.Prog["to_uplink"]))
		}, func() bool { return len(d.programs.Broken()) == 0 }},
		{"tunnel device removed", "device", func() { must(t, netlink.LinkDel(b.link(hostdev.TunnelDevice))) },
			func() bool {
				return up(hostdev.TunnelDevice) && d.programs.Has(attach.Site{Ifindex: d.machine.tunnel, Hook: attach.FromTunnel})
			}},
		{"host device removed", "device", func() { must(t, netlink.LinkDel(b.link(hostdev.HostDevice))) },
			func() bool { return up(hostdev.HostDevice) && hasPoolRoute() }},
		{"host device brought down", "device", func() { must(t, netlink.LinkSetDown(b.link(hostdev.HostDevice))) },
			func() bool { return up(hostdev.HostDevice) && hasPoolRoute() }},
		{"route removed", "route", func() {
			_, prefix, _ := net.ParseCIDR("10.244.0.0/16")
			must(t, netlink.RouteDel(&netlink.Route{Dst: prefix, LinkIndex: b.link(hostdev.HostDevice).Attrs().Index, Scope: netlink.SCOPE_LINK}))
		}, hasPoolRoute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := d.Status().Repairs[tt.counted]
			d.mu.Lock()
			tt.harm()
			if tt.mended() {
				t.Error("nothing is broken")
			}
			d.mu.Unlock()
			if !within(patience, func() bool { d.mu.Lock(); defer d.mu.Unlock(); return tt.mended() }) {
				t.Error("not mended")
			}
			if !within(patience, func() bool { return d.Status().Repairs[tt.counted] > before }) {
				t.Errorf("not counted: %v", d.Status().Repairs)
			}
		})
	}
}

func TestNewUplinkIsAttached(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	time.Sleep(100 * time.Millisecond)
	epoch := d.Status().Epoch
	eth1 := b.veth("eth1", "x1")
	if !within(patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.programs.Has(attach.Site{Ifindex: eth1.Index, Hook: attach.FromUplink}) && d.programs.Has(attach.Site{Ifindex: eth1.Index, Hook: attach.ToUplink})
	}) {
		t.Error("a new uplink stays without programs")
	}
	_, prefix, _ := net.ParseCIDR("192.0.2.0/24")
	time.Sleep(50 * time.Millisecond)
	epoch = d.Status().Epoch
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Index, Dst: prefix, Scope: netlink.SCOPE_LINK}))
	if !within(patience, func() bool { return d.Status().Epoch > epoch }) {
		t.Error("a new route does not make flows look again")
	}
}

func TestStrictReversePathIsRelaxed(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"eth0", b.ifaces[0].Name} {
		_, err := kernel.SetSysctl(1, "net", "ipv4", "conf", name, "rp_filter")
		must(t, err)
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
	must(t, err)
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
	var key abi.WeirFlowKey
	key.Sport = 1
	must(t, d.loaded.Maps["weir_flows"].Put(key, abi.WeirFlowValue{Epoch: 3}))
	must(t, d.Close())
	b.edit = func(o *Options) {
		o.Sizes["weir_services"], o.Sizes["weir_flows"], o.Sizes["weir_peer_cidrs"] = 1000, 2048, 1000
	}
	d = b.open(t)
	applied(t, d, s)
	if n := d.loaded.Maps["weir_services"].MaxEntries(); n != 1000 {
		t.Errorf("services have %d entries", n)
	}
	var flow abi.WeirFlowValue
	if err := d.loaded.Maps["weir_flows"].Lookup(key, &flow); err != nil || flow.Epoch != 3 {
		t.Errorf("a flow is lost: %v", err)
	}
	if n := d.loaded.Maps["weir_flows"].MaxEntries(); n != 2048 {
		t.Errorf("there is room for %d flows", n)
	}
	got, err := d.Load()
	must(t, err)
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
		must(t, d.Apply(context.Background(), s, nodestate.Keys{Tables: nodestate.TablePolicy}))
		got, err := d.Load()
		must(t, err)
		if !maps.Equal(got.PeerCIDRs, s.PeerCIDRs) {
			t.Fatalf("networks are not those of %d.0.0.0: %v", first, got.PeerCIDRs)
		}
	}
	i := slices.IndexFunc(d.Pressures(), func(p Pressure) bool { return p.Map == "weir_peer_cidrs" })
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
