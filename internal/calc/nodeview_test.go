// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/nodeview"
)

// TestViewEqualsWhole holds that the state computed from a node's view is the one computed from the
// whole cluster after each of many changes, that a view which followed them is the one that is made
// at once, and that views leave something out.
func TestViewEqualsWhole(t *testing.T) {
	t.Parallel()
	worlds := 60
	if testing.Short() {
		worlds = 10
	}
	var whole, view struct{ pods, policies int }
	for seed := range worlds {
		w := newWorld(uint64(9000 + seed))
		if seed%4 > 0 { // else start from nothing
			w.fill()
		}
		if seed%3 > 0 {
			settle(w.c)
		}
		x, before := nodeview.NewIndex(), model.NewCluster()
		x.Update(changesOf(before, w.c))
		n, at, mirror := x.Add(w.c.Local.Node), w.c.Local.Node, model.NewCluster()
		for step := range 40 {
			before = copyOf(w.c)
			var d model.Dirty
			for range 1 + w.IntN(3) {
				w.change(&d)
			}
			if seed%3 > 0 {
				settle(w.c)
			}
			x.Update(changesOf(before, w.c))
			if at != w.c.Local.Node {
				x.Remove(n)
				n, at, mirror = x.Add(w.c.Local.Node), w.c.Local.Node, model.NewCluster()
			}
			n.SetEndpoints(nodeview.EndpointsOf(&w.c.Local))
			n.Take().Apply(mirror)
			mirror.Settings, mirror.Local = w.c.Settings, w.c.Local
			if d := differing(nodeview.Of(w.c), mirror); len(d) > 0 {
				t.Fatalf("seed %d step %d: the view that followed differs from the one made at once: %s", seed, step, d)
			}
			if step%2 == 0 { // a node that comes gets parts that were made for others
				newcomer(t, x, w.c, fmt.Sprint("n", step/2%3), at)
			}
			got, _ := calculator(seed).Update(mirror, model.AllDirty())
			want, _ := calculator(seed).Update(w.c, model.AllDirty())
			if !nodestate.Equal(got, want) {
				t.Fatalf("seed %d step %d: - from the view, + from the whole\n%s", seed, step, nodestate.Diff(got, want))
			}
			if more := n.Take(); !more.Empty() {
				t.Fatalf("seed %d step %d: there are changes after all were taken: %+v", seed, step, more)
			}
			whole.pods, whole.policies = whole.pods+w.c.Pods.Len(), whole.policies+len(w.c.Policies)
			view.pods, view.policies = view.pods+mirror.Pods.Len(), view.policies+len(mirror.Policies)
		}
	}
	t.Logf("pods %d of %d, policies %d of %d", view.pods, whole.pods, view.policies, whole.policies)
	if view.pods*10 > whole.pods*9 || view.policies*10 > whole.policies*9 {
		t.Errorf("views leave out little: pods %d of %d, policies %d of %d", view.pods, whole.pods, view.policies, whole.policies)
	}
}

// newcomer compares the first view that an index gives to a node with the one made at once.
func newcomer(t *testing.T, x *nodeview.Index, c *model.Cluster, node, there string) {
	t.Helper()
	if node == there {
		return
	}
	n := x.Add(node)
	defer x.Remove(n)
	got, alone := model.NewCluster(), *c
	n.Take().Apply(got)
	alone.Local = model.Local{Node: node}
	if d := differing(nodeview.Of(&alone), got); len(d) > 0 {
		t.Fatalf("the first view of node %s differs from the one made at once: %s", node, d)
	}
}

