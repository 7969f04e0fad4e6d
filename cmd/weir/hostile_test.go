// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/objects"
)

// controls are what a terminal obeys: an escape, the same in eight bits, a return, a backspace, and
// marks that turn the direction of what follows.
const controls = "\x1b[2J\u009b2J\u0085\r\b\u202e\u2066\u200f"

// unseen returns the characters of a text that are neither seen nor the end of a line.
func unseen(text string) (out []rune) {
	for _, c := range text {
		if c != '\n' && !unicode.IsPrint(c) {
			out = append(out, c)
		}
	}
	return out
}

// TestHostileWordsOfNode: what a node writes into its NodeStatus, and sends as events, is shown to
// operators. It is shown as text.
func TestHostileWordsOfNode(t *testing.T) {
	t.Run("status", func(t *testing.T) {
		hostile.Record(t, "a compromised node controls the terminal of who asks for the status by its NodeStatus", hostile.Node, hostile.ControlPlane, hostile.Both)
		now := metav1.Now()
		status := &weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{Dataplane: "eBPF" + controls, NodeAddress: "172.31.1.8" + controls, Version: "v1\nn2 ready" + controls, LastHeartbeat: &now,
			Conditions: []weirv1.Condition{{Type: "Ready" + controls, Status: "False", Message: controls}}, Problems: []weirv1.Problem{{Object: controls, Message: controls}},
			UnsupportedFields: []string{controls}, Announced: []string{controls}, Drops: []weirv1.Drop{{Reason: controls, Rule: controls, Packets: 1}},
			ServiceHandling: controls, DSRFallback: &weirv1.DSRFallback{Clients: 1, Addresses: []string{controls}}}}
		status.Status.EgressGateways = &weirv1.EgressGatewaysStatus{Gateways: []string{controls}, Clients: 1, Without: []string{controls}}
		status.Status.BGP = &weirv1.BGPStatus{Sessions: 1, Objects: []string{controls}}
		r := &report{}
		r.nodes = append(r.nodes, r.readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, status, now.Time, staleAfter(1)))
		var out bytes.Buffer
		if err := r.print(&out); err != nil {
			t.Fatal(err)
		}
		if got := unseen(out.String()); len(got) > 0 {
			t.Errorf("%q reach the terminal", got)
		}
		if strings.Contains(out.String(), "\nn2") {
			t.Error("a node adds lines of others")
		}
	})
	for _, asJSON := range []bool{false, true} {
		t.Run("events", func(t *testing.T) {
			hostile.Record(t, "a compromised node controls the terminal of who monitors by its events", hostile.Node, hostile.ControlPlane, hostile.Both)
			e := events.Event{Time: time.Unix(0, 0), Node: "n1" + controls, Verdict: "denied" + controls, Reason: controls, Protocol: controls, Service: controls, Hook: controls,
				Source:  events.Peer{Address: netip.MustParseAddr("10.0.0.1"), Pod: controls},
				Ingress: &events.End{Rule: &events.Rule{Kind: controls, Name: "a/p\U000e0001", Detail: controls}}}
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			raw := strings.ReplaceAll(string(line), "}", "\x1b[2J}") // between values, where no event has anything
			var out bytes.Buffer
			m := &monitor{out: &out, json: asJSON}
			if err := m.show([]byte(raw)); err == nil {
				t.Error("what is no event is shown")
			}
			if err := m.show(line); err != nil {
				t.Fatal(err)
			}
			if got := unseen(out.String()); len(got) > 0 {
				t.Errorf("%q reach the terminal", got)
			}
			var back events.Event
			if asJSON && (json.Unmarshal(out.Bytes(), &back) != nil || back.Verdict != e.Verdict || back.Ingress.Rule.Name != e.Ingress.Rule.Name) {
				t.Errorf("%s is not the event", &out)
			}
		})
	}
}

// TestHostileHeartbeatAhead: a node whose clock, or whose agent, says that it reported in the
// future is not one that reported just now.
func TestHostileHeartbeatAhead(t *testing.T) {
	hostile.Record(t, "a node counts as healthy for ever by a heartbeat of the future", hostile.Node, hostile.ControlPlane, hostile.Both)
	now := time.Now()
	for ahead, ready := range map[time.Duration]bool{-time.Minute: true, 10 * time.Second: true, time.Hour: false, 100 * 365 * 24 * time.Hour: false} {
		at := metav1.NewTime(now.Add(ahead))
		status := &weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{LastHeartbeat: &at, Conditions: []weirv1.Condition{{Type: weirv1.ConditionReady, Status: metav1.ConditionTrue}}}}
		r := &report{}
		r.nodes = append(r.nodes, r.readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, status, now, staleAfter(1)))
		var out bytes.Buffer
		if err := r.print(&out); err != nil || r.healthy() != ready || strings.Contains(out.String(), " ahead") == ready {
			t.Errorf("%s ahead: healthy %v, %v\n%s", ahead, r.healthy(), err, &out)
		}
	}
}

// TestHostileAdmissionThatIsGone: what the API server refuses is reported when it is refused no
// longer.
func TestHostileAdmissionThatIsGone(t *testing.T) {
	hostile.Record(t, "a policy of admission is gone, audits, or has an exception, unnoticed", hostile.Operator, hostile.ControlPlane, hostile.Both)
	const binding, policy = "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"
	set := func(value any, path ...string) func(*unstructured.Unstructured) bool {
		return func(u *unstructured.Unstructured) bool {
			if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
				t.Fatal(err)
			}
			return true
		}
	}
	for what, c := range map[string]struct {
		kind   string
		change func(*unstructured.Unstructured) bool // reports whether the object is still there
		want   string
	}{
		"as installed":         {"", nil, ""},
		"a policy is gone":     {policy, func(*unstructured.Unstructured) bool { return false }, "do not exist"},
		"a binding is gone":    {binding, func(*unstructured.Unstructured) bool { return false }, "do not exist"},
		"audits":               {binding, set([]any{"Audit"}, "spec", "validationActions"), "spec.validationActions"},
		"failures are ignored": {policy, set("Ignore", "spec", "failurePolicy"), "spec.failurePolicy"},
		"is for other objects": {policy, set(map[string]any{"matchLabels": map[string]any{"a": "b"}}, "spec", "matchConstraints", "objectSelector"), "objectSelector"},
		"has an exception":     {policy, set([]any{map[string]any{"operations": []any{"*"}}}, "spec", "matchConstraints", "excludeResourceRules"), "excludeResourceRules"},
	} {
		all, err := deploy.Objects(deploy.Defaults())
		if err != nil {
			t.Fatal(err)
		}
		dynamic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		for _, u := range all {
			if u.GetKind() != policy && u.GetKind() != binding {
				continue
			}
			if u.GetName() == "weir-node-own-objects" && u.GetKind() == c.kind && !c.change(u) {
				continue
			}
			if _, err := objects.Resource(dynamic, u).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		r := &report{}
		if err := r.readAdmission(t.Context(), &clientset.Clients{Clients: &client.Clients{Dynamic: dynamic}}); err != nil {
			t.Fatal(err)
		}
		if r.healthy() != (c.want == "") || c.want != "" && (len(r.faults) != 1 || !strings.Contains(r.faults[0], c.want)) {
			t.Errorf("%s: %q", what, r.faults)
		}
	}
}
