// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

func podAt(name, node string, addrs ...string) *model.Pod {
	p := &model.Pod{Name: model.Name{Namespace: "ns", Name: name}, Node: node}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, addr(a))
	}
	return p
}

func inventory() Inventory {
	return Inventory{
		Pools:  []model.Pool{poolOf("p", "10.0.0.0/16", 26)},
		Blocks: []Block{{CIDR: cidr("10.0.0.0/26"), Node: "n1", Pool: "p"}, {CIDR: cidr("10.0.0.64/26"), Node: "n2", Pool: "p"}},
		Pods:   []*model.Pod{podAt("a", "n1", "10.0.0.1"), podAt("b", "n2", "10.0.0.65")},
		Nodes:  map[string]bool{"n1": true, "n2": true},
	}
}

func TestShowAndCheck(t *testing.T) {
	inv := inventory()
	if got := Check(inv); len(got) != 0 {
		t.Error("a clean cluster:", got)
	}
	u := Show(inv)
	if fmt.Sprint(u.Pools) != "[{p 10.0.0.0/16 65536 2 2}]" || len(u.Blocks) != 2 || u.Blocks[1].InUse != 1 || u.Blocks[1].Size != 64 {
		t.Errorf("%+v", u)
	}
	host := podAt("host", "n1", "172.31.1.8")
	host.HostNetwork = true
	done := podAt("done", "n1", "10.0.0.1")
	done.Finished = true
	inv.Pods = append(inv.Pods, host, done)
	inv.AddRecords("n1", NodeRecords{Records: []Record{{Address: addr("10.0.0.1"), ContainerID: "c", Namespace: "ns", Pod: "a", Node: "n1"}}})
	if got := Check(inv); len(got) != 0 {
		t.Error("a clean node:", got)
	}
	for name, c := range map[string]struct {
		change func(*Inventory)
		want   []string
	}{
		"address twice":     {func(i *Inventory) { i.Pods = append(i.Pods, podAt("z", "n1", "10.0.0.1")) }, []string{"pod ns/a", "10.0.0.1", "[pod ns/z]"}},
		"record of another": {func(i *Inventory) { i.Records["n1"][0].Pod = "other" }, []string{"10.0.0.1", "ns/other"}},
		"leaked record": {func(i *Inventory) {
			i.Records["n1"] = append(i.Records["n1"], Record{Address: addr("10.0.0.9"), ContainerID: "x"})
		}, []string{"10.0.0.9", "run on node n1: weir ipam release 10.0.0.9"}},
		"no record":          {func(i *Inventory) { i.Records["n1"] = nil }, []string{"Pod ns/a", "node n1 has no record"}},
		"in no block":        {func(i *Inventory) { i.Pods = append(i.Pods, podAt("z", "n2", "10.0.9.9")) }, []string{"Pod ns/z", "10.0.9.9", "in no block"}},
		"in another's block": {func(i *Inventory) { i.Pods = append(i.Pods, podAt("z", "n2", "10.0.0.2")) }, []string{"Pod ns/z", "of node n1"}},
		"node gone":          {func(i *Inventory) { delete(i.Nodes, "n2"); i.Pods = i.Pods[:1] }, []string{"IPAMBlock 10-0-0-64-26", "weir ipam release 10.0.0.64/26"}},
		"pool gone":          {func(i *Inventory) { i.Pools = nil }, []string{"IPAMBlock 10-0-0-0-26", "no IPPool"}},
		"blocks overlap": {func(i *Inventory) {
			i.Blocks = append(i.Blocks, Block{CIDR: cidr("10.0.0.0/27"), Node: "n2", Pool: "p"})
		}, []string{"IPAMBlock 10-0-0-0-27", "overlaps"}},
		"no record elsewhere": {func(i *Inventory) { i.AddRecords("n2", NodeRecords{}) }, []string{"Pod ns/b", "node n2 has no record"}},
		"records of two nodes": {func(i *Inventory) {
			i.AddRecords("n2", NodeRecords{Records: []Record{{Address: addr("10.0.0.1"), ContainerID: "d", Namespace: "ns", Pod: "b"}, {Address: addr("10.0.0.65"), ContainerID: "d", Namespace: "ns", Pod: "b"}}})
		}, []string{"10.0.0.1", "[pod ns/b]"}},
		"broken file elsewhere": {func(i *Inventory) {
			i.AddRecords("n2", NodeRecords{Broken: []Problem{{Object: "file /x/10.0.0.65", Message: "torn"}}})
		}, []string{"[node n2, file /x/10.0.0.65: torn"}},
		"broken file": {func(i *Inventory) { i.Broken = []Problem{{Object: "file /x/10.0.0.7", Message: "torn"}} }, []string{"/x/10.0.0.7"}},
	} {
		inv := inventory()
		inv.AddRecords("n1", NodeRecords{Records: []Record{{Address: addr("10.0.0.1"), ContainerID: "c", Namespace: "ns", Pod: "a", Node: "n1"}}})
		c.change(&inv)
		text := fmt.Sprint(Check(inv))
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s lacks %q", name, text, want)
			}
		}
	}
	inv = inventory()
	inv.Reservations = []netip.Prefix{cidr("10.0.0.2/32")}
	inv.Pods = append(inv.Pods, podAt("fixed", "n2", "10.0.0.2"))
	if got := Check(inv); len(got) != 0 {
		t.Error("a reserved fixed address:", got)
	}
}