// settle ends the disputes about addresses of pods: each is in a block of its pod's node, and
// nobody else claims it. Where all is disputed every node needs all pods, and rules decide nothing
// of views.
func settle(c *model.Cluster) {
	c.Reservations = nil
	clear(c.Blocks)
	third := func(a netip.Addr) int {
		if b := a.AsSlice(); a.Is4() {
			return int(b[2]) % 3
		} else {
			return int(b[7]) % 3
		}
	}
	for i := range 3 {
		for _, p := range []netip.Prefix{prefix(fmt.Sprintf("10.1.%d.0/26", i)), prefix(fmt.Sprintf("fd00:1:0:%d::/122", i))} {
			c.Blocks[p] = &model.Block{CIDR: p, Node: fmt.Sprint("n", i)}
		}
	}
	for i, cidr := range []string{"10.1.0.0/23", "10.1.2.0/24", "fd00:1::/63", "fd00:1:0:2::/64"} {
		bits := 26 + i/2*96
		c.Pools[fmt.Sprint("pool", i)] = &model.Pool{Name: fmt.Sprint("pool", i), CIDR: prefix(cidr), BlockBits: bits, Workload: true}
	}
	for name, n := range c.Nodes {
		now := *n
		now.Addrs = slices.DeleteFunc(slices.Clone(n.Addrs), func(a netip.Addr) bool {
			return prefix("10.1.0.0/16").Contains(a) || prefix("fd00:1::/32").Contains(a)
		})
		c.Nodes[name] = &now
	}
	for p := range c.Pods.Clone().All() {
		if len(p.Addrs) == 0 {
			continue
		}
		if node := fmt.Sprint("n", third(p.Addrs[0])); p.Node != node {
			now := *p
			now.Node = node
			c.Pods.Put(&now)
		}
	}
	maps.DeleteFunc(c.Local.Endpoints, func(a netip.Addr, _ *model.LocalEndpoint) bool { return fmt.Sprint("n", third(a)) != c.Local.Node })
}

// copyOf returns a cluster that does not follow c; what is in it is shared.
func copyOf(c *model.Cluster) *model.Cluster {
	out := model.NewCluster()
	changesOf(out, c).Apply(out)
	return out
}

// changesOf returns what leads from one cluster to another.
func changesOf(a, b *model.Cluster) *model.Changes {
	return &model.Changes{
		Namespaces: differs(a.Namespaces, b.Namespaces), Pods: differingPods(a.Pods, b.Pods), Nodes: differs(a.Nodes, b.Nodes),
		Services: differs(a.Services, b.Services), Slices: differs(a.Slices, b.Slices), Policies: differs(a.Policies, b.Policies),
		Staged: differs(a.Staged, b.Staged), Tiers: differs(a.Tiers, b.Tiers), NetworkSets: differs(a.NetworkSets, b.NetworkSets),
		ServiceAccounts: differs(a.ServiceAccounts, b.ServiceAccounts), HostEndpoints: differs(a.HostEndpoints, b.HostEndpoints),
		Pools: differs(a.Pools, b.Pools), Blocks: differs(a.Blocks, b.Blocks), BGPConfigs: differs(a.BGPConfigs, b.BGPConfigs), EgressPolicies: differs(a.EgressPolicies, b.EgressPolicies),
		ServiceCIDRs: b.ServiceCIDRs, ServiceCIDRsChanged: !reflect.DeepEqual(a.ServiceCIDRs, b.ServiceCIDRs),
		Reserved: b.Reservations, ReservedChanged: !reflect.DeepEqual(a.Reservations, b.Reservations),
	}
}

func differs[K comparable, V any](a, b map[K]*V) map[K]*V {
	out := map[K]*V{}
	for k, v := range b {
		if a[k] != v {
			out[k] = v
		}
	}
	for k := range a {
		if b[k] == nil {
			out[k] = nil
		}
	}
	return out
}

func differingPods(a, b *model.PodTable) map[model.Name]*model.Pod {
	out := differs(a.ByName(), b.ByName())
	for n, p := range out {
		if was := a.Get(n); was != nil && p != nil && was.Equal(p) {
			delete(out, n)
		}
	}
	return out
}

