// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestAttachesToEverythingAndOnlyThat(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	st := d.Status()
	if !slices.Equal(st.Uplinks, []string{"eth0", "eth0p"}) || st.Endpoints != 4 || !d.programs.Has(attach.Site{Hook: attach.CgroupHooks[0]}) || !st.Tunnel || len(st.Problems) != 0 {
		t.Errorf("status %+v", st)
	}
	if want := 2*4 + 2*2 + 2 + len(attach.CgroupHooks); len(d.programs.At) != want {
		t.Errorf("%d programs attached, want %d", len(d.programs.At), want)
	}
	entries, err := os.ReadDir(bpffs.LinksDir(b.bpffs))
	nettest.Must(t, err)
	if len(entries) != len(d.programs.At) {
		t.Errorf("%d links pinned for %d programs", len(entries), len(d.programs.At))
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
	nettest.Must(t, d.Close())
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
	nettest.Must(t, d.Enforced(ep))
	for _, h := range []attach.Hook{attach.FromWorkload, attach.ToWorkload} {
		if d.programs.At[attach.Site{Ifindex: ep.IfIndex, Hook: h}].Pinned() {
			t.Errorf("%s began with a link", h.Name)
		}
	}
	// Somebody removes the qdisc.
	nettest.Must(t, netlink.QdiscDel(attach.ClsactQdisc(ep.IfIndex)))
	if err := d.Enforced(ep); err == nil {
		t.Error("enforced without a filter")
	}
	d.check(false)
	nettest.Must(t, d.Enforced(ep))
	if d.Status().Repairs["program"] != 2 {
		t.Errorf("repairs %v", d.Status().Repairs)
	}
	d.attached = time.Now().Add(-2 * backstopAfter) // the qdisc was removed
	for range 2 * len(b.ifaces) {
		d.check(false)
	}
	nettest.Must(t, d.Enforced(ep))
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

// Where nothing has come into the folder of pins for a while, and nothing has gone, it is not
// looked at; what comes or goes then is noticed.
func TestChecksPinsAfterQuiet(t *testing.T) {
	b := newBench(t)
	d := b.open(t)
	applied(t, d, sample(b))
	dir := bpffs.LinksDir(b.bpffs)
	pins := func() (names []string) {
		entries, err := os.ReadDir(dir)
		nettest.Must(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	want := pins()
	for s, at := range d.programs.At {
		if !at.Pinned() {
			t.Skipf("this kernel has no links for interfaces: %s is a filter", s)
		}
	}
	if len(want) != len(d.programs.At) {
		t.Fatalf("%d pins of %d programs: %v", len(want), len(d.programs.At), want)
	}
	for _, harm := range []func(){
		func() { nettest.Must(t, os.Remove(filepath.Join(dir, "cgroup-connect4"))) },
		func() {
			nettest.Must(t, os.Remove(filepath.Join(dir, attach.Site{Ifindex: b.ifaces[0].Index, Hook: attach.ToWorkload}.Pin())))
		},
		func() {
			stray, err := d.programs.Prog["to_uplink"].Clone()
			nettest.Must(t, err)
			defer stray.Close()
			nettest.Must(t, stray.Pin(filepath.Join(dir, "9999-to_uplink")))
		},
	} {
		long := time.Now().Add(-time.Hour)
		nettest.Must(t, os.Chtimes(dir, long, long))
		for range 2 {
			d.check(false)
		}
		harm()
		if slices.Equal(pins(), want) {
			t.Fatal("nothing was changed")
		}
		d.check(false)
		if now := pins(); !slices.Equal(now, want) {
			t.Errorf("pins %v, want %v", now, want)
		}
	}
}

// tablesAlone are those of the suite that are about tables alone, which are written alike whatever
// programs are attached by. Others attach, take over and detach.
var tablesAlone = []string{"what is applied is what is there", "the same state again writes nothing", "a restart with another state writes only differences"}

// A kernel without tcx: the suite with filters on all interfaces, without tablesAlone unless
// WEIR_MATRIX=full asks for them.
func TestConformanceWithoutTCX(t *testing.T) {
	needRoot(t)
	conformance.Run(t, func(t *testing.T) conformance.Bench {
		_, name, _ := strings.Cut(t.Name(), "/")
		if os.Getenv("WEIR_MATRIX") != "full" && slices.Contains(tablesAlone, strings.ReplaceAll(name, "_", " ")) {
			t.Skip("played by TestConformance")
		}
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
		nettest.Must(t, d.Close())
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
	nettest.Must(t, d.Close())
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
	nettest.Must(t, netlink.LinkDel(b.link(b.ifaces[0].Name)))
	d.check(true)
	if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
		t.Errorf("apply with a vanished interface: %v", err)
	}
	if st := d.Status(); !slices.Equal(slices.Compact(slices.Sorted(maps.Values(d.absent))), []string{b.ifaces[0].Name}) || st.Endpoints != 3 {
		t.Errorf("status %+v", st)
	}
}

// What repairs take on a machine with nothing else to do follows from checkEvery.
const patience = await.Patience

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
	nettest.Must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Index, Dst: prefix, Scope: netlink.SCOPE_LINK}))
	if !within(patience, func() bool { return d.Status().Epoch > epoch }) {
		t.Error("a new route does not make flows look again")
	}
}
