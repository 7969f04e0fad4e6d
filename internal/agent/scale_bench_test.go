// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/model/modeltest"

	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch"
)

// sent returns what a fan-out sends to a node of a cluster of 1,000, and the node's endpoints.
func sent(b *testing.B, node string) (messages [][]byte, own []model.LocalEndpoint) {
	b.Helper()
	c := modeltest.Fleet(1000, 100, 200)
	modeltest.AddPolicies(c, 2000, 1)
	modeltest.AddServices(c, 1000, 60, 1)
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
	const node = "node7"
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
	b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/(1<<20), "MiB-in-use") // what lies unused between objects included
	b.ReportMetric(float64(a.model.Pods.Len()), "pods")
	runtime.KeepAlive(state)
	runtime.KeepAlive(a)
}
