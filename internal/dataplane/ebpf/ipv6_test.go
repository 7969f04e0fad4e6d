// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

const node6 = "fd00:172:31:1::207"

// sample6 is sample with IPv6 alongside IPv4, on a bench whose node has an address of each.
func sample6(b *bench) *nodestate.State {
	s := sample(b)
	s.Settings.IPv6, s.Settings.Node6 = true, netip.MustParseAddr(node6)
	s.Settings.PoolRoutes = map[netip.Prefix]int{netip.MustParsePrefix("10.244.0.0/16"): 1450, netip.MustParsePrefix("fd00:10:244::/56"): 1430,
		netip.MustParsePrefix("fd00:10:96::/112"): 1430}
	for i, ifc := range b.ifaces {
		a := netip.MustParseAddr("fd00:10:244:1::").As16()
		a[15] = byte(i + 2)
		s.Addrs[netip.AddrFrom16(a)] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: ifc.Name, IfIndex: ifc.Index}
	}
	return s
}

// withNode6 gives the bench's uplink the node's address of IPv6.
func (b *bench) withNode6() *bench {
	nettest.Must(b.t, netlink.AddrAdd(b.link("eth0"), &netlink.Addr{Flags: 2 /* IFA_F_NODAD */, IPNet: &net.IPNet{IP: net.ParseIP(node6), Mask: net.CIDRMask(64, 128)}}))
	return b
}

// without6 is the state of the same node when it carries no IPv6.
func without6(s *nodestate.State) *nodestate.State {
	c := conformance.WithoutIPv6(s)
	c.Settings.PoolRoutes = hostdev.OfFamily(s.Settings.PoolRoutes, false)
	return c
}

