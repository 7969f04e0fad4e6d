// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bench/store"
)

// atRest is how much of a CPU an agent and a fan-out may take when nothing is left to do.
const atRest = 0.25

// growWithin is how long many policies may take until all are in force.
const growWithin = 5 * time.Minute

// growPolicies gives the cluster more policies, measures what they take and what one that changes
// then costs, and removes them again. Where agents are fed one fan-out is left by then, and serves
// all of them. That they do not come to be in force in time is a result, too.
func (s *site) growPolicies(g *Grown, fed bool) {
	before := s.policies
	lost := s.standInsNow(fed)
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
	err := s.rest(growWithin)
	g.InForceS = time.Since(written).Seconds()
	row := s.closeWindow(w, "growth")
	g.AgentCPU = row.AgentMcore * row.Seconds / 1000
	for _, cores := range row.FanOutCores {
		g.FanOutCPU = append(g.FanOutCPU, cores*row.Seconds)
	}
	if err != nil {
		g.Error = fmt.Sprintf("not in force after %s: %v", growWithin, err)
		say("%d policies: %s", s.grown, g.Error)
	} else {
		say("%d policies are in force %.1f s after the last was written; agent %.1f s of CPU, fan-outs %.1f s", s.grown, g.InForceS, g.AgentCPU, g.FanOutCPU)
		s.policies = s.grown // one of all of these changes
		for _, l := range s.grownLoads() {
			g.Rows = append(g.Rows, s.measureRow(l, fed))
			s.save()
		}
	}
	g.AgentRSS, _, _ = s.agent.memory()
	for _, p := range s.running() {
		if p != s.agent && p != s.standIns {
			rss, _, _ := p.memory()
			g.FanOutRSS = append(g.FanOutRSS, rss)
		}
	}
	after := s.standInsNow(fed)
	if g.StreamsLost = after.Lost - lost.Lost; g.StreamsLost > 0 {
		say("%d streams were lost, the last one because: %s", g.StreamsLost, after.LastError)
	}
	s.policies = before
	s.save()
	if !fed {
		return // nothing is measured after that
	}
	s.must(etcd.RemovePolicies(s.ctx, func(yield func(types.NamespacedName) bool) {
		for i := before; i < s.grown; i++ {
			if !yield(types.NamespacedName{Namespace: spaceName(i % namespaces), Name: fmt.Sprint("p", i)}) {
				return
			}
		}
	}))
}

// grownLoads are the rows that are measured with more policies.
func (s *site) grownLoads() []load {
	name := fmt.Sprintf("%d policies", s.grown)
	return []load{{name: name, short: true}, {name: name + ", 1 changes", policies: 1, short: true}}
}

// rest waits until the agent and the fan-outs have nothing left to do, and a change has its effect.
// An agent that lost its fan-out takes no CPU either, so the change may have to be made again.
func (s *site) rest(limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
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
