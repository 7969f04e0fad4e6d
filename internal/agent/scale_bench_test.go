// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/weir-net/weir/internal/config"

	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch"
)

func requires(key string, values ...string) *model.LabelSelector {
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: key, Op: model.In, Values: values}}}
}

// fleet is a cluster as that of make bench-cluster.
func fleet(nodes, podsEach, spaces, policies, services int, uid func() string) *model.Cluster {
	r := rand.New(rand.NewPCG(1, 0))
	c := model.NewCluster()
	c.Pools["pool"] = &model.Pool{Name: "pool", CIDR: netip.MustParsePrefix("10.0.0.0/8"), BlockBits: 25, Workload: true}
	c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}
	for i := range spaces {
		ns := fmt.Sprint("ns-", i)
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: map[string]string{"kubernetes.io/metadata.name": ns, "team": fmt.Sprint("t", i%7)}}
	}
	in := map[string][]*model.Pod{}
	for i := range nodes {
		n := &model.Node{Name: fmt.Sprintf("node-%05d", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}, Created: 1700000000, UID: uid()}
		c.Nodes[n.Name] = n
		at := netip.AddrFrom4([4]byte{10, byte(i >> 9), byte(i >> 1), byte(i&1) << 7})
		c.Blocks[netip.PrefixFrom(at, 25)] = &model.Block{CIDR: netip.PrefixFrom(at, 25), Node: n.Name, Created: 1700000000, UID: uid()}
		for j := range podsEach {
			at = at.Next()
			k := i*podsEach + j
			ns, app := fmt.Sprint("ns-", r.IntN(spaces)), r.IntN(5)
			p := &model.Pod{Name: model.Name{Namespace: ns, Name: fmt.Sprintf("app%d-7c9f8d6b5-%05x", app, k)}, Node: n.Name, Addrs: []netip.Addr{at}, UID: uid(), Created: 1700000000 + int64(k),
				ServiceAccount: "default", Labels: map[string]string{"app": fmt.Sprint("app", app), "pod-template-hash": "7c9f8d6b5"},
				Ports: []model.PodPort{{Protocol: model.ProtocolTCP, Port: 8080}}}
			c.Pods.Put(p)
			in[ns] = append(in[ns], p)
		}
	}
	for i := range policies {
		ns := fmt.Sprint("ns-", i%spaces)
		p := &model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: ns, Name: fmt.Sprint("p", i)}, Tier: model.TierDefault, AppliesIngress: true,
			Subject: model.Selector{Namespace: ns, Pods: requires("app", fmt.Sprint("app", r.IntN(5)))}}
		for range 10 {
			rule := model.Rule{Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 8080, Last: 8080}}}
			switch k := r.IntN(10); {
			case k < 5:
				rule.Peers = []model.Peer{{Pods: &model.Selector{Namespace: ns, Pods: requires("app", fmt.Sprint("app", r.IntN(5)))}}}
			case k < 9:
				in := model.Requirement{Key: "kubernetes.io/metadata.name", Op: model.In}
				for range spaces/100 + r.IntN(spaces*4/100+1) {
					in.Values = append(in.Values, fmt.Sprint("ns-", r.IntN(spaces)))
				}
				rule.Peers = []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{Requirements: []model.Requirement{in}}}}}
			default:
				rule.Peers = []model.Peer{{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(r.IntN(256)), 0}), 24)}}
			}
			p.Ingress = append(p.Ingress, rule)
		}
		c.Policies[p.ID()] = p
	}
	for i := range services {
		n := model.Name{Namespace: fmt.Sprint("ns-", i%spaces), Name: fmt.Sprint("svc-", i)}
		c.Services[n] = &model.Service{Name: n, Created: 1700000000, UID: uid(), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}}}
		sl := &model.EndpointSlice{Name: model.Name{Namespace: n.Namespace, Name: n.Name + "-abcde"}, Service: n, Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}}}
		for len(sl.Endpoints) < 60 {
			p := in[n.Namespace][r.IntN(len(in[n.Namespace]))]
			sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: p.Addrs, Node: p.Node, Ready: true, Serving: true})
		}
		c.Slices[sl.Name] = sl
	}
	return c
}

// sent returns what a fan-out sends to a node of such a cluster, and the node's endpoints.
func sent(b *testing.B, node string) (messages [][]byte, own []model.LocalEndpoint) {
	b.Helper()
	u := 0
	uid := func() string { u++; return fmt.Sprintf("%08x-1111-4222-8333-%012x", u*7919, u) }
	c := fleet(1000, 100, 200, 2000, 1000, uid)
	x := nodeview.NewIndex()
	x.Update(c.Everything())
	for p := range c.Pods.All() {
		if p.Node == node {
			own = append(own, model.LocalEndpoint{Pod: p.Name, ContainerID: p.UID, Interface: fmt.Sprint("cali", len(own)), IfIndex: 10 + len(own), Addrs: p.Addrs})
		}
	}
	parts, rest := x.Add(node).Snapshot()
	all := []*model.Changes{rest}
	for _, p := range parts {
		all = append(all, p.Changes())
	}
	for _, ch := range all {
		got, err := wire.Encoder{}.Marshal(ch)
		if err != nil {
			b.Fatal(err)
		}
		messages = append(messages, got...)
	}
	return messages, own
}

// BenchmarkClusterMemory measures the heap of what an agent keeps of a cluster of 1,000 nodes.
func BenchmarkClusterMemory(b *testing.B) {
	const node = "node-00007"
	messages, own := sent(b, node)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := &wire.Decoder{Expression: func(t string) error { _, err := selector.Parse(t); return err }}
	batch := &watch.Batch{Full: true}
	for _, m := range messages {
		out, err := d.Decode(m)
		if err != nil {
			b.Fatal(err)
		}
		batch.Merge(&watch.Batch{Changes: *out.Changes})
	}
	batch.Full = true
	d = nil
	a := newCluster(node, nil, config.New(node, nil, nil), slog.New(slog.DiscardHandler))
	a.restore(own)
	a.merge(batch)
	batch = nil
	state, _ := a.calc.Update(a.model, a.dirty)
	a.dirty = model.Dirty{}
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
	b.ReportMetric(float64(a.model.Pods.Len()), "pods")
	runtime.KeepAlive(state)
	runtime.KeepAlive(a)
}
