// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/why/ask"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// example returns the block of code that follows "<!-- example: name -->" in a guide.
func example(t *testing.T, guide, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../docs/guides", guide))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(raw), "<!-- example: "+name+" -->\n```text\n")
	if !ok {
		t.Fatalf("%s has no example %q", guide, name)
	}
	block, _, _ := strings.Cut(rest, "```\n")
	if strings.HasPrefix(block, "$ ") { // the command that prints it
		_, block, _ = strings.Cut(block, "\n")
	}
	return block
}

// defaultDeny is the rule that decides where only shop/db-clients isolates a pod.
func defaultDeny() nodestate.Rule {
	return nodestate.Rule{Kind: "default-deny", Name: "shop/db-clients", Detail: "ingress"}
}

func compare(t *testing.T, guide, name, got string) {
	t.Helper()
	if want := example(t, guide, name); got != want {
		t.Errorf("the example %q of %s is not what is printed:\n%s", name, guide, got)
	}
}

// TestExampleWhy holds the example of docs/guides/why.md against what is printed of such a story:
// the one that TestWhy ("denied at ingress of the other node") gets in a lab.
func TestExampleWhy(t *testing.T) {
	cart, db := netip.MustParseAddr("10.244.124.130"), netip.MustParseAddr("10.244.15.193")
	s := &ask.Story{Source: "pod shop/cart", Target: "pod shop/db",
		Request: whywire.Request{Source: cart, Destination: db, Protocol: model.ProtocolTCP, Port: 5432},
		Nodes: []whywire.Answer{{
			Node: "worker1", Plane: "eBPF", Epoch: 14,
			Policies: []whywire.End{{Direction: "egress", Explanation: policy.Explanation{
				Known: true, Pod: model.Name{Namespace: "shop", Name: "cart"}}}},
			Program: whywire.Program{Name: "weir_from_workload", Interface: "cali0c3b84a0ec8",
				Tag: "2ff95c08ee1dcfb5", ID: 1852, Same: true},
			Packet: "tcp 10.244.124.130:50000 > 10.244.15.193:5432 S ttl=64",
			Outcome: whywire.Outcome{Verdict: whywire.SentOn, Path: "direct", Text: "to node worker2 (172.31.1.208)",
				Packet: "tcp 10.244.124.130:50000 > 10.244.15.193:5432 S ttl=63",
				Route:  &whywire.Route{Prefix: "172.31.1.0/24", Interface: "eth0", By: "kernel"}},
		}, {
			Node: "worker2", Plane: "eBPF", Epoch: 15,
			Policies: []whywire.End{{Direction: "ingress", Peer: cart, Explanation: policy.Explanation{
				Known: true, Isolated: true, Pod: model.Name{Namespace: "shop", Name: "db"},
				Rule: defaultDeny(),
				Tiers: []policy.ExplainedTier{{Name: "default", End: policy.EndDefaultDeny,
					Policies: []policy.ExplainedPolicy{{Kind: "NetworkPolicy", Name: "shop/db-clients",
						Rules: []policy.ExplainedRule{{Detail: "ingress[0]", Action: "Allow", Why: policy.NotPeer}}}}}},
			}}},
			Program: whywire.Program{Name: "weir_from_uplink", Interface: "eth0", Tag: "d51ad8cbc2295d6a",
				ID: 1859, Same: true},
			Packet: "tcp 10.244.124.130:50000 > 10.244.15.193:5432 S ttl=63",
			Outcome: whywire.Outcome{Verdict: whywire.Dropped, Reason: "POLICY_INGRESS",
				Text: "denied by ingress policy", Rule: defaultDeny().String()},
		}}}
	s.Conclude()
	var out strings.Builder
	if err := s.Write(&out, "text"); err != nil {
		t.Fatal(err)
	}
	compare(t, "why.md", "why", out.String())
}

// TestExampleMonitor holds the lines of docs/guides/first-policy.md.
func TestExampleMonitor(t *testing.T) {
	rule := defaultDeny()
	e := &events.Event{
		Time: time.Date(2026, 1, 1, 10, 4, 7, 215e6, time.UTC), Node: "worker2", Verdict: "denied",
		Protocol: "tcp", Reason: "POLICY_INGRESS",
		Source:      events.Peer{Pod: "shop/other"},
		Destination: events.Peer{Pod: "shop/db", Port: 80},
		Ingress:     &events.End{Rule: &events.Rule{Kind: rule.Kind, Name: rule.Name, Detail: rule.Detail}},
	}
	compare(t, "first-policy.md", "monitor", e.String()+"\n")
	e.Time = time.Date(2026, 1, 1, 10, 9, 31, 842e6, time.UTC)
	e.Ingress.Staged = &events.Staged{Verdict: "allowed",
		Rule: &events.Rule{Kind: "StagedKubernetesNetworkPolicy", Name: "shop/db-clients",
			Detail: "ingress[0]"}}
	compare(t, "first-policy.md", "staged", e.String()+"\n")
}

// TestExampleStatus holds the table of docs/guides/migrate-from-kube-proxy.md.
func TestExampleStatus(t *testing.T) {
	r := &report{components: []string{"weir-node 3/3 ready, 3 up to date", "weir-controller 2/2 ready"}}
	for _, n := range []struct {
		name, address string
		pods          int32
		age           time.Duration
	}{{"cp", "172.31.1.8", 2, time.Second}, {"worker1", "172.31.1.207", 9, 2 * time.Second}, {"worker2", "172.31.1.208", 8, time.Second}} {
		r.nodes = append(r.nodes, nodeReport{name: n.name, state: "ready", ready: true, dataplane: "nftables",
			address: n.address, version: "v1", heartbeat: n.age, endpoints: n.pods, services: 6, policies: 3})
		r.leftToOthers = append(r.leftToOthers, n.name+": services: kube-proxy")
	}
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	compare(t, "migrate-from-kube-proxy.md", "status", out.String())
}
