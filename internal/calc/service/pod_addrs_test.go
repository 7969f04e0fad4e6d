// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// TestOnlyAddressesMove holds that Services are computed again for pods whose addresses change, and
// not for those whose labels do: with a Service of many pods these are most changes.
func TestOnlyAddressesMove(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	c := model.NewCluster()
	c.Local.Node = "a"
	c.Nodes["b"] = &model.Node{Name: "b", Addrs: []netip.Addr{addr("172.16.0.2")}}
	c.Pools["pool"] = &model.Pool{Name: "pool", CIDR: netip.MustParsePrefix("10.0.0.0/8"), BlockBits: 24, Workload: true}
	block := netip.MustParsePrefix("10.0.0.0/24")
	c.Blocks[block] = &model.Block{CIDR: block, Node: "b"}
	name := model.Name{Namespace: "ns", Name: "pod"}
	var owners cluster.OwnershipIndex
	p := newPodAddrs()
	for i, change := range []struct {
		what  string
		apply func(*model.Pod)
		moved int
	}{
		{"a new pod", func(*model.Pod) {}, 1},
		{"a label", func(p *model.Pod) { p.Labels = map[string]string{"app": "b"} }, 0},
		{"an address", func(p *model.Pod) { p.Addrs = []netip.Addr{addr("10.0.0.6")} }, 2},
		{"another pod of that name", func(p *model.Pod) { p.UID = "2" }, 2},
		{"the end of its containers", func(p *model.Pod) { p.Finished = true }, 1},
	} {
		next := &model.Pod{Name: name, Node: "b", Addrs: []netip.Addr{addr("10.0.0.5")}, UID: "1"}
		was := c.Pods.Get(name)
		if was != nil {
			*next = *was
		}
		change.apply(next)
		c.Pods.Put(next)
		dirty := model.Dirty{}
		if i == 0 {
			dirty = model.AllDirty()
		}
		dirty.AddPod(name, was)
		moved, _ := p.update(cluster.NewView(c, owners.Update(c, &dirty)), &dirty)
		if len(moved) != change.moved {
			t.Errorf("%s: addresses %v moved, want %d", change.what, moved, change.moved)
		}
	}
	if p.has(addr("10.0.0.6")) {
		t.Error("the address of a pod that is gone is still its own")
	}
}
