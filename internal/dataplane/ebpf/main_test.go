// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/conformance"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
)

// TestMain runs the tests in a network and a mount namespace of their own, which end with the
// process.
func TestMain(m *testing.M) { nettest.Main(m, syscall.CLONE_NEWNS, nil) }

func needRoot(t testing.TB) {
	t.Helper()
	nettest.NeedRoot(t, "loading programs")
}

// bench is a node to be: pins, a control group, an uplink and four pod interfaces. Tests share the
// network namespace, so they do not run in parallel.
type bench struct {
	t      testing.TB
	bpffs  string
	cgroup string
	ifaces []conformance.Interface
	edit   func(*Options)
}

func newBench(t testing.TB) *bench {
	needRoot(t)
	b := &bench{t: t}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	b.bpffs = filepath.Join(dir, "weir")
	root, err := kernel.CgroupV2()
	if err != nil {
		t.Fatal(err)
	}
	b.cgroup = filepath.Join(root, "weir-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(b.cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(b.cgroup) })
	b.veth("eth0", "eth0p")
	for i := range 4 {
		b.ifaces = append(b.ifaces, b.veth(fmt.Sprintf("cali%d", i), fmt.Sprintf("pod%d", i)))
	}
	nettest.Must(t, netlink.AddrAdd(b.link("eth0"), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 31, 1, 207), Mask: net.CIDRMask(24, 32)}}))
	t.Cleanup(func() {
		for _, name := range []string{hostdev.HostDevice, hostdev.TunnelDevice} {
			if err := hostdev.RemoveDevice(name); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

func (b *bench) link(name string) netlink.Link {
	b.t.Helper()
	l, err := netlink.LinkByName(name)
	nettest.Must(b.t, err)
	return l
}

func (b *bench) veth(name, peer string) conformance.Interface {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	nettest.Must(b.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}))
	l := b.link(name)
	b.t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			netlink.LinkDel(l)
		}
	})
	nettest.Must(b.t, netlink.LinkSetUp(l))
	nettest.Must(b.t, netlink.LinkSetUp(b.link(peer)))
	return conformance.Interface{Name: name, Index: l.Attrs().Index}
}

func (b *bench) Interfaces() []conformance.Interface { return b.ifaces }

func (b *bench) Open(t *testing.T) conformance.Instance { return b.open(t) }

func (b *bench) options(t testing.TB) Options {
	return Options{
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
		BPFFS:  b.bpffs, Cgroup: b.cgroup, SetRetval: true, NoTCX: kernel.Lacks(kernel.FeatureTCX),
		Sizes: map[string]uint32{"weir_flows": 1024, "weir_flows_new": 1024, "weir_affinity": 1024, "weir_sockets": 1024},
	}
}

func (b *bench) open(t testing.TB) instance {
	t.Helper()
	o := b.options(t)
	if b.edit != nil {
		b.edit(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatalf("opening the driver: %+v", err)
	}
	t.Cleanup(func() { d.Close() })
	return instance{d}
}

type instance struct{ *Driver }

func (i instance) Writes() uint64 { return i.Status().Writes }

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// addFlow writes an entry of a flow map.
func addFlow[A abi.Address](t testing.TB, m *ebpf.Map, k abi.FlowKey[A], v abi.FlowValue[A]) {
	t.Helper()
	put, err := flowtable.AddFlow(m, k, v)
	nettest.Must(t, err)
	if !put {
		t.Fatalf("there is a flow %+v", k)
	}
}
