// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/model/modeltest"
)

// BenchmarkIndex measures an index of 100,000 pods on 1,000 nodes with 2,000 policies, all of whose
// nodes follow it: how long it takes to know all, to give every node its part, and a change of a
// pod; and the heap that it takes.
func BenchmarkIndex(b *testing.B) {
	c := modeltest.Fleet(1000, 100, 200)
	modeltest.AddPolicies(c, 2000, 1)
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
	for p := range c.Pods.All() {
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
