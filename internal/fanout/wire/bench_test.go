// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

const (
	namespaces = 200
	labelSets  = 5 // in each
	nodes      = 1000
)

// cluster makes pods as Deployments do.
func cluster(pods int) *model.Changes {
	r := rand.New(rand.NewPCG(7, uint64(pods)))
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "bcdfghjklmnpqrstvwxz2456789"[r.IntN(27)]
		}
		return string(b)
	}
	hashes := map[string]string{}
	ch := &model.Changes{Pods: make(map[model.Name]*model.Pod, pods)}
	for i := range pods {
		ns, set := fmt.Sprintf("team-%03d", i%namespaces), i/namespaces%labelSets
		app := fmt.Sprintf("service-%d", set)
		if hashes[ns+app] == "" {
			hashes[ns+app] = random(10)
		}
		p := &model.Pod{Name: model.Name{Namespace: ns, Name: app + "-" + hashes[ns+app] + "-" + random(5)}, Node: fmt.Sprintf("worker-%04d.cluster.internal", i%nodes),
			ServiceAccount: "default", Labels: map[string]string{"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": ns, "tier": "backend", "version": "v3"},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(64 + i>>16), byte(i >> 8), byte(i)})}, Created: 1_790_000_000 + int64(set*5000+r.IntN(600)), UID: uuid(r),
			Ports: []model.PodPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}, {Name: "metrics", Protocol: model.ProtocolTCP, Port: 9090}}}
		ch.Pods[p.Name] = p
	}
	return ch
}

const many = 100_000

// BenchmarkEncode is a snapshot of 100,000 pods on 1,000 nodes.
func BenchmarkEncode(b *testing.B) {
	ch := cluster(many)
	b.ReportAllocs()
	total, messages := 0, 0
	for b.Loop() {
		total, messages = 0, 0
		for m, err := range (Encoder{}).Messages(ch) {
			if err != nil {
				b.Fatal(err)
			}
			total += len(m)
			messages++
		}
	}
	b.ReportMetric(float64(total)/float64(len(ch.Pods)), "wire-B/pod")
	b.ReportMetric(float64(messages), "messages")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ch.Pods)), "ns/pod")
}

// BenchmarkDecode is the same snapshot where it is received, applied to a cluster; heap is what the
// cluster and the Decoder hold then.
func BenchmarkDecode(b *testing.B) {
	messages, err := Encoder{}.Marshal(cluster(many))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var held float64
	for b.Loop() {
		b.StopTimer()
		before := heap()
		b.StartTimer()
		d := Decoder{Expression: everyExpression}
		c := model.NewCluster()
		for _, m := range messages {
			got, err := d.Decode(m)
			if err != nil {
				b.Fatal(err)
			}
			got.Changes.Apply(c)
		}
		b.StopTimer()
		held = float64(heap()-before) / float64(c.Pods.Len())
		runtime.KeepAlive(c)
		runtime.KeepAlive(&d)
		b.StartTimer()
	}
	b.ReportMetric(held, "heap-B/pod")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/pod")
}

func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
