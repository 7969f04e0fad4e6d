// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	ipamv3 "github.com/weir-net/weir/api/ipam/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/ipam"
)

// allocations are a node's, without files.
type allocations struct {
	blocks   []netip.Prefix
	records  []ipam.Record
	held     map[netip.Addr]string
	released []netip.Addr
}

func (a *allocations) OwnBlocks() []netip.Prefix { return a.blocks }
func (a *allocations) Records() []ipam.Record    { return slices.Clone(a.records) }
func (a *allocations) ReleaseUnused(addr netip.Addr) (string, error) {
	if why := a.held[addr]; why != "" {
		return why, nil
	}
	a.released = append(a.released, addr)
	a.records = slices.DeleteFunc(a.records, func(r ipam.Record) bool { return r.Address == addr })
	return "", nil
}

type world struct {
	*Mirror
	t      *testing.T
	api    *dynamicfake.FakeDynamicClient
	from   *allocations
	writes int
	clock  time.Time
	rv     int
}

var (
	block4 = netip.MustParsePrefix("10.244.3.0/28")
	block6 = netip.MustParsePrefix("fd00:10:244::/124")
)

func newWorld(t *testing.T) *world {
	w := &world{t: t, clock: time.Unix(1e9, 0), from: &allocations{blocks: []netip.Prefix{block4, block6}, held: map[netip.Addr]string{}}}
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	w.api = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{nodes: "NodeList", weirv1.IPAMBlocks: "IPAMBlockList",
		ipamv3.IPAMBlocks: "IPAMBlockList", ipamv3.IPAMHandles: "IPAMHandleList", ipamv3.BlockAffinities: "BlockAffinityList"})
	count := func(a clienttesting.Action) (bool, runtime.Object, error) { // each write has a version of its own
		if a.GetResource().Group == ipamv3.GroupVersion.Group {
			w.writes++
		}
		w.rv++
		if o, is := a.(interface{ GetObject() runtime.Object }); is {
			o.GetObject().(*unstructured.Unstructured).SetResourceVersion(fmt.Sprint(w.rv))
		}
		return false, nil, nil
	}
	w.api.PrependReactor("create", "*", count)
	w.api.PrependReactor("update", "*", count)
	n := apitest.Object("v1", "Node", "n1", nil)
	n.SetUID("u-node")
	if _, err := w.api.Resource(nodes).Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, b := range w.from.blocks {
		o := apitest.Object("weir.dev/v1", "IPAMBlock", weirv1.BlockName(b), map[string]any{"cidr": b.String(), "node": "n1"})
		o.SetUID("u-block")
		if _, err := w.api.Resource(weirv1.IPAMBlocks).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.again()
	return w
}

// again is another process of the node.
func (w *world) again() {
	w.Mirror = New(w.api, "n1", w.from, slog.New(slog.DiscardHandler))
	w.now = func() time.Time { return w.clock }
	for _, b := range w.from.blocks { // nobody watches: tests say what was seen
		w.follow[b] = func() {}
	}
}

// pod gives an address to a pod.
func (w *world) pod(name, addr string, ago time.Duration) {
	w.from.records = append(w.from.records, ipam.Record{Address: netip.MustParseAddr(addr), ContainerID: "c-" + name, Namespace: "shop", Pod: name, Time: w.clock.Add(-ago)})
}

