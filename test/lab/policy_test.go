// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// policy makes a NetworkPolicy of its spec, in YAML flow style or JSON.
func (s *space) policy(t *testing.T, name, spec string) {
	t.Helper()
	s.mustKubectl(t, fmt.Sprintf(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": %q}, "spec": %s}`, name, spec), "apply", "-n", s.ns, "-f", "-")
}

func (s *space) noPolicy(t *testing.T, name string) {
	t.Helper()
	s.mustKubectl(t, "", "delete", "networkpolicy", "-n", s.ns, name)
}

// soon waits until connections fail, or work again.
func (p *place) soon(t *testing.T, to string, works bool, args ...string) {
	t.Helper()
	eventually(t, 5*time.Second, fmt.Sprintf("%v to %s %v works: %v", p, to, args, works), func() error {
		limit := "700ms"
		if works {
			limit = "5s"
		}
		if r := p.dial(t, to, 1, append(args, "--timeout", limit)...); (r.Failed == 0) != works {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
}

// TestPolicyClient is the demo's: of two outside clients of a node port, one is allowed.
func TestPolicyClient(t *testing.T) {
	b := sharedBase(t)
	np := at(cpAddr, nodePort1+nodeWho)
	open := b.client(2).begin(t, "stream", at(cpAddr, nodePort1+nodeEcho))
	udp := at(cpAddr, nodePort1+nodeUDP)
	before := b.drops(t, "worker1", "POLICY_INGRESS", "")
	b.policy(t, "only-client1", `{podSelector: {matchLabels: {pod: srv1}}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 172.31.1.55/32}}]}]}`)
	b.client(2).soon(t, np, false)
	for _, mode := range []string{"DSR", "Tunnel"} {
		b.patchFelix(t, `{"bpfExternalServiceMode":"`+mode+`"}`, "bpfExternalServiceMode")
		b.awaitMode(t, mode)
		b.client(1).reaches(t, np, "srv1", client1Addr)
		b.client(1).reaches(t, udp, "srv1", client1Addr, "--udp")
		allRefused(t, b.client(2).to(np), b.client(2).to(udp, "--udp"), b.client(3).to(np),
			b.cli1.to(at(b.srv1.addr, whoPort)), b.cli2.to(at(b.svc1, whoPort)))
	}
	b.client(2).reaches(t, at(cpAddr, nodePort2+nodeWho), "srv2", client2Addr)
	// The connection that was open before the policy has ended its work too.
	if res := stalled(t, open); res.GapMS < 0 {
		t.Errorf("an open connection goes on against a policy: %+v", res)
	}
	if n := b.drops(t, "worker1", "POLICY_INGRESS", "") - before; n < 10 {
		t.Errorf("%v packets are counted as denied", n)
	}
	eventually(t, 40*time.Second, "weir status names the drops", func() error {
		if out, _ := b.weir(t, "status"); !strings.Contains(out, "POLICY_INGRESS by default-deny "+b.ns+"/only-client1 ") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	b.noPolicy(t, "only-client1")
	b.client(2).soon(t, np, true)
}

// stalled ends a stream that must have stopped; GapMS is negative when it went on.
func stalled(t *testing.T, r *running) streamResult {
	t.Helper()
	res := result[streamResult](t, r)
	if res.Error == "" {
		res.GapMS = -1
	}
	return res
}

func TestPolicyKinds(t *testing.T) {
	b := sharedBase(t)
	other := all.newSpace(t, "other")
	out := other.start(t, other.idle("visitor", "worker2", map[string]string{"app": "good"}))[0]
	who1, udp1 := at(b.srv1.addr, whoPort), at(b.srv1.addr, udpPort)
	t.Run("pod selector and port", func(t *testing.T) {
		b.policy(t, "p", `{podSelector: {matchLabels: {pod: srv1}}, ingress: [{from: [{podSelector: {matchLabels: {pod: cli1}}}], ports: [{port: 9001}]}]}`)
		b.cli2.soon(t, who1, false)
		b.cli1.reaches(t, who1, "srv1", b.cli1.addr)
		allRefused(t, b.cli1.to(udp1, "--udp"), b.cli1.to(at(b.srv1.addr, echoPort)), out.to(who1))
	})
	t.Run("namespace selector, endPort", func(t *testing.T) {
		b.policy(t, "p", `{podSelector: {matchLabels: {pod: srv1}}, ingress: [{from: [{namespaceSelector: {matchLabels: {name: other}}, podSelector: {matchLabels: {app: good}}}], ports: [{port: 9000, endPort: 9001}, {port: 8081, protocol: UDP}]}]}`)
		out.soon(t, who1, true)
		out.reaches(t, udp1, "srv1", out.addr, "--udp")
		b.cli1.soon(t, who1, false)
		allRefused(t, out.to(at(b.srv1.addr, httpPort)), b.cli2.to(udp1, "--udp"))
	})
	t.Run("except", func(t *testing.T) {
		b.policy(t, "p", `{podSelector: {matchLabels: {pod: srv1}}, ingress: [{from: [{ipBlock: {cidr: 172.31.1.0/24, except: [172.31.1.162/32]}}]}]}`)
		b.client(1).soon(t, at(cpAddr, nodePort1+nodeWho), true)
		allRefused(t, b.client(2).to(at(cpAddr, nodePort1+nodeWho)), b.cli2.to(who1))
	})
	b.noPolicy(t, "p")
	b.cli2.soon(t, who1, true)
	t.Run("egress", func(t *testing.T) {
		server := b.client(1).begin(t, "server", "--name", "out", "--who", "9301", "--until-stdin-ends")
		defer server.stop()
		before := b.drops(t, "worker1", "POLICY_EGRESS", "")
		b.policy(t, "e", `{podSelector: {matchLabels: {pod: cli1}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: srv2}}}]}]}`)
		b.cli1.soon(t, who1, false)
		b.cli1.reaches(t, at(b.svc2, whoPort), "srv2", b.cli1.addr)
		b.cli1.reaches(t, at(b.svc2, udpPort), "srv2", b.cli1.addr, "--udp")
		allRefused(t, b.cli1.to(at(b.svc1, whoPort)), b.cli1.to(at(client1Addr, 9301)))
		b.cli2.reaches(t, at(client1Addr, 9301), "out", worker2Addr)
		b.srv2.reaches(t, who1, "srv1", b.srv2.addr)
		if n := b.drops(t, "worker1", "POLICY_EGRESS", "") - before; n < 5 {
			t.Errorf("%v packets are counted as denied", n)
		}
		b.noPolicy(t, "e")
	})
	t.Run("labels change", func(t *testing.T) {
		b.policy(t, "l", `{podSelector: {matchLabels: {pod: srv2}}, ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]}`)
		b.cli1.soon(t, at(b.srv2.addr, whoPort), false)
		b.mustKubectl(t, "", "label", "pod", "-n", b.ns, "cli1", "role=friend")
		b.cli1.soon(t, at(b.srv2.addr, whoPort), true)
		open := b.cli1.begin(t, "stream", at(b.srv2.addr, echoPort))
		b.mustKubectl(t, "", "label", "pod", "-n", b.ns, "cli1", "role-")
		b.cli1.soon(t, at(b.srv2.addr, whoPort), false)
		if res := stalled(t, open); res.GapMS < 0 || !strings.Contains(res.Error, "connection reset") {
			t.Errorf("an open connection is not reset though the label is gone: %+v", res)
		}
		b.noPolicy(t, "l")
	})
}

// TestPolicyBeforeFirstPacket: pods that dial from their first moment under a policy that denies
// all never get out.
func TestPolicyBeforeFirstPacket(t *testing.T) {
	sharedBase(t).jailed(t, 20)
}

// jailed makes pods that may reach nothing, and wants that none of them got out before its policy
// was in force.
func (b *base) jailed(t *testing.T, count int) {
	t.Helper()
	escape := func(name, node string, labels map[string]string) *corev1.Pod {
		return b.podSpec(name, node, []string{"/t/traffic", "escape", "--tcp", at(b.srv2.addr, whoPort), "--udp", at(b.srv2.addr, udpPort)}, labels)
	}
	b.policy(t, "no-egress", `{podSelector: {matchLabels: {jailed: "yes"}}, policyTypes: [Egress]}`)
	b.create(t, escape("free", "worker1", nil))
	for i := range count {
		b.create(t, escape(fmt.Sprintf("jailed%d", i), []string{"worker1", "worker2"}[i%2], map[string]string{"jailed": "yes"}))
	}
	for name, code := range b.exitCodes(t, count+1, "free", "jailed") {
		if want := map[bool]int32{true: 3, false: 0}[name == "free"]; code != want {
			t.Errorf("pod %s ended with code %d, want %d (3 = it got out)", name, code, want)
		}
	}
}
