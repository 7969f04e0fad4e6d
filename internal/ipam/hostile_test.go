// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// owners is what the API says of addresses.
func owners(of map[netip.Addr]model.Name, node string) func(netip.Addr) (model.Name, string, bool) {
	return func(a netip.Addr) (model.Name, string, bool) {
		n, ok := of[a]
		return n, node, ok
	}
}

func TestHostileRecordsLost(t *testing.T) {
	hostile.Record(t, "the records of a node are lost, and an address that a pod has is given again", hostile.Operator, hostile.ControlPlane, hostile.Both)
	for pool, held := range map[string][2]string{"10.0.0.0/26": {"10.0.0.0", "10.0.0.1"}, "fd00::/122": {"fd00::", "fd00::1"}} {
		p := poolOf("p", pool, cidr(pool).Bits())
		open := func(opt Options) (*Allocator, Request) {
			a := openTest(t, t.TempDir(), "n1", newAPI(), opt)
			a.Configure(Config{Pools: []model.Pool{p}})
			req := reqFor("new")
			req.IPv4, req.IPv6 = p.CIDR.Addr().Is4(), p.CIDR.Addr().Is6()
			return a, req
		}
		a, req := open(Options{Owner: owners(map[netip.Addr]model.Name{addr(held[0]): {Namespace: "ns", Name: "old"}}, "n1")})
		if got := mustAlloc(t, a, req); got != addr(held[1]) {
			t.Errorf("by the API %s is taken, and %s was given", held[0], got)
		}
		a, req = open(Options{Routed: func(a netip.Addr) (string, error) {
			if a == addr(held[0]) {
				return "the kernel sends it to interface cali0 of a pod", nil
			}
			return "", nil
		}})
		if got := mustAlloc(t, a, req); got != addr(held[1]) {
			t.Errorf("by the kernel %s is taken, and %s was given", held[0], got)
		}
		req = reqFor("other")
		req.Fixed = []netip.Addr{addr(held[0])}
		_, err := a.Allocate(context.Background(), req)
		wantError(t, err, true, held[0], "interface cali0 of a pod")
	}
}

func TestHostileOwnersElsewhere(t *testing.T) {
	hostile.Record(t, "a node writes another node's free addresses into the status of its pods, so that none is left to give", hostile.Node, hostile.ControlPlane, hostile.Both)
	all := map[netip.Addr]model.Name{}
	for _, p := range []string{"10.0.0.0/26", "fd00::/122"} {
		for a := cidr(p).Addr(); cidr(p).Contains(a); a = a.Next() {
			all[a] = model.Name{Namespace: "ns", Name: "evil"}
		}
	}
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{Owner: owners(all, "evil")})
	a.Configure(Config{Pools: []model.Pool{poolOf("four", "10.0.0.0/26", 26), poolOf("six", "fd00::/122", 122)}})
	req := reqFor("c")
	req.IPv6 = true
	if rs, err := a.Allocate(context.Background(), req); err != nil || len(rs) != 2 {
		t.Errorf("%v %v", rs, err)
	}
}

