// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"runtime/metrics"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/gctuner"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// node is what an agent has of policy: a calculator, a loop that applies its states, and the maps.
type node struct {
	c       *model.Cluster
	k       *calc.Calculator
	maps    driver
	loop    *dataplane.Loop
	garbage *gctuner.Collector
}

// driver are maps as a driver.
type driver struct{ *offline.Node }

// Apply implements dataplane.Driver.
func (o driver) Apply(_ context.Context, s *nodestate.State, changed nodestate.Keys) error {
	return o.ApplyChanged(s, changed)
}

// Close implements dataplane.Driver.
func (o driver) Close() error {
	o.Node.Close()
	return nil
}

func newNode(b *testing.B, c *model.Cluster) *node {
	b.Helper()
	maps, err := offline.Load(offline.Options{})
	if err != nil {
		b.Fatal(err)
	}
	n := &node{c: c, k: calc.New(), maps: driver{maps}, garbage: gctuner.New()}
	n.loop = dataplane.NewLoop(n.maps, slog.New(slog.DiscardHandler))
	n.loop.Settled = n.garbage.Settled
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- n.loop.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := errors.Join(<-over, n.maps.Close()); err != nil {
			b.Error(err)
		}
	})
	n.update(b, model.AllDirty())
	return n
}

// update computes the state anew and has the loop write what changed. It returns how long each
// took, and the entries written.
func (n *node) update(b *testing.B, d model.Dirty) (computed, written time.Duration, writes uint64) {
	b.Helper()
	before := n.maps.Writes()
	begin := time.Now()
	s, keys := n.k.Update(n.c, d)
	computed = time.Since(begin)
	if keys.Tables != 0 {
		if err := n.loop.Wait(b.Context(), n.loop.Submit(s, keys), nil); err != nil {
			b.Fatal(err)
		}
	}
	return computed, time.Since(begin) - computed, n.maps.Writes() - before
}

// cpu is what the process has used of it, garbage collection and the kernel's work for it included.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rest is how long nothing happens between two changes of the second series.
const rest = 50 * time.Millisecond

// measure makes a series of changes back to back, and then one with rests between, as clusters have
// them. It reports milliseconds: of all of a change the median and the 99th percentile in each
// series; and of the first series the medians of its parts, the mean CPU time, which others on the
// machine disturb less, and the most that the heap came to.
func (n *node) measure(b *testing.B, change func(i int) model.Dirty) {
	ctx, stop := context.WithCancel(b.Context())
	over := make(chan struct{})
	go func() { defer close(over); _ = n.garbage.Run(ctx) }()
	defer func() { stop(); <-over }()
	var all, rested, calcs, maps []time.Duration
	var writes []uint64
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	var most uint64
	used := cpu()
	for i := 0; b.Loop(); i++ {
		c, m, w := n.update(b, change(i))
		all, calcs, maps, writes = append(all, c+m), append(calcs, c), append(maps, m), append(writes, w)
		metrics.Read(heap)
		most = max(most, heap[0].Value.Uint64())
	}
	used = cpu() - used
	for i := len(all); i < 2*len(all); i++ {
		time.Sleep(rest)
		c, m, _ := n.update(b, change(i))
		rested = append(rested, c+m)
	}
	at := func(of []time.Duration, q float64) float64 {
		slices.Sort(of)
		return of[int(q*float64(len(of)-1))].Seconds() * 1000
	}
	slices.Sort(writes)
	b.ReportMetric(at(all, .5), "p50-ms")
	b.ReportMetric(at(all, .99), "p99-ms")
	b.ReportMetric(at(rested, .5), "rested-p50-ms")
	b.ReportMetric(at(rested, .99), "rested-p99-ms")
	b.ReportMetric(at(calcs, .5), "calc-ms")
	b.ReportMetric(at(maps, .5), "maps-ms")
	b.ReportMetric(float64(writes[len(writes)/2]), "writes")
	b.ReportMetric(used.Seconds()*1000/float64(len(all)), "cpu-ms")
	b.ReportMetric(float64(most)/(1<<20), "heap-MiB")
}

// BenchmarkChange changes one thing of policy with 2,000 policies of ten rules, 100,000 pods, and
// 110 pods on the node.
func BenchmarkChange(b *testing.B) {
	elsewhere, here := model.Name{Namespace: "ns-100", Name: "pod-500-0"}, model.Name{Namespace: "ns-7", Name: "pod-0-7"}
	for _, x := range []struct {
		name   string
		holes  bool
		change func(c *model.Cluster) func(i int) model.Dirty
	}{
		{"label of a pod elsewhere", false, func(c *model.Cluster) func(int) model.Dirty { return relabel(c, elsewhere) }},
		{"pod elsewhere comes and goes", false, func(c *model.Cluster) func(int) model.Dirty { return comeAndGo(c, elsewhere) }},
		{"label of a pod here", false, func(c *model.Cluster) func(int) model.Dirty { return relabel(c, here) }},
		{"label of a pod here, holes in one network", true, func(c *model.Cluster) func(int) model.Dirty { return relabel(c, here) }},
		{"pod here comes and goes", false, startAndStop},
		{"rule of a policy that binds pods here", false, func(c *model.Cluster) func(int) model.Dirty { return rule(c, "ns-7", "policy-1407") }},
		{"rule of a policy that binds none here", false, func(c *model.Cluster) func(int) model.Dirty { return rule(c, "ns-150", "policy-150") }},
		{"label of a namespace that rules ask for", false, func(c *model.Cluster) func(int) model.Dirty { return namespace(c, "team") }},
		{"label of a namespace that no rule asks for", false, func(c *model.Cluster) func(int) model.Dirty { return namespace(c, "other") }},
		{"label of a service account", false, account},
	} {
		b.Run(x.name, func(b *testing.B) {
			c := scaled(2000, x.holes)
			newNode(b, c).measure(b, x.change(c))
		})
	}
}

