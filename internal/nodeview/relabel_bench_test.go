// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/model/modeltest"
)

// BenchmarkRelabel measures what a label of a namespace costs that rules look at, with 100,000 pods
// on 1,000 nodes and 2,000 policies, and what it costs to take what changed for all nodes.
func BenchmarkRelabel(b *testing.B) {
	c := modeltest.Fleet(1000, 100, 200)
	modeltest.AddPolicies(c, 2000, 1)
	x, nodes := followed(c)
	var update, take time.Duration
	pods := 0
	b.ResetTimer()
	for i := range b.N {
		name := fmt.Sprint("ns", i%200)
		now := &model.Namespace{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": fmt.Sprint("ns", (i+7)%200)}}
		began := time.Now()
		x.Update(&model.Changes{Namespaces: map[string]*model.Namespace{name: now}})
		update += time.Since(began)
		began = time.Now()
		for _, n := range nodes {
			pods += len(n.Take().Pods)
		}
		take += time.Since(began)
	}
	b.ReportMetric(update.Seconds()*1000/float64(b.N), "ms/update")
	b.ReportMetric(take.Seconds()*1000/float64(b.N), "ms/take")
	b.ReportMetric(float64(pods)/float64(b.N)/1000, "pods/node")
	began := time.Now()
	for _, n := range nodes {
		x.Remove(n)
	}
	b.ReportMetric(time.Since(began).Seconds()*1000, "ms/remove-all")
}

// followed is the index of a cluster all nodes of which have had their snapshot.
func followed(c *model.Cluster) (x *Index, nodes []*Node) {
	x = NewIndex()
	x.Update(c.Everything())
	for n := range c.Nodes {
		nodes = append(nodes, x.Add(n))
	}
	for _, n := range nodes {
		n.Snapshot()
	}
	return x, nodes
}
