// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pendingMost bounds the changes that wait for the kernel. A node on which nothing has been applied
// for so many changes is reported by other metrics.
const pendingMost = 16384

// Programming measures the time from when the control plane knew of a change of a Service's
// endpoints until this node's kernel has it: the network programming latency of Kubernetes' SLOs
// (sig-scalability, slos/network_programming_latency.md). It has the name and the buckets of
// kube-proxy's metric, for the tools that measure a cluster by it (ClusterLoader2).
//
// The time of a change is the annotation endpoints.kubernetes.io/last-change-trigger-time of its
// EndpointSlice. Slices that a node read at its start are not measured; of changes of one slice
// that were merged on their way, the last is.
type Programming struct {
	prometheus.Histogram
	now func() time.Time

	mu      sync.Mutex
	pending []programmed
	wake    chan struct{}
}

// programmed is a change that is in the state of a generation.
type programmed struct {
	gen uint64
	at  time.Time
}

// NewProgramming returns an empty histogram.
func NewProgramming() *Programming {
	return &Programming{
		Histogram: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "kubeproxy", Name: "network_programming_duration_seconds",
			Help: "Time from a change of a Service's endpoints, as its EndpointSlice says it, until the node's kernel has it. Named as kube-proxy's.",
			Buckets: append(append(append(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59)...),
				prometheus.LinearBuckets(60, 5, 12)...), prometheus.LinearBuckets(120, 30, 7)...),
		}),
		now: time.Now, wake: make(chan struct{}, 1),
	}
}

// Note says that the changes of the given times are in the state of a generation.
func (p *Programming) Note(gen uint64, changes []time.Time) {
	if len(changes) == 0 {
		return
	}
	p.mu.Lock()
	for _, at := range changes {
		if len(p.pending) < pendingMost {
			p.pending = append(p.pending, programmed{gen, at})
		}
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run observes changes until ctx ends. wait returns when a state of at least a generation is in the
// kernel, with an error when ctx ends before that.
func (p *Programming) Run(ctx context.Context, wait func(context.Context, uint64) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		for {
			p.mu.Lock()
			batch := p.pending
			p.pending = nil
			p.mu.Unlock()
			if len(batch) == 0 {
				break
			}
			for _, c := range batch {
				if wait(ctx, c.gen) != nil {
					return nil // ctx has ended
				}
				// A clock of the control plane that is ahead of the node's makes this negative.
				p.Observe(max(0, p.now().Sub(c.at).Seconds()))
			}
		}
	}
}
