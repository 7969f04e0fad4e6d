// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/model/modeltest"
)

// BenchmarkManyPolicies measures what it costs that a cluster of 100,000 pods on 1,000 nodes gets
// 10,000 policies more, in batches of different sizes, and to take what changed for all nodes once
// in the end.
func BenchmarkManyPolicies(b *testing.B) {
	for _, batch := range []int{20, 1000, 10_000} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			var update, take time.Duration
			taken := 0
			for range b.N {
				b.StopTimer()
				c := modeltest.Fleet(1000, 100, 200)
				for _, p := range c.Pods.ByName() {
					now := *p
					now.ServiceAccount = "default" // which nobody has made
					c.Pods.Put(&now)
				}
				modeltest.AddPolicies(c, 2000, 1)
				x, nodes := followed(c)
				had := maps.Clone(c.Policies)
				modeltest.AddPolicies(c, 12_000, 2)
				more := slices.Collect(maps.Values(c.Policies))
				more = slices.DeleteFunc(more, func(p *model.Policy) bool { return had[p.ID()] != nil })
				b.StartTimer()
				began := time.Now()
				for part := range slices.Chunk(more, batch) {
					ch := &model.Changes{Policies: map[model.PolicyID]*model.Policy{}}
					for _, p := range part {
						ch.Policies[p.ID()] = p
					}
					x.Update(ch)
				}
				update += time.Since(began)
				began = time.Now()
				for _, n := range nodes {
					taken += len(n.Take().Policies)
				}
				take += time.Since(began)
			}
			b.ReportMetric(update.Seconds()/float64(b.N), "s/update")
			b.ReportMetric(take.Seconds()/float64(b.N), "s/take")
			b.ReportMetric(float64(taken)/float64(b.N)/1000, "policies/node")
		})
	}
}
