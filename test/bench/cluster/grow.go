// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bench/store"
)

// atRest is how much of a CPU an agent and a fan-out may take when nothing is left to do.
const atRest = 0.25

// growPolicies gives the cluster more policies, measures what they take and what one that changes
// then costs, and removes them again. One fan-out is left by then, and serves all agents.
func (s *site) growPolicies() {
	before := s.policies
	g := &Grown{Policies: s.grown}
	s.result.Grown = g
	lost := s.standInsNow(true)
	w := s.openWindow()
	began := time.Now()
	etcd := store.Store{URL: apitest.Etcd, HTTP: http.DefaultClient}
	s.must(etcd.Put(s.ctx, func(yield func(runtime.Object) bool) {
		r := rand.New(rand.NewPCG(s.seed, 4))
		for i := before; i < s.grown; i++ {
			if !yield(s.policy(i, r)) {
				return
			}
		}
	}, func(done int) { say("wrote %d policies more", done) }))
	written := time.Now()
	g.WriteS = written.Sub(began).Seconds()
	s.must(s.rest())
	g.InForceS = time.Since(written).Seconds()
	row := s.closeWindow(w, "growth")
	g.AgentCPU = row.AgentMcore * row.Seconds / 1000
	for _, cores := range row.FanOutCores {
		g.FanOutCPU = append(g.FanOutCPU, cores*row.Seconds)
	}
	say("%d policies are in force %.1f s after the last was written; agent %.1f s of CPU, fan-outs %.1f s", s.grown, g.InForceS, g.AgentCPU, g.FanOutCPU)
	s.policies = s.grown // one of all of these changes
	for _, l := range s.grownLoads() {
		g.Rows = append(g.Rows, s.measureRow(l, true))
		s.save()
	}
	g.AgentRSS, _, _ = s.agent.memory()
	for _, p := range s.running() {
		if p != s.agent && p != s.standIns {
			rss, _, _ := p.memory()
			g.FanOutRSS = append(g.FanOutRSS, rss)
		}
	}
	after := s.standInsNow(true)
	if g.StreamsLost = after.Lost - lost.Lost; g.StreamsLost > 0 {
		say("%d streams were lost, the last one because: %s", g.StreamsLost, after.LastError)
	}
	s.policies = before
	began = time.Now()
	s.must(s.removePolicies(before, s.grown))
	s.must(s.rest())
	g.RemoveS = time.Since(began).Seconds()
	say("they are removed after %.1f s", g.RemoveS)
	s.save()
}

// grownLoads are the rows that are measured with more policies.
func (s *site) grownLoads() []load {
	name := fmt.Sprintf("%d policies", s.grown)
	return []load{{name: name}, {name: name + ", 1 changes", policies: 1}}
}

// rest waits until the agent and the fan-outs have nothing left to do, and a change has its effect.
// An agent that lost its fan-out takes no CPU either, so the change may have to be made again.
func (s *site) rest() error {
	for end := time.Now().Add(10 * time.Minute); ; {
		w := s.openWindow()
		time.Sleep(2 * time.Second)
		row := s.closeWindow(w, "")
		busy := row.AgentMcore / 1000
		for _, cores := range row.FanOutCores {
			busy = max(busy, cores)
		}
		err := fmt.Errorf("the agent or a fan-out still takes %.2f of a CPU", busy)
		if busy < atRest {
			_, err = s.probe.label()
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// removePolicies removes the policies of these numbers.
func (s *site) removePolicies(from, to int) error {
	g, ctx := errgroup.WithContext(s.ctx)
	g.SetLimit(workers)
	for i := from; i < to; i++ {
		g.Go(func() error { return s.removePolicy(ctx, i) })
	}
	return g.Wait()
}

func (s *site) removePolicy(ctx context.Context, i int) error {
	err := s.kube.NetworkingV1().NetworkPolicies(spaceName(i%namespaces)).Delete(ctx, fmt.Sprint("p", i), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