// settle takes steps until nothing is written any more, and returns how many writes that took.
func (w *world) settle() int {
	w.t.Helper()
	first := w.writes
	for range 50 {
		before := w.writes
		if err := w.step(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		if w.writes > before+1 {
			w.t.Fatalf("%d writes in one step", w.writes-before)
		}
		if w.writes == before {
			return w.writes - first
		}
	}
	w.t.Fatal("it writes for ever")
	return 0
}

func (w *world) block(b netip.Prefix) (*unstructured.Unstructured, ipamv3.IPAMBlockSpec) {
	w.t.Helper()
	u, err := w.api.Resource(ipamv3.IPAMBlocks).Get(w.t.Context(), clientName(b), metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var o ipamv3.IPAMBlock
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		w.t.Fatal(err)
	}
	return u, o.Spec
}

// take takes addresses out of a block as a client does, which keeps neither owners nor annotations,
// and has the mirror see it.
func (w *world) take(b netip.Prefix, addrs ...string) {
	w.t.Helper()
	u, spec := w.block(b)
	for _, a := range addrs {
		i := position(b, netip.MustParseAddr(a))
		spec.Allocations[i] = nil
		spec.Unallocated = append(spec.Unallocated, i)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Object["spec"] = content
	u.SetOwnerReferences(nil)
	u, err = w.api.Resource(ipamv3.IPAMBlocks).Update(w.t.Context(), u, metav1.UpdateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.note(u)
}

func (w *world) shows(b netip.Prefix, want ...string) {
	w.t.Helper()
	u, spec := w.block(b)
	var got []string
	for a := range allocated(b, &spec) {
		got = append(got, a.String())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("%s shows %v, want %v", b, got, want)
	}
	if owners := u.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != "u-block" {
		w.t.Errorf("%s belongs to %v", b, owners)
	}
	if size := len(spec.Allocations); size != 16 || len(spec.Unallocated) != size-len(want) {
		w.t.Errorf("%s has %d addresses, %d of them free", b, size, len(spec.Unallocated))
	}
}

// What a node has is shown with one write a step, and nothing is written while nothing changes.
func TestShows(t *testing.T) {
	w := newWorld(t)
	w.pod("web", "10.244.3.5", time.Hour)
	w.pod("web", "fd00:10:244::5", time.Hour)
	w.pod("db", "10.244.3.15", time.Hour)
	if n := w.settle(); n != 5 {
		t.Errorf("%d writes for a handle, two affinities and two blocks", n)
	}
	w.shows(block4, "10.244.3.15", "10.244.3.5")
	w.shows(block6, "fd00:10:244::5")
	_, spec := w.block(block4)
	of := spec.Attributes[*spec.Allocations[5]]
	if *spec.Affinity != "host:n1" || *of.HandleID != "weir-node.n1" || of.Secondary["pod"] != "web" || of.Secondary["namespace"] != "shop" || of.Secondary["node"] != "n1" || of.Secondary["timestamp"] == "" {
		t.Errorf("%v has %+v", *spec.Affinity, of)
	}
	handle, err := w.api.Resource(ipamv3.IPAMHandles).Get(t.Context(), "weir-node.n1", metav1.GetOptions{})
	if err != nil || handle.GetOwnerReferences()[0].UID != "u-node" {
		t.Fatal(handle, err)
	}
	if counts, _, _ := unstructured.NestedMap(handle.Object, "spec", "block"); fmt.Sprint(counts) != "map[10.244.3.0/28:2 fd00:10:244::/124:1]" {
		t.Errorf("the handle counts %v", counts)
	}
	if n := w.settle(); n != 0 {
		t.Errorf("%d writes while nothing changes", n)
	}
	w.again()
	if n := w.settle(); n != 0 {
		t.Errorf("%d writes by another process", n)
	}
	w.pod("new", "10.244.3.6", 0)
	if n := w.settle(); n != 2 {
		t.Errorf("%d writes for one pod", n)
	}
	w.shows(block4, "10.244.3.15", "10.244.3.5", "10.244.3.6")
}

// An allocation that a client takes out is released, unless somebody has the address; it is shown
// again then, and is a problem of the node for a while.
func TestHostileReleases(t *testing.T) {
	hostile.Record(t, "a user has the address of a running pod released by a change of what clients are shown", hostile.Operator, hostile.ControlPlane, hostile.Both)
	w := newWorld(t)
	w.pod("gone", "10.244.3.5", time.Hour)
	w.pod("runs", "10.244.3.6", time.Hour)
	w.from.held[netip.MustParseAddr("10.244.3.6")] = "pod shop/runs has it by its status"
	w.settle()
	w.pod("young", "10.244.3.7", 0) // not shown yet: it is not asked about
	w.take(block4, "10.244.3.5", "10.244.3.6")
	if fmt.Sprint(w.from.released) != "[10.244.3.5]" {
		t.Fatalf("released %v", w.from.released)
	}
	problems := w.Problems()
	if len(problems) != 1 || problems[0].Value != "10.244.3.6" {
		t.Errorf("problems %v", problems)
	}
	w.settle()
	w.shows(block4, "10.244.3.6", "10.244.3.7")
	w.clock = w.clock.Add(time.Hour)
	if problems := w.Problems(); len(problems) > 0 {
		t.Errorf("an hour later: %v", problems)
	}
	// What is seen late, of before the last write, asks for nothing.
	late, _ := w.block(block4)
	w.pod("next", "10.244.3.8", time.Hour)
	w.settle()
	w.note(late)
	w.shows(block4, "10.244.3.6", "10.244.3.7", "10.244.3.8")
	if len(w.from.released) != 1 {
		t.Errorf("released %v", w.from.released)
	}
	w.take(block4, "10.244.3.8") // not late
	w.settle()
	// Whoever removes the object does not ask for anything.
	if err := w.api.Resource(ipamv3.IPAMBlocks).Delete(t.Context(), clientName(block4), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.note(&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": clientName(block4)}}})
	w.settle()
	w.shows(block4, "10.244.3.6", "10.244.3.7")
	if len(w.from.released) != 2 {
		t.Errorf("released %v", w.from.released)
	}
}

// What was asked for while no agent ran counts for what the mirror had to show, and not for what
// came later or is young.
func TestReleasesOfBefore(t *testing.T) {
	w := newWorld(t)
	w.pod("old", "10.244.3.5", time.Hour)
	w.settle()
	w.clock = w.clock.Add(time.Second)
	w.pod("later", "10.244.3.6", 0)
	w.take(block4, "10.244.3.5") // by the process of before, which does not get to see it
	w.from.released, w.from.records = nil, nil
	w.clock = w.clock.Add(10 * time.Minute)
	w.pod("old", "10.244.3.5", time.Hour+10*time.Minute+time.Second)
	w.pod("later", "10.244.3.6", 10*time.Minute)
	w.again()
	w.settle()
	if fmt.Sprint(w.from.released) != "[10.244.3.5]" {
		t.Errorf("released %v", w.from.released)
	}
	w.shows(block4, "10.244.3.6")
}

func TestPositions(t *testing.T) {
	t.Parallel()
	for _, b := range []netip.Prefix{block4, block6, netip.MustParsePrefix("10.0.0.255/32"), netip.MustParsePrefix("10.1.255.192/26")} {
		for i := range 1 << (b.Addr().BitLen() - b.Bits()) {
			if a := at(b, i); !b.Contains(a) || position(b, a) != i {
				t.Fatalf("%s at %d of %s", a, i, b)
			}
		}
	}
	if got := clientName(block6); got != "fd00-10-244---124" {
		t.Errorf("clients look for %s", got)
	}
}