func TestHostileFixedAddressOfOthers(t *testing.T) {
	hostile.Record(t, "a pod asks by annotation for the address of a node, a gateway, a Service or a broadcast", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, text := range []string{"10.0.0.9", "fd00::9"} {
		taken := addr(text)
		a := openTest(t, t.TempDir(), "n1", newAPI(), Options{Refuse: func(a netip.Addr) string {
			if a == taken {
				return "it is an address of node n2"
			}
			return ""
		}})
		a.Configure(Config{Pools: []model.Pool{poolOf("four", "10.0.0.0/24", 26), poolOf("six", "fd00::/120", 122)}})
		req := reqFor("c")
		req.Fixed = []netip.Addr{taken}
		_, err := a.Allocate(context.Background(), req)
		wantError(t, err, true, text, "node n2")
		if n := len(a.Records()); n > 0 {
			t.Errorf("%d records are left", n)
		}
	}
}

func TestHostileNamespaceSelector(t *testing.T) {
	shop, other := map[string]string{"team": "shop"}, map[string]string{"team": "other"}
	mine := poolOf("shop", "10.1.0.0/24", 26)
	mine.NamespaceSelector = "team == 'shop'"
	mine6 := poolOf("shop6", "fd01::/120", 122)
	mine6.NamespaceSelector = mine.NamespaceSelector
	open := func() *Allocator {
		a := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
		a.Configure(Config{Pools: []model.Pool{mine, mine6, poolOf("all", "10.0.0.0/24", 26), poolOf("all6", "fd00::/120", 122)}})
		return a
	}
	t.Run("pools", func(t *testing.T) {
		hostile.Record(t, "a pod names a pool by annotation whose namespaceSelector does not match its namespace", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		for v6, name := range map[bool]string{false: "shop", true: "shop6"} {
			req := reqFor("c")
			req.NamespaceLabels, req.IPv4, req.IPv6 = other, !v6, v6
			req.Pools4, req.Pools6, req.From4, req.From6 = []string{name}, []string{name}, "annotation", "annotation"
			_, err := open().Allocate(context.Background(), req)
			wantError(t, err, true, "namespaceSelector", name)
			req.NamespaceLabels = shop
			if got := mustAlloc(t, open(), req); !mine.CIDR.Contains(got) && !mine6.CIDR.Contains(got) {
				t.Errorf("a pod of the namespace got %s", got)
			}
		}
	})
	t.Run("address", func(t *testing.T) {
		hostile.Record(t, "a pod asks by annotation for an address of a pool whose namespaceSelector does not match its namespace", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		for _, text := range []string{"10.1.0.5", "fd01::5"} {
			req := reqFor("c")
			req.NamespaceLabels, req.Fixed = other, []netip.Addr{addr(text)}
			_, err := open().Allocate(context.Background(), req)
			wantError(t, err, true, "namespaceSelector")
		}
	})
	t.Run("unasked", func(t *testing.T) {
		hostile.Record(t, "a pod gets an address of another namespace's pool without asking", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		req := reqFor("c")
		req.NamespaceLabels, req.IPv6 = other, true
		rs, err := open().Allocate(context.Background(), req)
		if err != nil || mine.CIDR.Contains(rs[0].Address) || mine6.CIDR.Contains(rs[1].Address) {
			t.Errorf("%v %v", rs, err)
		}
	})
}

// smallDisk mounts a file system with room for some files.
func smallDisk(t *testing.T) string {
	t.Helper()
	nettest.NeedRoot(t, "mounting a small file system")
	dir := t.TempDir()
	if err := unix.Mount("weir-test", dir, "tmpfs", 0, "size=64k,nr_inodes=12"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestHostileDiskFullAtStart(t *testing.T) {
	hostile.Record(t, "the disk is full when the agent starts, and pods that run lose their addresses", hostile.Operator, hostile.ControlPlane, hostile.Both)
	disk := smallDisk(t)
	var filler []string
	for {
		name := filepath.Join(disk, "fill"+strings.Repeat("x", len(filler)))
		f, err := os.Create(name)
		if err != nil {
			break
		}
		f.Close()
		filler = append(filler, name)
	}
	dir := filepath.Join(disk, "ipam") // there is not even room for the directory
	a := openTest(t, dir, "n1", newAPI(), Options{})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}})
	old := reqFor("old").Record
	old.Address = addr("10.0.0.0")
	if err := a.Restore(old); err != nil {
		t.Fatalf("a pod that runs is not known any more: %v", err)
	}
	if rs := a.Records(); len(rs) != 1 || rs[0].ContainerID != "old" {
		t.Errorf("%v", rs)
	}
	_, err := a.Allocate(context.Background(), reqFor("new"))
	wantError(t, err, false, "no pod gets an address until there is room")
	a.rescan()
	if len(a.Records()) != 1 || len(a.Problems()) == 0 {
		t.Errorf("records %v, problems %v", a.Records(), a.Problems())
	}
	for _, name := range filler {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustAlloc(t, a, reqFor("new")); got != addr("10.0.0.1") {
		t.Errorf("%s was given", got)
	}
	if has, err := ReadDir(dir); err != nil || len(has.Records) != 2 {
		t.Errorf("on disk: %v %v", has, err)
	}
}

func TestHostileDirectoryRemoved(t *testing.T) {
	hostile.Record(t, "the directory of records is removed while the agent runs", hostile.Operator, hostile.ControlPlane, hostile.Both)
	dir := filepath.Join(t.TempDir(), "weir", "ipam")
	a := openTest(t, dir, "n1", newAPI(), Options{InUse: func(Record) bool { return true }})
	a.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}})
	first := mustAlloc(t, a, reqFor("a"))
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
		t.Fatal(err)
	}
	if second := mustAlloc(t, a, reqFor("b")); second == first {
		t.Errorf("%s was given twice", first)
	}
	a.rescan()
	if has, err := ReadDir(dir); err != nil || len(has.Records) != 2 {
		t.Errorf("on disk: %v %v", has, err)
	}
}