func TestReleaseBlock(t *testing.T) {
	api := newAPI()
	inv := inventory()
	for _, b := range inv.Blocks {
		api.blocks[b.CIDR] = b
	}
	of := func(node string) Blocks { return nodeBlocks{api, node} }
	release := func() error { return ReleaseBlock(context.Background(), inv, cidr("10.0.0.64/26"), of) }
	if err := release(); err == nil || !strings.Contains(err.Error(), "n2, which exists") {
		t.Error(err)
	}
	delete(inv.Nodes, "n2")
	if err := release(); err == nil || !strings.Contains(err.Error(), "pod ns/b") {
		t.Error(err)
	}
	inv.Pods = inv.Pods[:1]
	if got := Leaked(inv); len(got) != 1 || got[0].Node != "n2" {
		t.Error(got)
	}
	if err := release(); err != nil || len(api.blocks) != 1 {
		t.Error(err, api.blocks)
	}
	inv.Nodes = nil
	if got := Leaked(inv); got != nil {
		t.Error("blocks leaked though the nodes are not known:", got)
	}
}

func TestReadDirAndReleaseFile(t *testing.T) {
	dir := t.TempDir()
	a := openTest(t, dir, "n1", newAPI(), Options{})
	a.Configure(testConfig)
	got := mustAlloc(t, a, reqFor("c"))
	os.WriteFile(filepath.Join(dir, "10.0.0.200"), nil, 0o600)
	os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600)
	has, err := ReadDir(dir)
	if err != nil || len(has.Records) != 1 || has.Records[0].Address != got || len(has.Broken) != 2 {
		t.Fatal(has, err)
	}
	if r, err := ReleaseFile(dir, got); err != nil || r.ContainerID != "c" {
		t.Error(r, err)
	}
	if _, err := ReleaseFile(dir, addr("10.0.0.200")); err != nil {
		t.Error(err)
	}
	if _, err := ReleaseFile(dir, got); !errors.Is(err, errNoFile) {
		t.Error(err)
	}
	a.rescan()
	if len(a.Records()) != 0 {
		t.Error(a.Records())
	}
	if _, err := ReadDir(dir + "/none"); err == nil {
		t.Error("a missing directory is read")
	}
}

// TestFileOfAnAddressInUse: removing a file does not free an address whose interface exists.
func TestFileOfAnAddressInUse(t *testing.T) {
	dir := t.TempDir()
	a := openTest(t, dir, "n1", newAPI(), Options{})
	a.Configure(testConfig)
	used, free := mustAlloc(t, a, reqFor("used")), mustAlloc(t, a, reqFor("free"))
	a.UseInterfaces(func(r Record) bool { return r.ContainerID == "used" }, nil)
	for _, addr := range []netip.Addr{used, free} {
		if _, err := ReleaseFile(dir, addr); err != nil {
			t.Fatal(err)
		}
	}
	a.rescan()
	if rs := a.Records(); len(rs) != 1 || rs[0].Address != used {
		t.Error(rs)
	}
	if has, err := ReadDir(dir); err != nil || len(has.Records) != 1 || has.Records[0].ContainerID != "used" {
		t.Error(has, err)
	}
}

