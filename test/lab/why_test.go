// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"encoding/json"
	"strings"
	"testing"
)

// explanation is what the test looks at of `weir why -o json`.
type explanation struct {
	Allowed  bool
	Doubtful bool
	Verdict  string
	Nodes    []struct {
		Node     string
		Plane    string
		Warnings []string
		Tables   *struct { // of nftables
			Rules int
			Same  bool
		}
		Program struct {
			Tag  string
			Same bool
		}
		Service struct {
			Backends []struct{ Address, Node string }
		}
		Outcome struct{ Verdict, Way, Reason, Rule string }
	}
}

// source is a place in the words of weir why.
func (p *place) source() string {
	switch _, node := nodes[p.machine]; {
	case p.pod != "":
		return p.pod
	case node:
		return "node/" + p.machine
	}
	return p.addr
}

// why asks for a connection, checks the exit code, and that what was run is what is loaded.
func (b *space) why(t *testing.T, code int, from *place, to string) explanation {
	t.Helper()
	out, got := b.weir(t, "why", from.source(), to, "-n", b.ns, "-o", "json")
	var w explanation
	if err := json.Unmarshal([]byte(out), &w); err != nil || got != code {
		t.Fatalf("weir why %v %s: exit code %d, want %d: %v\n%s", from, to, got, code, err, out)
	}
	if w.Doubtful {
		t.Errorf("weir why %v %s is in doubt:\n%s", from, to, out)
	}
	for _, n := range w.Nodes {
		if n.Program.Tag != "" && !n.Program.Same {
			t.Errorf("node %s ran another program than the one that is loaded:\n%s", n.Node, out)
		}
		if n.Plane == "nftables" && (n.Tables == nil || !n.Tables.Same || n.Tables.Rules < 50) {
			t.Errorf("node %s has other rules than its agent wrote:\n%s", n.Node, out)
		}
	}
	text, _ := b.weir(t, "why", from.source(), to, "-n", b.ns)
	t.Logf("weir why %s %s\n%s", from.source(), to, text)
	return w
}

// TestWhy asks why alongside real connections.
func TestWhy(t *testing.T) {
	b := sharedBase(t)
	who := at(b.srv2.addr, whoPort)
	t.Run("allowed on another node", func(t *testing.T) {
		b.cli1.reaches(t, who, "srv2", b.cli1.addr)
		w := b.why(t, 0, b.cli1, who)
		if len(w.Nodes) != 2 || w.Nodes[0].Outcome.Verdict != "sent on" || w.Nodes[1].Outcome.Verdict != "delivered" || w.Nodes[1].Outcome.Way != "local" {
			t.Errorf("%+v", w)
		}
		w = b.why(t, 0, b.cli1, "svc2:who")
		if len(w.Nodes) != 2 || len(w.Nodes[0].Service.Backends) != 1 || w.Nodes[0].Service.Backends[0].Address != who || w.Nodes[0].Service.Backends[0].Node != "worker2" {
			t.Errorf("by the Service: %+v", w)
		}
	})
	t.Run("denied at egress", func(t *testing.T) {
		b.policy(t, "no-way-out", `{podSelector: {matchLabels: {pod: cli1}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: srv1}}}]}]}`)
		b.cli1.soon(t, who, false)
		w := b.why(t, 1, b.cli1, who)
		if len(w.Nodes) != 1 || w.Nodes[0].Outcome.Reason != "POLICY_EGRESS" || !strings.Contains(w.Verdict, "no-way-out") {
			t.Errorf("%+v", w)
		}
		b.cli1.reaches(t, at(b.srv1.addr, whoPort), "srv1", b.cli1.addr)
		if w := b.why(t, 0, b.cli1, at(b.srv1.addr, whoPort)); len(w.Nodes) != 1 || !strings.Contains(w.Nodes[0].Outcome.Rule, "no-way-out egress[0]") {
			t.Errorf("%+v", w)
		}
		b.noPolicy(t, "no-way-out")
		b.cli1.soon(t, who, true)
	})
	t.Run("denied at ingress of the other node", func(t *testing.T) {
		b.policy(t, "closed", `{podSelector: {matchLabels: {pod: srv2}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli2}}}]}]}`)
		b.cli1.soon(t, who, false)
		w := b.why(t, 1, b.cli1, who)
		if len(w.Nodes) != 2 || w.Nodes[1].Outcome.Reason != "POLICY_INGRESS" || !strings.Contains(w.Verdict, "closed") {
			t.Errorf("%+v", w)
		}
		b.cli2.reaches(t, who, "srv2", b.cli2.addr)
		b.why(t, 0, b.cli2, who)
		b.noPolicy(t, "closed")
		b.cli1.soon(t, who, true)
	})
	t.Run("a Service without endpoints", func(t *testing.T) {
		empty := b.service(t, "empty", map[string]string{"pod": "nobody"}, 0, nil).Spec.ClusterIP
		b.cli1.soon(t, at(empty, whoPort), false)
		w := b.why(t, 1, b.cli1, "empty:who")
		if len(w.Nodes) != 1 || w.Nodes[0].Outcome.Reason != "NO_BACKEND" {
			t.Errorf("%+v", w)
		}
	})
}