// differing says what two clusters differ in.
func differing(a, b *model.Cluster) map[string][]any {
	out := map[string][]any{}
	put := func(name string, keys []any) {
		if len(keys) > 0 {
			out[name] = keys
		}
	}
	put("namespaces", differingKeys(a.Namespaces, b.Namespaces))
	var pods []any
	for n, p := range differingPods(a.Pods, b.Pods) {
		pods = append(pods, n, p)
	}
	put("pods", pods)
	put("nodes", differingKeys(a.Nodes, b.Nodes))
	put("services", differingKeys(a.Services, b.Services))
	put("slices", differingKeys(a.Slices, b.Slices))
	put("policies", differingKeys(a.Policies, b.Policies))
	put("staged", differingKeys(a.Staged, b.Staged))
	put("tiers", differingKeys(a.Tiers, b.Tiers))
	put("sets", differingKeys(a.NetworkSets, b.NetworkSets))
	put("accounts", differingKeys(a.ServiceAccounts, b.ServiceAccounts))
	put("hosts", differingKeys(a.HostEndpoints, b.HostEndpoints))
	put("pools", differingKeys(a.Pools, b.Pools))
	put("blocks", differingKeys(a.Blocks, b.Blocks))
	put("egress policies", differingKeys(a.EgressPolicies, b.EgressPolicies))
	if !reflect.DeepEqual([][]netip.Prefix{a.ServiceCIDRs, a.Reservations}, [][]netip.Prefix{b.ServiceCIDRs, b.Reservations}) {
		put("ranges", []any{a.ServiceCIDRs, b.ServiceCIDRs, a.Reservations, b.Reservations})
	}
	return out
}

func differingKeys[K comparable, V any](a, b map[K]*V) (out []any) {
	all := maps.Clone(a)
	maps.Copy(all, b)
	for k := range all {
		if !reflect.DeepEqual(a[k], b[k]) {
			out = append(out, k, a[k], b[k])
		}
	}
	return out
}

// TestViewHasThePodsThatServicesAreRefusedFor holds that what a Service is refused because of a pod
// of another node is refused by the state of the view, where no rule is about the pod.
func TestViewHasThePodsThatServicesAreRefusedFor(t *testing.T) {
	t.Parallel()
	pod := &model.Pod{Name: model.Name{Namespace: "b", Name: "victim"}, Node: "n1", Addrs: []netip.Addr{addr("10.1.1.7")}}
	web := &model.Pod{Name: model.Name{Namespace: "b", Name: "web"}, Node: "n1", HostNetwork: true, Ports: []model.PodPort{{Protocol: model.ProtocolTCP, Port: 80}}}
	service := func(external ...netip.Addr) *model.Service {
		return &model.Service{Name: model.Name{Namespace: "a", Name: "s"}, Created: 9, ClusterIPs: []netip.Addr{addr("10.96.0.9")}, ExternalIPs: external,
			Ports: []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}}}
	}
	for name, change := range map[string]func(*model.Cluster){
		"an endpoint of another namespace": func(c *model.Cluster) {
			n := model.Name{Namespace: "a", Name: "s-1"}
			c.Slices[n] = &model.EndpointSlice{Name: n, Service: service().Name, Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}},
				Endpoints: []model.ServiceEndpoint{{Addrs: pod.Addrs, Ready: true, Serving: true}}}
			c.Services[service().Name] = service()
		},
		"a pod's address":          func(c *model.Cluster) { c.Services[service().Name] = service(pod.Addrs...) },
		"a port of a pod's node":   func(c *model.Cluster) { c.Services[service().Name] = service(addr("172.31.1.11")) },
		"a port of another node's": func(c *model.Cluster) { c.Services[service().Name] = service(addr("172.31.1.12")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newWorld(1).c
			settle(c)
			for i := range 3 {
				n := &model.Node{Name: fmt.Sprint("n", i), Addrs: []netip.Addr{addr(fmt.Sprintf("172.31.1.%d", 10+i))}}
				c.Nodes[n.Name] = n
			}
			c.Namespaces["a"], c.Namespaces["b"] = &model.Namespace{Name: "a"}, &model.Namespace{Name: "b"}
			c.Pods.Put(pod)
			c.Pods.Put(web)
			change(c)
			of := nodeview.Of(c)
			got, want := Calc(of), Calc(c)
			if !nodestate.Equal(got, want) {
				t.Errorf("- from the view, + from the whole\n%s", nodestate.Diff(got, want))
			}
			if matters := name != "a port of another node's"; matters == (of.Pods.Len() == 0) {
				t.Errorf("the view has %d pods of another node", of.Pods.Len())
			} else if matters && want.Refused.Len() == 0 {
				t.Error("nothing is refused: the pod does not matter")
			}
		})
	}
}
