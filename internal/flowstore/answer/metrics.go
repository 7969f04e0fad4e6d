// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

// The metrics. Those that count start at zero with the program.
var (
	descRecords = describe("flowstore_records_total", "Flow records that the store took.")
	descLost    = describe("flowstore_records_lost_total", "Flow records that the store does not keep, by why: old (an agent had them no more), interval, ring, expired, events (agents made none, see weir_flow_records_lost_total), disk (it could not be written), full (newer ones took their place on the disk, before their age), torn (what was written cannot be read), time (their end is in the future, or older than what is kept), large, queue.", "why")
	descKept    = describe("flowstore_records", "Flow records that are kept.")
	descCoarse  = describe("flowstore_records_coarse", "Of the flow records that are kept, those that are sums: the older part.")
	descBytes   = describe("flowstore_bytes", "Bytes of flow records on the disk.")
	descOldest  = describe("flowstore_oldest_timestamp_seconds", "The end of the oldest flow record that is kept; 0 = there is none.")
	descAgents  = describe("flowstore_agents", "Agents whose records are followed.")
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRecords, descLost, descKept, descCoarse, descBytes, descOldest, descAgents} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	st := s.Store.Status()
	count(descRecords, st.Added)
	for why, n := range st.Lost {
		count(descLost, n, why)
	}
	gauge(descKept, float64(st.Records+st.Memory))
	gauge(descCoarse, float64(st.Coarse))
	gauge(descBytes, float64(st.Bytes))
	gauge(descOldest, seconds(st.Oldest))
	gauge(descAgents, float64(len(s.Nodes())))
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
