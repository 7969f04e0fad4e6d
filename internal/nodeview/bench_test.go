// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// addPolicies adds NetworkPolicies of ten rules each: half of their peers are pods of the policy's
// own namespace, 40 % all pods of some namespaces (1 to 5 % of them), 10 % networks.
func addPolicies(c *model.Cluster, policies int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	spaces := len(c.Namespaces)
	for i := range policies {
		ns := fmt.Sprint("ns", i%spaces)
		p := &model.Policy{Kind: model.KindNetworkPolicy, Name: name(ns, fmt.Sprint("p", i)), Tier: model.TierDefault, AppliesIngress: true,
			Subject: model.Selector{Namespace: ns, Pods: requires("app", fmt.Sprint("app", r.IntN(5)))}}
		for range 10 {
			rule := model.Rule{Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 8080, Last: 8080}}}
			switch k := r.IntN(10); {
			case k < 5:
				rule.Peers = []model.Peer{{Pods: &model.Selector{Namespace: ns, Pods: requires("app", fmt.Sprint("app", r.IntN(5)))}}}
			case k < 9:
				in := model.Requirement{Key: "kubernetes.io/metadata.name", Op: model.In}
				for range spaces/100 + r.IntN(spaces*4/100+1) {
					in.Values = append(in.Values, fmt.Sprint("ns", r.IntN(spaces)))
				}
				rule.Peers = []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{Requirements: []model.Requirement{in}}}}}
			default:
				rule.Peers = []model.Peer{{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(r.IntN(256)), 0}), 24)}}
			}
			p.Ingress = append(p.Ingress, rule)
		}
		c.Policies[p.ID()] = p
	}
	for n, ns := range c.Namespaces {
		ns.Labels["kubernetes.io/metadata.name"] = n
	}
}

// BenchmarkIndex measures an index of 100,000 pods on 1,000 nodes with 2,000 policies, all of whose
// nodes follow it: how long it takes to know all, to give every node its part, and a change of a
// pod; and the heap that it takes.
func BenchmarkIndex(b *testing.B) {
	c := fleet(1000, 100, 200)
	addPolicies(c, 2000, 1)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	figures := map[string]float64{} // reported in the end: Loop forgets those of before
	began := time.Now()
	x := NewIndex()
	x.Update(c.Everything())
	figures["s/load"] = time.Since(began).Seconds()
	began = time.Now()
	nodes := make([]*Node, 0, len(c.Nodes))
	for n := range c.Nodes {
		nodes = append(nodes, x.Add(n))
	}
	figures["s/subscribe"] = time.Since(began).Seconds()
	began = time.Now()
	distinct := map[*Part]struct{}{}
	for _, n := range nodes {
		parts, own := n.Snapshot()
		for _, p := range parts {
			distinct[p] = struct{}{}
			figures["pods/node"] += float64(len(p.Changes().Pods)) / float64(len(nodes))
		}
		figures["policies/node"] += float64(len(own.Policies)) / float64(len(nodes))
	}
	figures["s/snapshots"], figures["parts"] = time.Since(began).Seconds(), float64(len(distinct))
	runtime.GC()
	runtime.ReadMemStats(&after)
	figures["MiB"] = float64(after.HeapAlloc-before.HeapAlloc) / (1 << 20)
	figures["groups"], figures["questions"] = float64(len(x.groups)), float64(len(x.questions))
	all := make([]*model.Pod, 0, c.Pods.Len())
	for _, p := range c.Pods.ByName() {
		all = append(all, p)
	}
	reached := 0
	for i := 0; b.Loop(); i++ {
		now := *all[i%len(all)]
		now.UID = fmt.Sprint("again ", i)
		x.Update(&model.Changes{Pods: map[model.Name]*model.Pod{now.Name: &now}})
		for _, n := range nodes {
			if !n.Take().Empty() {
				reached++
			}
		}
	}
	b.ReportMetric(float64(reached)/float64(b.N), "nodes/change")
	for unit, v := range figures {
		b.ReportMetric(v, unit)
	}
}
