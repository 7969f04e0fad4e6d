// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/fanout/report"
)

// metrics are of all nodes together: a series for each would be a thousand.
type metrics struct {
	streams         prometheus.GaugeFunc
	oldest          prometheus.GaugeFunc
	merges          prometheus.CounterFunc
	messages, bytes prometheus.Counter
	endpoints       prometheus.Counter
	refused         *prometheus.CounterVec
	snapshots, lag  prometheus.Histogram
	deltas, changes prometheus.Histogram
	updates         prometheus.Histogram
	views           prometheus.Histogram
}

// Register offers the server's metrics.
func (s *Server) Register(r prometheus.Registerer) {
	m := &s.metrics
	r.MustRegister(m.streams, m.oldest, m.merges, m.messages, m.bytes, m.endpoints, m.refused, m.snapshots, m.deltas, m.changes, m.lag, m.updates, m.views)
}

func newMetrics(s *Server) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "weir_fanout", Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "weir_fanout", Name: name, Help: help, Buckets: buckets})
	}
	locked := func(f func() float64) func() float64 {
		return func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return f()
		}
	}
	return metrics{
		streams: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_fanout", Name: "streams", Help: "Agents that are served."},
			locked(func() float64 { return float64(len(s.followers)) })),
		oldest: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_fanout", Name: "oldest_unsent_seconds", Help: "Since when the oldest change that some agent was not sent yet waits."},
			locked(func() float64 {
				oldest := 0.0
				for _, f := range s.followers {
					oldest = max(oldest, f.behind().Seconds())
				}
				return oldest
			})),
		merges: prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "weir_fanout", Name: "merged_changes_total", Help: "Changes for an agent that were merged with earlier ones that it was not sent yet."},
			locked(func() float64 { return float64(s.merges) })),
		messages:  counter("messages_total", "Messages that were sent to agents."),
		bytes:     counter("sent_bytes_total", "Bytes of changes that were sent to agents."),
		endpoints: counter("endpoints_refused_total", "Endpoints that an agent named and whose pod is on another node."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_fanout", Name: "refused_total", Help: "Streams that were refused or ended, by why."},
			[]string{"why"}),
		snapshots: histogram("snapshot_seconds", "Time to send an agent all that its node needs.", prometheus.ExponentialBuckets(0.01, 2, 13)),
		deltas:    histogram("delta_seconds", "Time to find and send what an agent lacks that another fan-out fed before.", prometheus.ExponentialBuckets(0.001, 2, 15)),
		views:     histogram("view_bytes", "Bytes of what agents were sent as all that their node needs, without what changed since.", prometheus.ExponentialBuckets(1<<12, 4, 10)),
		changes:   histogram("change_seconds", "Time to encode and send an agent what changed.", prometheus.ExponentialBuckets(0.0001, 2, 18)),
		lag:       histogram("lag_seconds", "Time from a change that was read of the API until an agent was sent it.", prometheus.ExponentialBuckets(0.001, 2, 15)),
		updates:   histogram("update_seconds", "Time to find the nodes that changes concern.", prometheus.ExponentialBuckets(0.0001, 2, 16)),
	}
}

// Followers returns how the agents are served, by node.
func (s *Server) Followers() []report.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]report.Agent, 0, len(s.followers))
	for node, f := range s.followers {
		out = append(out, report.Agent{Node: node, Program: f.program, For: time.Since(f.began), Behind: f.behind(), View: f.viewBytes.Load()})
	}
	slices.SortFunc(out, func(a, b report.Agent) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
