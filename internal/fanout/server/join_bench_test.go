// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/model/modeltest"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/watch"
)

// sink is a stream that takes everything.
type sink struct {
	stream.Server
	bytes int
}

func (s *sink) Send(r *stream.Response) error { s.bytes += len(r.Changes); return nil }

// BenchmarkJoin measures what an agent that comes from another fan-out, and has everything but what
// changed of one pod since, takes of a fan-out: to find its node's part, and what it lacks. The
// cluster has 100,000 pods on 1,000 nodes, 2,000 policies and 1,000 Services; a pod changes before
// every tenth agent.
func BenchmarkJoin(b *testing.B) {
	c := modeltest.Fleet(1000, 100, 200)
	modeltest.AddPolicies(c, 2000, 1)
	modeltest.AddServices(c, 1000, 60, 1)
	s := New(Config{Log: slog.New(slog.DiscardHandler), Status: func() watch.Status { return watch.Status{} }})
	s.Update(context.Background(), &watch.Batch{Full: true, Changes: *c.Everything()})
	join := func(node string, held digest.Held) (*follower, *due) {
		f, err := s.add(context.Background(), peerauth.Peer{Node: node, PodUID: node}, netip.Addr{}, "", "", nil, held)
		if err != nil {
			b.Fatal(err)
		}
		d, err := s.take(f)
		if err != nil {
			b.Fatal(err)
		}
		return f, d
	}
	held := map[string]*stream.Held{}
	for i := range 500 {
		node := fmt.Sprint("node", i)
		f, d := join(node, nil)
		base := digest.Lists{}
		for _, p := range d.parts {
			for scope, l := range p.Derived(func(ch *model.Changes) any { return digest.Of(ch) }).(digest.Lists) {
				base[scope] = l
			}
		}
		held[node] = stream.HeldFrom(base.Held(digest.OfCached(d.changes, &s.digests)))
		s.remove(f)
	}
	b.ReportAllocs()
	sent := 0
	for i := 0; b.Loop(); i++ {
		node := fmt.Sprint("node", i%500)
		if i%10 == 0 {
			now := *c.Pods.Get(model.Name{Namespace: fmt.Sprint("ns", i/10*7%200), Name: fmt.Sprint("pod", i/10*7%200)})
			now.UID = fmt.Sprint("again ", i)
			s.Update(context.Background(), &watch.Batch{Changes: model.Changes{Pods: map[model.Name]*model.Pod{now.Name: &now}}})
		}
		has, err := held[node].Digests()
		if err != nil {
			b.Fatal(err)
		}
		f, d := join(node, has)
		up := &sink{}
		if err := s.deliver(f, up, d); err != nil {
			b.Fatal(err)
		}
		sent += up.bytes
		if i >= 499 { // the others stay: a fan-out has some hundred
			s.remove(f)
		}
	}
	b.ReportMetric(float64(sent)/float64(b.N)/1000, "kB/join")
}

// BenchmarkManyPolicies measures what 5,000 policies that come in batches of 50 take of a fan-out
// that serves 300 nodes with 100 pods each, and sends each of them what it gets of each batch.
func BenchmarkManyPolicies(b *testing.B) {
	for range b.N {
		b.StopTimer()
		c := modeltest.Fleet(300, 100, 200)
		modeltest.AddPolicies(c, 2000, 1)
		s := New(Config{Log: slog.New(slog.DiscardHandler), Status: func() watch.Status { return watch.Status{} }})
		s.Update(context.Background(), &watch.Batch{Full: true, Changes: *c.Everything()})
		var followers []*follower
		up := &sink{}
		serve := func() {
			for _, f := range followers {
				d, err := s.take(f)
				if err == nil && d != nil {
					err = s.deliver(f, up, d)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		for node := range c.Nodes {
			f, err := s.add(context.Background(), peerauth.Peer{Node: node, PodUID: node}, netip.Addr{}, "", "", nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			followers = append(followers, f)
		}
		serve()
		had := maps.Clone(c.Policies)
		modeltest.AddPolicies(c, 7000, 2)
		maps.DeleteFunc(c.Policies, func(id model.PolicyID, _ *model.Policy) bool { return had[id] != nil })
		up.bytes = 0
		b.StartTimer()
		for batch := range slices.Chunk(slices.Collect(maps.Values(c.Policies)), 50) {
			ch := model.Changes{Policies: map[model.PolicyID]*model.Policy{}}
			for _, p := range batch {
				ch.Policies[p.ID()] = p
			}
			s.Update(context.Background(), &watch.Batch{Changes: ch})
			serve()
		}
		b.ReportMetric(float64(up.bytes)/1e6, "MB/op")
	}
}