// TestNodeOfIPv6Alone: such a node misses no pool of IPv4, and one of IPv6 where none gives.
func TestNodeOfIPv6Alone(t *testing.T) {
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	four, six := poolOf("four", "10.0.0.0/24", 26), poolOf("six", "fd00::/120", 122)
	for _, c := range []struct {
		pools  []model.Pool
		noIPv4 bool
		want   string // of what pods get none
	}{
		{[]model.Pool{six}, true, ""}, {[]model.Pool{six}, false, "IPv4"}, {[]model.Pool{four}, true, "IPv6"}, {[]model.Pool{four}, false, ""}, {[]model.Pool{four, six}, true, ""},
	} {
		a.Configure(Config{Pools: c.pools, NoIPv4: c.noIPv4})
		text := fmt.Sprint(a.Problems())
		if missing := strings.Contains(text, "none gives "+c.want+" addresses to node n1"); missing != (c.want != "") || strings.Contains(text, "none gives") != missing {
			t.Errorf("%d pools, without IPv4 %t: %s, want it to miss %q", len(c.pools), c.noIPv4, text, c.want)
		}
	}
}

func TestShortage(t *testing.T) {
	a := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	off := poolOf("off", "10.0.0.0/30", 30)
	off.Disabled = true
	a.Configure(Config{Pools: []model.Pool{off}})
	if text := fmt.Sprint(a.Problems()); !strings.Contains(text, "off is disabled") {
		t.Error(text)
	}
	a.Configure(Config{Pools: []model.Pool{poolOf("small", "10.0.0.0/30", 30)}})
	for i := range 4 {
		mustAlloc(t, a, reqFor(fmt.Sprint(i)))
	}
	a.Maintain(context.Background())
	if text := fmt.Sprint(a.Problems()); !strings.Contains(text, "IPPool small spec.cidr: no free address") {
		t.Error(text)
	}
	a.Configure(Config{Pools: []model.Pool{poolOf("small", "10.0.0.0/30", 30), poolOf("more", "10.1.0.0/24", 26)}})
	a.Maintain(context.Background())
	if p := a.Problems(); len(p) != 0 {
		t.Error(p)
	}
	// A block that is reserved as a whole is not worth claiming.
	b := openTest(t, t.TempDir(), "n1", newAPI(), Options{})
	b.Configure(Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}, Reservations: []netip.Prefix{cidr("10.0.0.0/25"), cidr("10.0.0.128/26")}})
	b.Maintain(context.Background())
	if len(b.own) != 1 || b.own[cidr("10.0.0.192/26")] == nil {
		t.Error(b.own)
	}
}

func TestAPIBlocks(t *testing.T) {
	ctx := context.Background()
	d := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{weirv1.IPAMBlocks: "IPAMBlockList"})
	a, b := NewAPIBlocks(d, "n1"), NewAPIBlocks(d, "n2")
	for _, c := range []string{"10.0.0.0/26", "fd00:10::40/122"} {
		if err := a.Claim(ctx, cidr(c), "p"); err != nil {
			t.Fatal(err)
		}
		if err := b.Claim(ctx, cidr(c), "p"); !errors.Is(err, ErrTaken) {
			t.Error("claimed twice:", err)
		}
	}
	list, err := b.List(ctx)
	if err != nil || len(list) != 2 || !reflect.DeepEqual(list[0], Block{CIDR: cidr("10.0.0.0/26"), Node: "n1", Pool: "p"}) {
		t.Error(list, err)
	}
	if _, err := d.Resource(weirv1.IPAMBlocks).Get(ctx, "10-0-0-0-26", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := b.Release(ctx, cidr("10.0.0.0/26")); err == nil || !strings.Contains(err.Error(), "n1") {
		t.Error("a block was released by another node:", err)
	}
	for range 2 {
		if err := a.Release(ctx, cidr("10.0.0.0/26")); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Resource(weirv1.IPAMBlocks).Get(ctx, "10-0-0-0-26", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	al, err := Open(t.TempDir(), "n2", b, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	al.Configure(testConfig)
	mustAlloc(t, al, reqFor("c"))
}
