// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/version"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

// The metrics. Those that count start at zero with the agent, but for drops, which start with the
// programs.
var (
	descBuild       = describe("build_info", "Always 1; the version of the agent.", "version")
	descPackets     = describe("dropped_packets_total", "Packets dropped, by reason and by the rule that decided.", "reason", "rule")
	descBytes       = describe("dropped_bytes_total", "Bytes of packets dropped, by reason and by the rule that decided.", "reason", "rule")
	descDenied      = describe("policy_denied_packets_total", "Packets denied by policy, by the tier, policy and rule that denied. Directions host-ingress and host-egress are of host endpoints. For default-deny the policy is the list of those that isolate.", "direction", "tier", "kind", "policy", "rule")
	descFlowsBegun  = describe("flows_begun_total", "Flows that began and are accounted for (flowLogsLocalReporter).")
	descFlowsKept   = describe("flow_records_kept", "Flow records that the agent keeps.")
	descFlowsLost   = describe("flow_records_lost_total", "Flow records that are not kept, by why: old (newer ones took their place), interval (too many connections in one), ring, expired (read too late), evicted (the table of connections was full), events (denied packets beyond the rate of events).", "why")
	descEventsLost  = describe("events_lost_total", "Events of flows that nobody got to read, by why: full (the ring), limited (the rate of a CPU), slow (a listener).", "why")
	descLate        = describe("untracked_late_packets_total", "Packets that doNotTrack policy evaluated behind XDP: it is not there, or they were fragments or ICMP errors.")
	descNames       = describe("dns_answers_total", "Answers of DNS servers to pods whose policy has domain names, by what became of them: noted, unasked, untrusted, unread; full: addresses that found no room.", "result")
	descAnswers     = describe("answered_packets_total", "Dropped packets that the node answered, by the kind of answer; limited: not answered, because of the rate limit.", "answer")
	descEndpoints   = describe("endpoints", "Pod interfaces of this node that are known.")
	descAttached    = describe("endpoints_attached", "Pod interfaces of this node whose programs are attached.")
	descEntries     = describe("dataplane_entries", "Entries of the data plane's tables.", "table")
	descFallen      = describe("dsr_fallback_clients", "Outside clients that get their answers through the node that they asked, because direct answers did not arrive.")
	descFallbacks   = describe("dsr_fallbacks_total", "Times that a client fell back from direct server return to the tunnel.")
	descMapEntries  = describe("bpf_map_entries", "Entries of a map; of those that programs fill, as counted at the last sweep. Each family has its own; family is empty where they share one.", "map", "family")
	descMapCapacity = describe("bpf_map_capacity", "Entries that a map has room for.", "map", "family")
	descHeld        = describe("flow_share_held_entries", "Entries of the connection table whose flows a pod of this node began, of pods that begin no other: they have more than their share of a table that is nearly full. At most 7 of a family.", "namespace", "pod", "address")
	descReplaced    = describe("snat_ports_replaced_total", "Flows that were not established and lost their port for source NAT to a newer flow of the same pod, which had used up its ports towards that destination (eBPF). The 1,024 pods that did so last.", "namespace", "pod", "address")
	descRefused     = describe("snat_ports_refused_total", "Packets of a pod that were dropped because it had used up its ports for source NAT towards that destination. The 1,024 pods that did so last; with nftables, those of the last hour.", "namespace", "pod", "address")
	descEpoch       = describe("dataplane_epoch", "Epoch of flows: grows when open flows are to be evaluated again.")
	descWrites      = describe("dataplane_writes_total", "Entries of tables written or deleted.")
	descApplies     = describe("dataplane_applies_total", "States applied.")
	descFailures    = describe("dataplane_apply_failures_total", "Applies that left something undone.")
	descPending     = describe("dataplane_pending_keys", "Keys that could not be put in place and are tried again.")
	descLast        = describe("dataplane_last_apply_seconds", "Duration of the last apply.")
	descRepairs     = describe("dataplane_repairs_total", "Programs, devices and routes that somebody else removed and that were put back.", "what")
	descConnected   = describe("api_server_connected", "1 while the API server answers.")
	descProblems    = describe("problems", "Things that are not in force as they are written: see the NodeStatus.")
	descUnsupported = describe("unsupported_fields", "Configured fields that have no effect yet.")
)

