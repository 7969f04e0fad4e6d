// SPDX-License-Identifier: Apache-2.0

package main

var dashboards = []dashboard{
	{"weir-cluster", "Weir / Cluster", []row{
		{"Health", []panel{
			{title: "Agents", help: "Nodes whose agent is scraped.", unit: "short", number: true,
				queries: []query{{`count(weir_build_info{node=~"$node"})`, ""}}},
			{title: "Out of touch", help: "Agents that do not reach the API server; they go on with what they knew.", unit: "short", number: true, red: 1,
				queries: []query{{`count(weir_api_server_connected{node=~"$node"} == 0) or vector(0)`, ""}}},
			{title: "Pods not connected", help: "Pod interfaces whose programs are not attached.", unit: "short", number: true, red: 1,
				queries: []query{{`sum(weir_endpoints{node=~"$node"} - weir_endpoints_attached{node=~"$node"})`, ""}}},
			{title: "Entries to be tried again", help: "Entries of tables that the kernel refused.", unit: "short", number: true, red: 1,
				queries: []query{{`sum(weir_dataplane_pending_keys{node=~"$node"})`, ""}}},
			{title: "Not in force", help: "Things that are not in force as they are written: weir status.", unit: "short", number: true, red: 1,
				queries: []query{{`sum(weir_problems{node=~"$node"})`, ""}}},
			{title: "Versions", help: "Versions of agents; more than one while an upgrade goes on.", unit: "short", number: true, red: 2,
				queries: []query{{`count(count by (version) (weir_build_info{node=~"$node"}))`, ""}}},
		}},
		{"Changes", []panel{
			{title: "Network programming latency", help: "From a change of a Service's endpoints until nodes' kernels have it (SLO of Kubernetes).", unit: "s",
				queries: []query{
					{`histogram_quantile(0.5, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket{node=~"$node"}[$__rate_interval])))`, "median"},
					{`histogram_quantile(0.99, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket{node=~"$node"}[$__rate_interval])))`, "99th percentile"},
				}},
			{title: "TCP handshakes", help: "How long they took, by the path from the client's node, where flow records are kept with eBPF.", unit: "s",
				queries: []query{{`histogram_quantile(0.99, sum by (le, path) (rate(weir_flow_tcp_handshake_seconds_bucket{node=~"$node"}[$__rate_interval])))`, "99th percentile {{path}}"}}},
			{title: "Applied states and written entries", help: "Of all nodes.", unit: "short", queries: []query{
				{`sum(rate(weir_dataplane_applies_total{node=~"$node"}[$__rate_interval]))`, "states a second"},
				{`sum(rate(weir_dataplane_writes_total{node=~"$node"}[$__rate_interval]))`, "entries a second"},
			}},
		}},
		{"Drops", []panel{
			{title: "Dropped packets by reason", help: "docs/reference/drop-reasons.md has what each means.", unit: "pps",
				queries: []query{{`sum by (reason) (rate(weir_dropped_packets_total{node=~"$node"}[$__rate_interval])) > 0`, "{{reason}}"}}},
			{title: "Denied by policy", help: "The ten policies that deny most.", unit: "pps",
				queries: []query{{`topk(10, sum by (tier, policy, direction) (rate(weir_policy_denied_packets_total{node=~"$node"}[$__rate_interval])) > 0)`, "{{tier}} {{policy}} {{direction}}"}}},
		}},
		{"Controller and fan-out", []panel{
			{title: "Leader", help: "Instances of weir-controller that lead: one.", unit: "short", number: true, red: 2,
				queries: []query{{`sum(weir_controller_leader)`, ""}}},
			{title: "Fan-out replicas", help: "Replicas of weir-fanout that are ready.", unit: "short", number: true,
				queries: []query{{`max(weir_controller_fanout_replicas)`, ""}}},
			{title: "Agents served", help: "Agents that a fan-out serves; the others follow the API server.", unit: "short", number: true,
				queries: []query{{`sum(weir_fanout_streams)`, ""}}},
			{title: "Load balancer addresses", help: "Addresses that Services have.", unit: "short", number: true,
				queries: []query{{`max(weir_controller_load_balancer_addresses)`, ""}}},
			{title: "Services without address", help: "Services that ask for an address and have none.", unit: "short", number: true, red: 1,
				queries: []query{{`max(weir_controller_load_balancer_services_without_address)`, ""}}},
			{title: "Fan-out: from the API to an agent", help: "99th percentile of the time from a change that was read of the API until an agent was sent it.", unit: "s", number: true, red: 5,
				queries: []query{{`histogram_quantile(0.99, sum by (le) (rate(weir_fanout_lag_seconds_bucket[5m])))`, ""}}},
		}},
	}},
	{"weir-node", "Weir / Node", []row{
		{"Tables", []panel{
			{title: "Map pressure", help: "Entries of maps by their room; above 90 % an alert is raised.", unit: "percentunit",
				queries: []query{{`max by (map, family) (weir_bpf_map_entries{node=~"$node"} / weir_bpf_map_capacity{node=~"$node"}) > 0.01`, "{{map}} {{family}}"}}},
			{title: "Entries of tables", help: "What the data plane has.", unit: "short",
				queries: []query{{`sum by (table) (weir_dataplane_entries{node=~"$node"})`, "{{table}}"}}},
			{title: "Pods that fill the connection table", help: "Entries of pods that begin no other flow.", unit: "short",
				queries: []query{{`sum by (namespace, pod) (weir_flow_share_held_entries{node=~"$node"})`, "{{namespace}}/{{pod}}"}}},
			{title: "Source ports used up", help: "Packets that were dropped because their pod had used up its ports towards a destination.", unit: "pps",
				queries: []query{{`topk(10, sum by (namespace, pod) (rate(weir_snat_ports_refused_total{node=~"$node"}[$__rate_interval])) > 0)`, "{{namespace}}/{{pod}}"}}},
		}},
		{"Changes", []panel{
			{title: "Duration of the last apply", help: "Time that the last state took to be put into the kernel.", unit: "s",
				queries: []query{{`weir_dataplane_last_apply_seconds{node=~"$node"}`, "{{node}}"}}},
			{title: "Repairs", help: "What somebody else removed and the agent put back, in an hour.", unit: "short",
				queries: []query{{`sum by (node, what) (increase(weir_dataplane_repairs_total{node=~"$node"}[1h])) > 0`, "{{node}} {{what}}"}}},
		}},
		{"Packets", []panel{
			{title: "Dropped packets by reason", help: "docs/reference/drop-reasons.md has what each means.", unit: "pps",
				queries: []query{{`sum by (node, reason) (rate(weir_dropped_packets_total{node=~"$node"}[$__rate_interval])) > 0`, "{{node}} {{reason}}"}}},
			{title: "Clients that fell back from direct server return", help: "Answers to them go through the node that they asked.", unit: "short",
				queries: []query{{`weir_dsr_fallback_clients{node=~"$node"}`, "{{node}}"}}},
			{title: "Lost events", help: "Events of flows that weir monitor did not get.", unit: "short",
				queries: []query{{`sum by (node, why) (rate(weir_events_lost_total{node=~"$node"}[$__rate_interval])) > 0`, "{{node}} {{why}}"}}},
		}},
		{"BGP", []panel{
			{title: "Sessions", help: "Sessions by state, and how many there should be.", unit: "short", queries: []query{
				{`sum by (family, state) (weir_bgp_sessions{node=~"$node"}) > 0`, "{{family}} {{state}}"},
				{`sum(weir_bgp_sessions_wanted{node=~"$node"})`, "wanted"},
			}},
			{title: "Prefixes", help: "Learned of peers, in the kernel, without a next hop, and own ones.", unit: "short", queries: []query{
				{`sum(weir_bgp_learned_routes{node=~"$node"})`, "learned"},
				{`sum(weir_bgp_installed_routes{node=~"$node"})`, "in the kernel"},
				{`sum(weir_bgp_unresolved_routes{node=~"$node"})`, "next hop not reached"},
				{`sum(weir_bgp_own_prefixes{node=~"$node"})`, "advertised"},
			}},
		}},
	}},
}