func relabel(c *model.Cluster, name model.Name) func(int) model.Dirty {
	return func(i int) (d model.Dirty) {
		p := c.Pods.Get(name)
		d.AddPod(name, c.Pods.Get(name))
		p.Labels = map[string]string{"app": fmt.Sprint("app-", i%2), "version": "v1"}
		c.Pods.Put(p)
		return d
	}
}

// namespace changes a label of a namespace of 500 pods.
func namespace(c *model.Cluster, key string) func(int) model.Dirty {
	return func(i int) (d model.Dirty) {
		n := *c.Namespaces["ns-100"]
		n.Labels = maps.Clone(n.Labels)
		n.Labels[key] = fmt.Sprint("team-", i%2)
		c.Namespaces[n.Name] = &n
		d.Add(model.KindNamespaces)
		return d
	}
}

// account changes a label of a service account of 500 pods, which a rule of a policy that binds a
// pod here asks for.
func account(c *model.Cluster) func(int) model.Dirty {
	name := model.Name{Namespace: "ns-100", Name: "default"}
	p := *c.Policies[model.PolicyID{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: "ns-7", Name: "policy-1407"}}]
	p.Ingress = append(slices.Clone(p.Ingress), model.Rule{Other: &model.Entity{Selector: "pcsa.role == 'team-1'"}})
	c.Policies[p.ID()] = &p
	return func(i int) (d model.Dirty) {
		c.ServiceAccounts[name] = &model.ServiceAccount{Name: name, Labels: map[string]string{"role": fmt.Sprint("team-", i%2)}}
		d.Add(model.KindServiceAccounts)
		if i == 0 {
			d.Add(model.KindPolicies)
		}
		return d
	}
}

func comeAndGo(c *model.Cluster, like model.Name) func(int) model.Dirty {
	p := *c.Pods.Get(like)
	p.Name.Name = "new"
	p.Addrs = []netip.Addr{addr("10.3.232.250")}
	return func(i int) (d model.Dirty) {
		d.AddPod(p.Name, c.Pods.Get(p.Name))
		if i%2 == 0 {
			c.Pods.Put(&p)
		} else {
			c.Pods.Delete(p.Name)
		}
		return d
	}
}

// startAndStop makes a pod on this node like one that is there, and takes it away.
func startAndStop(c *model.Cluster) func(int) model.Dirty {
	a := addr("10.0.0.250")
	p := *c.Pods.Get(model.Name{Namespace: "ns-7", Name: "pod-0-7"})
	p.Name.Name, p.Addrs = "new", []netip.Addr{a}
	return func(i int) (d model.Dirty) {
		d.AddPod(p.Name, c.Pods.Get(p.Name))
		if i%2 == 0 {
			c.Pods.Put(&p)
			c.Local.Endpoints[a] = &model.LocalEndpoint{Pod: p.Name, IfIndex: 500, Addrs: p.Addrs}
		} else {
			c.Pods.Delete(p.Name)
			delete(c.Local.Endpoints, a)
		}
		d.Add(model.KindLocal)
		return d
	}
}

func rule(c *model.Cluster, namespace, name string) func(int) model.Dirty {
	id := model.PolicyID{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: namespace, Name: name}}
	return func(i int) (d model.Dirty) {
		p := *c.Policies[id]
		p.Ingress = slices.Clone(p.Ingress)
		p.Ingress[0].Ports = []model.PortRange{tcp(uint16(7000+i%2), uint16(7000+i%2))}
		c.Policies[id] = &p
		d.Add(model.KindPolicies)
		return d
	}
}

// BenchmarkWide has 15,000 rules, each about a network of its own, on one endpoint: all of it, and
// one rule's change.
func BenchmarkWide(b *testing.B) {
	c := scaled(0, false)
	p := wide(c, 15000)
	b.Run("all", func(b *testing.B) {
		n := newNode(b, c)
		n.measure(b, func(i int) (d model.Dirty) {
			delete(c.Policies, p.ID())
			if i%2 == 0 {
				c.Policies[p.ID()] = p
			}
			d.Add(model.KindPolicies)
			return d
		})
	})
	c.Policies[p.ID()] = p
	b.Run("one rule changes", func(b *testing.B) {
		n := newNode(b, c)
		n.measure(b, func(i int) (d model.Dirty) {
			q := *p
			q.Ingress = slices.Clone(p.Ingress)
			q.Ingress[7000].Ports = []model.PortRange{tcp(uint16(60000+i%2), uint16(60000+i%2))}
			c.Policies[p.ID()] = &q
			d.Add(model.KindPolicies)
			return d
		})
	})
	b.Run("one rule's network changes", func(b *testing.B) {
		n := newNode(b, c)
		n.measure(b, func(i int) (d model.Dirty) {
			q := *p
			q.Ingress = slices.Clone(p.Ingress)
			q.Ingress[7000].Peers = []model.Peer{{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32)}}
			c.Policies[p.ID()] = &q
			d.Add(model.KindPolicies)
			return d
		})
	})
}

// BenchmarkMemory says what a cluster of 100,000 pods and 2,000 policies takes, and what one node's
// calculator adds to it.
func BenchmarkMemory(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	for b.Loop() {
		start := heap()
		c := scaled(2000, false)
		cluster := heap()
		k := calc.New()
		s, _ := k.Update(c, model.AllDirty())
		b.ReportMetric(cluster-start, "cluster-MiB")
		b.ReportMetric(heap()-cluster, "node-MiB")
		b.ReportMetric(float64(s.Policy.Len()), "verdicts")
		runtime.KeepAlive(k)
		runtime.KeepAlive(c)
	}
}