// collector reads everything when it is asked.
type collector struct{ agent *Agent }

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBuild, descPackets, descBytes, descDenied, descEventsLost, descFlowsBegun, descFlowsKept, descFlowsLost, descAnswers, descNames, descEndpoints, descAttached, descEntries, descMapEntries, descMapCapacity, descEpoch,
		descLate, descFallen, descFallbacks, descHeld, descReplaced, descRefused,
		descWrites, descApplies, descFailures, descPending, descLast, descRepairs, descConnected, descProblems, descUnsupported} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	a := c.agent
	snap := a.cluster.snapshot()
	gauge(descBuild, 1, version.Version)
	gauge(descEndpoints, float64(snap.endpoints))
	gauge(descProblems, float64(len(a.problems(snap))))
	gauge(descUnsupported, float64(len(snap.config.Unsupported)))
	connected := 0.0
	if a.source.Status().Connected {
		connected = 1
	}
	gauge(descConnected, connected)
	st := a.driver.Status()
	gauge(descAttached, float64(st.Endpoints))
	gauge(descEpoch, float64(st.Epoch))
	count(descWrites, st.Writes)
	count(descLate, st.Late)
	for table, n := range st.Entries {
		gauge(descEntries, float64(n), table)
	}
	for _, p := range a.driver.Pressures() {
		gauge(descMapEntries, float64(p.Entries), p.Map, p.Family)
		gauge(descMapCapacity, float64(p.Capacity), p.Map, p.Family)
	}
	if held, err := a.driver.Held(); err == nil {
		for _, h := range held {
			name, _, _ := a.cluster.owner(h.Addr)
			gauge(descHeld, float64(h.Entries), name.Namespace, name.Name, h.Addr.String())
		}
	}
	if spent, err := a.driver.ExhaustedPods(); err == nil {
		for _, p := range spent {
			name, _, _ := a.cluster.owner(p.Addr)
			count(descReplaced, p.Replaced, name.Namespace, name.Name, p.Addr.String())
			count(descRefused, p.Refused, name.Namespace, name.Name, p.Addr.String())
		}
	}
	for _, what := range []string{"program", "pin", "device", "route"} {
		count(descRepairs, st.Repairs[what], what)
	}
	if f, err := a.driver.DSRFallback(); err == nil {
		gauge(descFallen, float64(len(f.Clients)))
		count(descFallbacks, f.Total)
	}
	ls := a.loop.Stats()
	count(descApplies, ls.Applies)
	count(descFailures, ls.Failures)
	gauge(descPending, float64(ls.Pending))
	gauge(descLast, ls.Last.Seconds())
	c.collectDrops(snap.state, count)
	count(descEventsLost, a.events.Lost(), "slow")
	if lost, err := a.driver.LostEvents(); err == nil {
		count(descEventsLost, lost.Full, "full")
		count(descEventsLost, lost.Limited, "limited")
	}
	if s, begun := a.flows.Status(); s.Interval > 0 {
		gauge(descFlowsKept, float64(s.Kept))
		count(descFlowsBegun, begun)
		for why, n := range s.Lost {
			count(descFlowsLost, n, why)
		}
	}
	if names, err := a.driver.Names(); err == nil {
		for result, n := range names {
			count(descNames, n, result)
		}
	}
	if answers, err := a.driver.Answers(); err == nil {
		for answer, n := range answers {
			count(descAnswers, n, answer)
		}
	}
}

// collectDrops adds up what has the same words: rules that are gone have none of their own.
func (c *collector) collectDrops(s *nodestate.State, count func(*prometheus.Desc, uint64, ...string)) {
	drops, err := c.agent.driver.Drops()
	if err != nil || s == nil {
		return
	}
	type key struct{ reason, rule string }
	sums := map[key][2]uint64{}
	denied := map[[5]string]uint64{}
	for _, d := range drops {
		k := key{reason.Reason(d.Reason).String(), "gone"}
		if _, ok := s.Rules.Get(d.Rule); d.Rule == 0 || ok {
			k.rule = s.RuleText(d.Rule)
		}
		if labels, ok := deniedBy(s, d); ok {
			denied[labels] += d.Packets
		}
		sums[k] = [2]uint64{sums[k][0] + d.Packets, sums[k][1] + d.Bytes}
	}
	for k, v := range sums {
		count(descPackets, v[0], k.reason, k.rule)
		count(descBytes, v[1], k.reason, k.rule)
	}
	for labels, n := range denied {
		count(descDenied, n, labels[:]...)
	}
}

// deniedBy returns direction, tier, kind, policy and rule of a drop by policy. Rules that are gone
// share one.
func deniedBy(s *nodestate.State, d dataplane.Drop) (labels [5]string, ok bool) {
	switch reason.Reason(d.Reason) {
	case reason.PolicyIngress:
		labels[0] = "ingress"
	case reason.PolicyEgress:
		labels[0] = "egress"
	case reason.HostIngress, reason.HostPreDNAT, reason.UntrackedIngress:
		labels[0] = "host-ingress"
	case reason.HostEgress, reason.UntrackedEgress:
		labels[0] = "host-egress"
	case reason.ToHost:
		return [5]string{"egress", "", "defaultEndpointToHostAction"}, true
	default:
		return labels, false
	}
	r, ok := s.Rules.Get(d.Rule)
	if !ok {
		r = nodestate.Rule{Kind: "gone"}
	}
	return [5]string{labels[0], r.Tier, r.Kind, r.Name, r.Detail}, true
}
