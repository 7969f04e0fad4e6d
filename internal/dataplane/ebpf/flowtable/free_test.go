// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
)

// TestHostileTranslatedFlows: flows to an API server that a wrong frontend led elsewhere are
// forgotten, whatever became of their sockets, and no others are.
func TestHostileTranslatedFlows(t *testing.T) {
	hostile.Record(t, "a wrong frontend's flows to an API server outlive it, and its sockets, on every port of a node", hostile.Tenant, hostile.EBPF, hostile.Both)
	nettest.NeedRoot(t, "pinning maps")
	root := filepath.Join(mountBPF(t), "weir")
	t.Run("IPv4", func(t *testing.T) {
		testTranslatedFlows[abi.Ip4](t, root, bpffs.MapsDir(root), "192.0.2.8", "10.244.1.2")
	})
	t.Run("IPv6", func(t *testing.T) {
		testTranslatedFlows[abi.Ip6](t, root, bpffs.Maps6Dir(root), "2001:db8::8", "fd00:10:244::1:2")
	})
	if n, err := Free(filepath.Join(root, "elsewhere"), []netip.AddrPort{netip.MustParseAddrPort("192.0.2.8:6443")}); n != 0 || err != nil {
		t.Errorf("without maps: %d, %v", n, err)
	}
}

func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func testTranslatedFlows[A abi.Address](t *testing.T, root, dir, server, pod string) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	at := abi.ToAddr[A](netip.MustParseAddr(server))
	elsewhere := abi.ToAddr[A](netip.MustParseAddr(pod))
	var k abi.FlowKey[A]
	var v abi.FlowValue[A]
	var maps []*ebpf.Map
	for _, name := range []string{"weir_flows", "weir_flows_new"} {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.LRUHash, KeySize: uint32(unsafe.Sizeof(k)), ValueSize: uint32(unsafe.Sizeof(v)), MaxEntries: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		if err := m.Pin(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		maps = append(maps, m)
	}
	type flow struct {
		name  string
		k     abi.FlowKey[A]
		v     abi.FlowValue[A]
		stays bool
	}
	key := func(port, dport uint16, proto uint8) abi.FlowKey[A] {
		return abi.FlowKey[A]{Saddr: elsewhere, Daddr: at, Sport: abi.Be16(port), Dport: abi.Be16(dport), Proto: proto}
	}
	value := func(addr A, dport uint16, flags uint8) abi.FlowValue[A] {
		return abi.FlowValue[A]{Saddr: elsewhere, Daddr: addr, Dport: abi.Be16(dport), Flags: flags}
	}
	for _, f := range []flow{
		{"led to a pod", key(1, 6443, unix.IPPROTO_TCP), value(elsewhere, 8080, 0), false},
		{"led to another port", key(2, 6443, unix.IPPROTO_TCP), value(at, 8080, 0), false},
		{"not translated", key(3, 6443, unix.IPPROTO_TCP), value(at, 6443, 0), true},
		{"to another port", key(4, 443, unix.IPPROTO_TCP), value(elsewhere, 8080, 0), true},
		{"UDP", key(5, 6443, unix.IPPROTO_UDP), value(elsewhere, 8080, 0), true},
		{"an answer", key(6, 6443, unix.IPPROTO_TCP), value(elsewhere, 8080, abi.FlowReply), true},
	} {
		for _, m := range maps {
			if _, err := AddFlow(m, f.k, f.v); err != nil {
				t.Fatal(err)
			}
		}
		n, err := Free(root, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(server), 6443)})
		want := len(maps)
		if f.stays {
			want = 0
		}
		if n != want || err != nil {
			t.Errorf("%s: forgot %d, error %v, want %d", f.name, n, err, want)
		}
		for _, m := range maps {
			if err := LookUpFlow(m, f.k, &v); errors.Is(err, ebpf.ErrKeyNotExist) == f.stays {
				t.Errorf("%s: %v", f.name, err)
			}
		}
	}
}
