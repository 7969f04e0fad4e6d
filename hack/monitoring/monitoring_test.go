// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const rulesFile = "../../deploy/monitoring/rules.yaml"

// promtool is where the set-up puts it, or where the machine has it.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path = filepath.Join(os.Getenv("WEIR_CACHE"), "promtool")
		if os.Getenv("WEIR_CACHE") == "" {
			path = filepath.Join(os.Getenv("HOME"), ".cache/weir/promtool")
		}
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s (which make setup brings): %v\n%s", strings.Join(args, " "), err, out)
	}
}

func rules(t *testing.T) (text []byte, expressions map[string]string) {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil { // promtool checks the other fields
		t.Fatal(err)
	}
	expressions = map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			expressions[r.Alert] = r.Expr
		}
	}
	return text, expressions
}

// TestOnlyMetricsThatAreServed: an alert on a metric that nobody serves never fires.
func TestOnlyMetricsThatAreServed(t *testing.T) {
	t.Parallel()
	reference, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)`").FindAllSubmatch(reference, -1) {
		served[string(m[1])] = true
	}
	_, expressions := rules(t)
	for _, d := range dashboards {
		for _, r := range d.rows {
			for _, p := range r.panels {
				for i, q := range p.queries {
					expressions[fmt.Sprintf("%s: %s: query %d", d.title, p.title, i)] = q.expr
				}
			}
		}
	}
	used := 0
	for where, expr := range expressions {
		for _, name := range regexp.MustCompile(`\b(weir|kubeproxy)_[a-z_]+`).FindAllString(expr, -1) {
			used++
			if !served[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s: nothing serves %s", where, name)
			}
		}
	}
	if used < 60 {
		t.Errorf("%d uses of metrics were found", used)
	}
}

// n is the node of a case.
const n = `{node="n1"}`

// alertCases are series on which each alert is to fire, and such on which it is not. They have a
// value a minute; x30 is thirty more of the same, and +1x30 thirty that grow by one.
var alertCases = map[string]struct{ fires, quiet []string }{
	"WeirNodeMetricsAbsent": {
		fires: []string{
			`up{node="n1"} 0x30`,
		},
		quiet: []string{
			`weir_build_info{node="n1"} 1x30`,
		},
	},
	"WeirAPIServerNotReached": {
		fires: []string{
			`weir_api_server_connected` + n + ` 0x30`,
		},
		quiet: []string{
			`weir_api_server_connected` + n + ` 1x30`,
		},
	},
	"WeirApplyFailing": {
		fires: []string{
			`weir_dataplane_pending_keys` + n + ` 2x30`,
		},
		quiet: []string{
			`weir_dataplane_pending_keys` + n + ` 0 3 0x28`,
		},
	},
	"WeirPodsWithoutPrograms": {
		fires: []string{
			`weir_endpoints` + n + ` 3x30`,
			`weir_endpoints_attached` + n + ` 2x30`,
		},
		quiet: []string{
			`weir_endpoints` + n + ` 3x30`,
			`weir_endpoints_attached` + n + ` 3x30`,
		},
	},
	"WeirMapNearlyFull": {
		fires: []string{
			`weir_bpf_map_entries{node="n1",map="ct",family="IPv4"} 95x30`,
			`weir_bpf_map_capacity{node="n1",map="ct",family="IPv4"} 100x30`,
		},
		quiet: []string{
			`weir_bpf_map_entries{node="n1",map="ct",family="IPv4"} 89x30`,
			`weir_bpf_map_capacity{node="n1",map="ct",family="IPv4"} 100x30`,
		},
	},
	"WeirSourcePortsExhausted": {
		fires: []string{
			`weir_snat_ports_refused_total{node="n1",namespace="a",pod="b",address="c"} 0+5x30`,
		},
		quiet: []string{
			`weir_snat_ports_refused_total{node="n1",namespace="a",pod="b",address="c"} 7x30`,
		},
	},
	"WeirFlowShareHeld": {
		fires: []string{
			`weir_flow_share_held_entries{node="n1",namespace="a",pod="b",address="c"} 9000x30`,
		},
		quiet: []string{
			`weir_endpoints` + n + ` 3x30`,
		},
	},
	"WeirRepairs": {
		fires: []string{
			`weir_dataplane_repairs_total{node="n1",what="route"} 0+1x30`,
		},
		quiet: []string{
			`weir_dataplane_repairs_total{node="n1",what="route"} 0x28 2x2`,
		},
	},
	"WeirDropsByFault": {
		fires: []string{
			`weir_dropped_packets_total{node="n1",reason="INTERNAL",rule=""} 0+120x30`,
		},
		quiet: []string{
			`weir_dropped_packets_total{node="n1",reason="POLICY_INGRESS",rule="r"} 0+9000x30`,
		},
	},
	"WeirProgrammingSlow": {
		fires: []string{
			`kubeproxy_network_programming_duration_seconds_bucket{node="n1",le="10"} 0x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{node="n1",le="30"} 0+9x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{node="n1",le="+Inf"} 0+9x30`,
		},
		quiet: []string{
			`kubeproxy_network_programming_duration_seconds_bucket{node="n1",le="1"} 0+9x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{node="n1",le="10"} 0+9x30`,
			`kubeproxy_network_programming_duration_seconds_bucket{node="n1",le="+Inf"} 0+9x30`,
		},
	},
	"WeirNotInForce": {
		fires: []string{
			`weir_problems` + n + ` 1x30`,
		},
		quiet: []string{
			`weir_problems` + n + ` 0x30`,
		},
	},
	"WeirEventsLost": {
		fires: []string{
			`weir_events_lost_total{node="n1",why="full"} 0+9x30`,
		},
		quiet: []string{
			`weir_events_lost_total{node="n1",why="slow"} 0+9x30`,
		},
	},
	"WeirBGPProcessDown": {
		fires: []string{
			`weir_bgp_process_up` + n + ` 0x30`,
		},
		quiet: []string{
			`weir_bgp_process_up` + n + ` 1x30`,
		},
	},
	"WeirBGPSessionDown": {
		fires: []string{
			`weir_bgp_session_up{node="n1",peer="p",name="q"} 0x30`,
		},
		quiet: []string{
			`weir_bgp_session_up{node="n1",peer="p",name="q"} 1x30`,
		},
	},
	"WeirBGPSessionFlapping": {
		fires: []string{
			`weir_bgp_session_flaps_total{node="n1",peer="p",name="q"} 0+1x30`,
		},
		quiet: []string{
			`weir_bgp_session_flaps_total{node="n1",peer="p",name="q"} 0x28 1x2`,
		},
	},
	"WeirBGPRoutesUnresolved": {
		fires: []string{
			`weir_bgp_unresolved_routes` + n + ` 4x30`,
		},
		quiet: []string{
			`weir_bgp_unresolved_routes` + n + ` 0x30`,
		},
	},
	"WeirControllerWithoutLeader": {
		fires: []string{
			`weir_build_info` + n + ` 1x30`,
		},
		quiet: []string{
			`weir_build_info` + n + ` 1x30`,
			`weir_controller_leader` + n + ` 1x30`,
			`weir_controller_leader{node="n2"} 0x30`,
		},
	},
	"WeirControllerFailing": {
		fires: []string{
			`weir_controller_reconcile_errors_total` + n + ` 0+1x30`,
		},
		quiet: []string{
			`weir_controller_reconcile_errors_total` + n + ` 1x30`,
		},
	},
	"WeirLoadBalancersWithoutAddress": {
		fires: []string{
			`weir_controller_load_balancer_services_without_address` + n + ` 1x30`,
		},
		quiet: []string{
			`weir_controller_load_balancer_services_without_address` + n + ` 0x30`,
		},
	},
	"WeirFanOutReplicasMissing": {
		fires: []string{
			`weir_controller_fanout_replicas_wanted` + n + ` 2x30`,
			`weir_controller_fanout_replicas` + n + ` 1x30`,
		},
		quiet: []string{
			`weir_controller_fanout_replicas_wanted` + n + ` 2x30`,
			`weir_controller_fanout_replicas` + n + ` 2x30`,
		},
	},
	"WeirFanOutLate": {
		fires: []string{
			`weir_fanout_oldest_unsent_seconds` + n + ` 31x30`,
		},
		quiet: []string{
			`weir_fanout_oldest_unsent_seconds` + n + ` 0x30`,
		},
	},
}

// TestAlerts has Prometheus' own evaluation of each alert, on series on which it is to fire, and on
// others on which it is not.
func TestAlerts(t *testing.T) {
	t.Parallel()
	text, expressions := rules(t)
	for alert := range expressions {
		if _, ok := alertCases[alert]; !ok {
			t.Errorf("%s has no case", alert)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", filepath.Join(dir, "rules.yaml"))
	var tests []object
	for _, alert := range slices.Sorted(maps.Keys(alertCases)) {
		for _, fires := range []bool{true, false} {
			series, samples := alertCases[alert].quiet, []object{}
			if fires {
				series, samples = alertCases[alert].fires, []object{{"labels": "{}", "value": 1}}
			}
			var input []object
			for _, s := range series {
				name, values, _ := strings.Cut(s, "} ")
				input = append(input, object{"series": name + "}", "values": values})
			}
			tests = append(tests, object{"name": fmt.Sprint(alert, " fires: ", fires), "interval": "1m", "input_series": input,
				"promql_expr_test": []object{{"expr": fmt.Sprintf(`count(ALERTS{alertname=%q,alertstate="firing"})`, alert), "eval_time": "30m", "exp_samples": samples}}})
		}
	}
	file, err := yaml.Marshal(object{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "test.yaml"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", filepath.Join(dir, "test.yaml"))
}