// calledPrograms are the ids of the programs that IPv4's call for IPv6.
func (i instance) calledPrograms(t *testing.T) (ids []uint32) {
	t.Helper()
	for slot := range uint32(len(object.IPv6Slots)) {
		var id uint32
		err := i.loaded.Maps[object.ProgramsOfIPv6].Lookup(slot, &id)
		if err == nil {
			ids = append(ids, id)
		} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	return ids
}

func pins(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	nettest.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func routes6(t *testing.T, b *bench) map[string]string {
	t.Helper()
	out := map[string]string{}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{LinkIndex: b.link(hostdev.HostDevice).Attrs().Index, Protocol: hostdev.RouteProtocol},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	nettest.Must(t, err)
	for _, r := range routes {
		out[r.Dst.String()] = r.Src.String()
	}
	return out
}

// A node without IPv6 has nothing of it in the kernel, one that begins to carry it has all, and one
// that stops nothing again.
func TestIPv6ComesAndGoes(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	with := sample6(b)
	without := without6(with)
	gone := func(when string) {
		t.Helper()
		if ids := d.calledPrograms(t); len(ids) != 0 {
			t.Errorf("%s: programs %v are called for IPv6", when, ids)
		}
		if names := pins(t, bpffs.Maps6Dir(b.bpffs)); len(names) != 0 {
			t.Errorf("%s: maps of IPv6 are pinned: %v", when, names)
		}
		for _, h := range attach.CgroupHooks6 {
			if d.programs.Has(attach.Site{Ifindex: 0, Hook: h}) || slices.Contains(pins(t, bpffs.LinksDir(b.bpffs)), attach.Site{Ifindex: 0, Hook: h}.Pin()) {
				t.Errorf("%s: %s is attached", when, h.Name)
			}
		}
		if r := routes6(t, b); len(r) != 0 {
			t.Errorf("%s: routes %v", when, r)
		}
		for _, name := range []string{hostdev.HostDevice, hostdev.HostPeer, hostdev.TunnelDevice} {
			if v, err := kernel.Sysctl(hostdev.Sysctl6(name, "disable_ipv6")...); err != nil || v != 1 {
				t.Errorf("%s: disable_ipv6 of %s is %d, %v", when, name, v, err)
			}
		}
	}
	applied(t, d, without)
	gone("at first")
	if d.six != nil {
		t.Error("IPv6's programs are loaded")
	}
	for range 2 {
		applied(t, d, with)
		if ids := d.calledPrograms(t); len(ids) != len(object.IPv6Slots) {
			t.Errorf("programs %v are called for IPv6", ids)
		}
		for _, h := range attach.CgroupHooks6 {
			if !d.programs.Has(attach.Site{Ifindex: 0, Hook: h}) {
				t.Errorf("%s is not attached", h.Name)
			}
		}
		want := map[string]string{"fd00:10:244::/56": node6, "fd00:10:96::/112": node6}
		if r := routes6(t, b); !maps.Equal(r, want) {
			t.Errorf("routes %v, want %v", r, want)
		}
		applied(t, d, without)
		gone("afterwards")
	}
}

// What of IPv6 cannot be taken away at first goes at a later try.
func TestIPv6GoesLater(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	with := sample6(b)
	applied(t, d, with)
	stuck := filepath.Join(bpffs.Maps6Dir(b.bpffs), "folder")
	if err := os.MkdirAll(filepath.Join(stuck, "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	without := without6(with)
	if err := d.Apply(t.Context(), without, nodestate.All()); err == nil {
		t.Fatal("what cannot be removed is no error")
	}
	if err := os.Remove(filepath.Join(stuck, "inside")); err != nil {
		t.Fatal(err)
	}
	applied(t, d, without)
	if names := pins(t, bpffs.Maps6Dir(b.bpffs)); len(names) != 0 {
		t.Errorf("maps of IPv6 are pinned: %v", names)
	}
}

// An uplink too narrow for IPv6 is no error of each check: IPv4 goes on, and IPv6 comes when the
// MTU grows.
func TestIPv6NeedsItsLeastMTU(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	s := sample6(b)
	s.Settings.Tunnel.MTU = leastMTU6 - hostdev.VxlanOverhead - 1
	applied(t, d, s)
	nettest.Must(t, d.reconcile(true))
	if r := routes6(t, b); len(r) != 0 {
		t.Errorf("routes %v on a device without IPv6", r)
	}
	nettest.Must(t, netlink.LinkSetMTU(b.link(hostdev.HostPeer), 1500))
	nettest.Must(t, netlink.LinkSetMTU(b.link(hostdev.HostDevice), 1500))
	nettest.Must(t, d.reconcile(true))
	if v, err := kernel.Sysctl(hostdev.Sysctl6(hostdev.HostDevice, "disable_ipv6")...); err != nil || v != 0 {
		t.Errorf("disable_ipv6 of %s is %d, %v", hostdev.HostDevice, v, err)
	}
	if r := routes6(t, b); len(r) == 0 {
		t.Error("no routes of IPv6")
	}
}

// A restart finds IPv6's maps with their flows, and takes links and calls over in place.
func TestIPv6Restart(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	s := sample6(b)
	applied(t, d, s)
	flow := make([]byte, d.six.Maps["weir_flows"].KeySize())
	flow[0] = 0xfd
	nettest.Must(t, d.six.Maps["weir_flows"].Put(flow, make([]byte, d.six.Maps["weir_flows"].ValueSize())))
	links, called, epoch := linkIDs(t, d), d.calledPrograms(t), d.Status().Epoch
	nettest.Must(t, d.Close())
	d = b.open(t)
	if now := d.calledPrograms(t); !slices.Equal(now, called) {
		t.Errorf("before the first state other programs are called: %v, were %v", now, called)
	}
	applied(t, d, s)
	if now := d.calledPrograms(t); len(now) != len(called) || slices.Equal(now, called) {
		t.Errorf("programs %v are called, as the earlier run's %v", now, called)
	}
	if after := linkIDs(t, d); !maps.Equal(links, after) {
		t.Errorf("links before %v, after %v", links, after)
	}
	if st := d.Status(); st.Writes != 0 || st.Epoch != epoch || len(st.Repairs) != 0 {
		t.Errorf("%d writes, epoch %d was %d, repairs %v", st.Writes, st.Epoch, epoch, st.Repairs)
	}
	if _, err := d.six.Maps["weir_flows"].LookupBytes(flow); err != nil {
		t.Errorf("a flow is lost: %v", err)
	}
	if broken := d.programs.Broken(); len(broken) != 0 {
		t.Errorf("broken after restart: %v", broken)
	}
	// The next one finds that the node carries no IPv6 any more.
	nettest.Must(t, d.Close())
	d = b.open(t)
	applied(t, d, without6(s))
	if ids, names := d.calledPrograms(t), pins(t, bpffs.Maps6Dir(b.bpffs)); len(ids)+len(names) != 0 {
		t.Errorf("programs %v are called, and maps %v pinned", ids, names)
	}
	for _, h := range attach.CgroupHooks6 {
		if slices.Contains(pins(t, bpffs.LinksDir(b.bpffs)), attach.Site{Ifindex: 0, Hook: h}.Pin()) {
			t.Errorf("%s stays pinned", h.Name)
		}
	}
}

// What somebody else takes away comes back.
func TestIPv6Repair(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	applied(t, d, sample6(b))
	for what, harm := range map[string]func(){
		"calls": func() { nettest.Must(t, d.loaded.Maps[object.ProgramsOfIPv6].Delete(uint32(2))) },
		"route": func() {
			_, prefix, _ := net.ParseCIDR("fd00:10:244::/56")
			nettest.Must(t, netlink.RouteDel(&netlink.Route{Dst: prefix, LinkIndex: b.link(hostdev.HostDevice).Attrs().Index}))
		},
		"socket program": func() {
			nettest.Must(t, d.programs.At[attach.Site{Ifindex: 0, Hook: attach.CgroupHooks6[0]}].(attach.BpfLink).Link.Detach())
		},
		"device": func() { nettest.Must(t, netlink.LinkDel(b.link(hostdev.HostDevice))) },
		"IPv6 switched off on the host device": func() {
			_, err := kernel.DisableIPv6(hostdev.HostDevice)
			nettest.Must(t, err)
		},
	} {
		harm()
		d.check(true)
		if ids, r := d.calledPrograms(t), routes6(t, b); len(ids) != len(object.IPv6Slots) || len(r) != 2 || len(d.programs.Broken()) != 0 || len(d.Status().Problems) != 0 {
			t.Errorf("%s: programs %v, routes %v, broken %v, problems %v", what, ids, r, d.programs.Broken(), d.Status().Problems)
		}
	}
	repairs := d.Status().Repairs
	if repairs["program"] < 2 || repairs["route"] < 2 || repairs["device"] < 1 {
		t.Errorf("repairs %v", repairs)
	}
}

// A node that begins to forward goes on taking router advertisements where it did, and nowhere
// else.
func TestRouterAdvertisementsGoOn(t *testing.T) {
	b := newBench(t).withNode6()
	set := func(v int, name, setting string) {
		t.Helper()
		_, err := kernel.SetSysctl(v, hostdev.Sysctl6(name, setting)...)
		nettest.Must(t, err)
	}
	set(0, "all", "forwarding")
	t.Cleanup(func() { set(0, "all", "forwarding") })
	b.veth("other", "otherp") // no uplink: it does not match the pattern
	b.veth("deaf", "deafp")
	set(1, "eth0", "accept_ra")
	set(1, "other", "accept_ra")
	set(0, "deaf", "accept_ra")
	pod := b.ifaces[0].Name
	set(1, pod, "accept_ra")
	d := b.open(t)
	s := sample6(b)
	applied(t, d, without6(s))
	if v, err := kernel.Sysctl(hostdev.Sysctl6("all", "forwarding")...); err != nil || v != 0 {
		t.Errorf("a node without IPv6 forwards it: %d, %v", v, err)
	}
	applied(t, d, s)
	for name, want := range map[string]int{"eth0": 2, "other": 2, "deaf": 0, pod: 1, hostdev.HostDevice: 0, hostdev.TunnelDevice: 0} {
		accepts, err1 := kernel.Sysctl(hostdev.Sysctl6(name, "accept_ra")...)
		forwards, err2 := kernel.Sysctl(hostdev.Sysctl6(name, "forwarding")...)
		if err1 != nil || err2 != nil || accepts != want || forwards != 1 {
			t.Errorf("%s: accept_ra %d, want %d, forwarding %d (%v, %v)", name, accepts, want, forwards, err1, err2)
		}
	}
	// Where forwarding was on already and advertisements are not taken, nothing changes; one that
	// somebody set apart forwards.
	set(1, "other", "accept_ra")
	set(1, "eth0", "accept_ra")
	set(0, "eth0", "forwarding")
	d.check(true)
	for name, want := range map[string]int{"other": 1, "eth0": 2} {
		accepts, err1 := kernel.Sysctl(hostdev.Sysctl6(name, "accept_ra")...)
		forwards, err2 := kernel.Sysctl(hostdev.Sysctl6(name, "forwarding")...)
		if err1 != nil || err2 != nil || accepts != want || forwards != 1 {
			t.Errorf("later %s: accept_ra %d, want %d, forwarding %d (%v, %v)", name, accepts, want, forwards, err1, err2)
		}
	}
}

// Flows of IPv6 survive another layout as those of IPv4 do.
func TestIPv6FlowsSurviveAnotherLayout(t *testing.T) {
	b := newBench(t).withNode6()
	dir := filepath.Join(b.bpffs, "1", bpffs.Folders[bpffs.IPv6])
	nettest.Must(t, kernel.EnsureBPFFS("", dir))
	spec, err := abi.LoadWeir6()
	nettest.Must(t, err)
	old := func(name string) *ebpf.Map {
		ms := spec.Maps[name].Copy()
		ms.MaxEntries = min(ms.MaxEntries, 1024)
		m, err := ebpf.NewMap(ms)
		nettest.Must(t, err)
		t.Cleanup(func() { m.Close() })
		nettest.Must(t, m.Pin(filepath.Join(dir, name)))
		return m
	}
	flows, settings := old("weir_flows"), old("weir_settings")
	var key abi.Weir6FlowKey
	key.Proto, key.Sport = 6, 7
	nettest.Must(t, flows.Put(key, abi.Weir6FlowValue{Epoch: 41, Seen: 77, Ifindex: 6}))
	nettest.Must(t, settings.Put(uint32(0), abi.Weir6Settings{Epoch: 41}))
	d := b.open(t)
	applied(t, d, sample6(b))
	var got abi.FlowValue[abi.Ip6]
	if err := flowtable.LookUpFlow(d.six.Maps["weir_flows"], abi.FlowKey[abi.Ip6]{Proto: key.Proto, Sport: key.Sport}, &got); err != nil || got.Epoch != 41 || got.Seen != 77 || got.Ifindex != 6 {
		t.Errorf("the flow is %+v, %v", got, err)
	}
	if epoch := epochOf6(t, d); epoch <= 41 {
		t.Errorf("the epoch is %d: flows of epoch 41 would not be judged anew", epoch)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
		t.Errorf("the old maps are left: %v", err)
	}
}

// Each family's maps are counted by themselves, also those that only the sweep counts, and no
// longer when it is gone.
func TestPressureOfBothFamilies(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	s := sample6(b)
	applied(t, d, s)
	clock, err := flowtable.NewKernelClock()
	nettest.Must(t, err)
	defer clock.Close()
	now, err := clock.Now()
	nettest.Must(t, err)
	addFlow(t, d.six.Maps["weir_flows"], abi.FlowKey[abi.Ip6]{Proto: 6}, abi.FlowValue[abi.Ip6]{Seen: now, State: 1})
	addFlow(t, d.six.Maps["weir_flows"], abi.FlowKey[abi.Ip6]{Proto: 58}, abi.FlowValue[abi.Ip6]{Seen: now - 100000})
	all := map[*object.Collection]sweep{}
	round := func() {
		t.Helper()
		d.keepTableGCs(all, d.both())
		for l, list := range all {
			for _, s := range list.tables {
				if !d.gcRound(t.Context(), l, s, clock) {
					t.Fatal("the sweep ended")
				}
			}
		}
	}
	round()
	entries := map[[2]string]int{}
	for _, p := range d.Pressures() {
		entries[[2]string{p.Map, p.Family}] = p.Entries
	}
	for key, want := range map[[2]string]int{
		{"weir_flows", bpffs.IPv4}: 0, {"weir_flows", bpffs.IPv6}: 1, {"weir_policy", ""}: s.Policy.Len(),
		{"weir_addrs", bpffs.IPv4}: needed(s, false)["weir_addrs"], {"weir_addrs", bpffs.IPv6}: needed(s, true)["weir_addrs"],
		{"weir_backends", bpffs.IPv4}: d.tables.Families()[0].Entries()["backends"],
	} {
		if got, ok := entries[key]; !ok || got != want {
			t.Errorf("%v: %d entries, %t, want %d", key, got, ok, want)
		}
	}
	applied(t, d, without6(s))
	round()
	if len(all) != 1 {
		t.Errorf("tables of %d families are swept", len(all))
	}
	for _, p := range d.Pressures() {
		if p.Family == bpffs.IPv6 {
			t.Errorf("%s of IPv6 is told of", p.Map)
		}
	}
	d.keepTableGCs(all, nil)
}

// A change of a route of IPv6 makes flows look for their way again, when the node carries it.
func TestIPv6RouteChanges(t *testing.T) {
	b := newBench(t).withNode6()
	d := b.open(t)
	s := sample6(b)
	_, prefix, _ := net.ParseCIDR("fd00:77::/64")
	change := netlink.RouteUpdate{Type: unix.RTM_NEWROUTE, Route: netlink.Route{Dst: prefix, Family: netlink.FAMILY_V6, Table: unix.RT_TABLE_MAIN,
		LinkIndex: b.link("eth0").Attrs().Index}}
	applied(t, d, without6(s))
	if d.noteRoute(change) {
		t.Error("without IPv6 its routes are no matter")
	}
	applied(t, d, s)
	epoch := d.Status().Epoch
	if !d.noteRoute(change) {
		t.Error("a route of IPv6 is no matter")
	}
	d.check(false)
	if now := d.Status().Epoch; now == epoch {
		t.Error("flows do not look again")
	}
	local := change
	local.Table = unix.RT_TABLE_LOCAL
	if d.noteRoute(local) {
		t.Error("an address of the node is a matter of its state")
	}
}

// epochOf6 reads the epoch of IPv6's flows.
func epochOf6(t *testing.T, d instance) uint32 {
	t.Helper()
	var v abi.Settings[abi.Ip6]
	nettest.Must(t, d.six.Maps["weir_settings"].Lookup(new(uint32), unsafe.Pointer(&v)))
	return v.Epoch
}
