// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
)

// path is what the nodes did, in short.
func (w explanation) path() string {
	var parts []string
	for _, n := range w.Nodes {
		part := n.Node + " " + n.Outcome.Verdict + " " + n.Outcome.Reason + n.Outcome.Way
		if n.Outcome.Verdict == "dropped" {
			part += " by " + n.Outcome.Rule
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// goes checks that a connection works, and that weir why says which way.
func (b *space) goes(t *testing.T, from *place, to, name, seen, want string) {
	t.Helper()
	from.reaches(t, to, name, seen)
	if w := b.why(t, 0, from, to); w.path() != want {
		t.Errorf("%v to %s: %s, want %s", from, to, w.path(), want)
	}
}

// denied checks that a connection does not work, and that weir why names the rule.
func (b *space) denied(t *testing.T, from *place, to, want string) {
	t.Helper()
	from.soon(t, to, false)
	if w := b.why(t, 1, from, to); w.path() != want {
		t.Errorf("%v to %s: %s, want %s", from, to, w.path(), want)
	}
}

// TestWhyStandard asks why on nodes with nftables alongside real connections: on two nodes without
// a tunnel and in it, by Services, handed on, with policy and host endpoints; and where the nodes'
// data planes differ.
func TestWhyStandard(t *testing.T) {
	b := sharedBase(t)
	b.patchFelix(t, `{"bpfEnabled":false}`, "bpfEnabled")
	t.Cleanup(func() {
		b.patchFelix(t, `{"bpfEnabled":null}`)
		b.awaitPlane(t, "eBPF")
		b.agentsReady(t, 0, nil)
	})
	b.awaitPlane(t, "nftables")
	b.agentsReady(t, 0, nil)
	who := at(b.srv2.addr, whoPort)
	all := func(t *testing.T, path string) {
		there := "worker1 sent on " + path + ", worker2 delivered local"
		b.goes(t, b.cli1, who, "srv2", b.cli1.addr, there)
		b.goes(t, b.cli1, at(b.svc2, whoPort), "srv2", b.cli1.addr, there)
		b.goes(t, b.cli1, at(b.srv1.addr, whoPort), "srv1", b.cli1.addr, "worker1 delivered local")
		b.goes(t, b.host("worker1", worker1Addr), at(b.svc2, whoPort), "srv2", worker1Addr, there)
		b.goes(t, b.client(1), at(worker1Addr, nodePort1+nodeWho), "srv1", client1Addr, "worker1 delivered local")
		b.goes(t, b.client(1), at(worker1Addr, nodePort2+nodeWho), "srv2", client1Addr, "worker1 sent on direct, worker2 delivered local") // handed on by the link
		b.policy(t, "closed", `{podSelector: {matchLabels: {pod: srv2}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: cli2}}}]}]}`)
		closed := func(path string) string {
			return fmt.Sprintf("worker1 sent on %s, worker2 dropped POLICY_INGRESS by default-deny %s/closed ingress", path, b.ns)
		}
		b.denied(t, b.cli1, who, closed(path))
		b.denied(t, b.cli1, at(b.svc2, whoPort), closed(path))
		b.denied(t, b.client(1), at(worker1Addr, nodePort2+nodeWho), closed("direct"))
		b.goes(t, b.cli2, who, "srv2", b.cli2.addr, "worker2 delivered local")
		b.noPolicy(t, "closed")
		b.cli1.soon(t, who, true)
	}
	t.Run("without a tunnel", func(t *testing.T) { all(t, "direct") })
	t.Run("denied at egress", func(t *testing.T) {
		b.policy(t, "no-way-out", `{podSelector: {matchLabels: {pod: cli1}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: srv1}}}]}]}`)
		b.denied(t, b.cli1, who, fmt.Sprintf("worker1 dropped POLICY_EGRESS by default-deny %s/no-way-out egress", b.ns))
		b.noPolicy(t, "no-way-out")
		b.cli1.soon(t, who, true)
	})
	t.Run("a Service without endpoints", func(t *testing.T) {
		empty := b.service(t, "empty", map[string]string{"pod": "nobody"}, 0, nil).Spec.ClusterIP
		b.cli1.soon(t, at(empty, whoPort), false)
		if w := b.why(t, 1, b.cli1, "empty:who"); len(w.Nodes) != 1 || w.Nodes[0].Outcome.Reason != "NO_BACKEND" {
			t.Errorf("%+v", w)
		}
	})
	t.Run("host endpoint", b.testWhyHostEndpoint)
	t.Run("in the tunnel", func(t *testing.T) {
		b.poolMode(t, "Always")
		eventually(t, 0, "the tunnel", func() error {
			before := b.encapsulated(t, "worker2")
			if r := b.cli1.dial(t, who, 5); r.Failed > 0 || b.encapsulated(t, "worker2")-before < 15 {
				return fmt.Errorf("%v packets: %v", b.encapsulated(t, "worker2")-before, r)
			}
			return nil
		})
		all(t, "tunnel")
	})
}

// testWhyHostEndpoint: what a host endpoint of worker2 denies is named, whoever sends.
func (b *base) testWhyHostEndpoint(t *testing.T) {
	const port = 9310
	worker2 := b.host("worker2", worker2Addr)
	for _, o := range []string{
		`{"apiVersion": "projectcalico.org/v3", "kind": "HostEndpoint", "metadata": {"name": "why-worker2", "labels": {"why": "host"}}, "spec": {"node": "worker2", "interfaceName": "*"}}`,
		fmt.Sprintf(`{"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "why-host"}, "spec": {"selector": "why == 'host'", "types": ["Ingress", "Egress"],
			"ingress": [{"action": "Deny", "protocol": "TCP", "destination": {"ports": [%d]}}, {"action": "Allow"}], "egress": [{"action": "Deny", "protocol": "TCP", "destination": {"ports": [%d]}}, {"action": "Allow"}]}}`, port, port+1),
	} {
		b.mustKubectl(t, o, "apply", "-f", "-")
	}
	t.Cleanup(func() {
		b.mustKubectl(t, "", "delete", "globalnetworkpolicies.projectcalico.org", "why-host")
		b.mustKubectl(t, "", "delete", "hostendpoints.projectcalico.org", "why-worker2")
	})
	server := worker2.begin(t, "server", "--name", "host2", "--who", fmt.Sprint(port), "--until-stdin-ends")
	defer server.stop()
	other := b.client(1).begin(t, "server", "--name", "out", "--who", fmt.Sprint(port+1), "--until-stdin-ends")
	defer other.stop()
	worker2.soon(t, at(worker2Addr, port), true) // no policy applies to what the node says to itself
	b.denied(t, b.client(1), at(worker2Addr, port), "worker2 dropped HOST_INGRESS by GlobalNetworkPolicy why-host ingress[0]")
	b.denied(t, b.host("worker1", worker1Addr), at(worker2Addr, port), "worker1 sent on direct, worker2 dropped HOST_INGRESS by GlobalNetworkPolicy why-host ingress[0]")
	b.denied(t, worker2, at(client1Addr, port+1), "worker2 dropped HOST_EGRESS by GlobalNetworkPolicy why-host egress[0]")
	b.goes(t, b.host("worker1", worker1Addr), at(client1Addr, port+1), "out", worker1Addr, "worker1 left direct")
}
