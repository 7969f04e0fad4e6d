// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

func TestTargets(t *testing.T) {
	for text, want := range map[string]destination{
		"svc/web:80": {"svc/web", "80", ""}, "shop/web:http/tcp": {"shop/web", "http", "tcp"}, "web.shop:53/UDP": {"web.shop", "53", "udp"},
		"10.0.0.1:80/sctp": {"10.0.0.1", "80", "sctp"}, "[fd00::1]:80": {"fd00::1", "80", ""}, "10.0.0.1/icmp": {"10.0.0.1", "", "icmp"},
		"[fd00::1]/icmp": {"fd00::1", "", "icmp"}, "fd00::1/icmp": {"fd00::1", "", "icmp"}, "shop/web/icmp": {"shop/web", "", "icmp"},
	} {
		if got, err := parseTarget(text); err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "web", ":80", "web:", "fd00::1:80", "shop/web", "web/tcp"} {
		if got, err := parseTarget(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	svc := &end{text: "Service a/b", ports: []corev1.ServicePort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "web", Protocol: corev1.ProtocolTCP, Port: 80}}}
	four := netip.MustParseAddr("10.0.0.1")
	for _, c := range []struct {
		port, proto string
		want        model.Protocol
		number      uint16
	}{{"dns", "", model.ProtocolUDP, 53}, {"53", "", model.ProtocolUDP, 53}, {"53", "tcp", model.ProtocolTCP, 53}, {"web", "", model.ProtocolTCP, 80}, {"99", "", model.ProtocolTCP, 99}, {"", "icmp", model.ProtocolICMP, 0}} {
		if p, n, err := svc.portOf(destination{port: c.port, proto: c.proto}, four); err != nil || p != c.want || n != c.number {
			t.Errorf("%+v: %s %d %v", c, p, n, err)
		}
	}
	for _, port := range []string{"nope", "0", "65536", "-1"} {
		if p, n, err := svc.portOf(destination{port: port}, four); err == nil {
			t.Errorf("port %s: %s %d", port, p, n)
		}
	}
}

// A pod is asked about with another source by its own address of that family; nobody else is.
func TestSourceAddress(t *testing.T) {
	addrs := func(text ...string) (out []netip.Addr) {
		for _, a := range text {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	pod := &end{text: "pod a/b", addrs: addrs("10.0.0.1", "fd00::1"), hook: whywire.FromWorkload}
	to := &end{text: "c", addrs: addrs("192.0.2.1", "2001:db8::1")}
	for source, want := range map[string]string{"203.0.113.7": "10.0.0.1 203.0.113.7 192.0.2.1", "2001:db8:7::7": "fd00::1 2001:db8:7::7 2001:db8::1", "10.0.0.1": "invalid IP 10.0.0.1 192.0.2.1"} {
		own, a, b, err := sendsWith(pod, to, source)
		if got := fmt.Sprint(own, " ", a, " ", b); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", source, got, err, want)
		}
	}
	for source, from := range map[string]*end{"x": pod, "fe80::1%eth0": pod, "203.0.113.7": {text: "node n", addrs: pod.addrs, hook: whywire.ToUplink},
		"203.0.113.8": {text: "pod a/six", addrs: addrs("fd00::1"), hook: whywire.FromWorkload}} {
		if own, _, _, err := sendsWith(from, to, source); err == nil {
			t.Errorf("%s of %s: %s", source, from.text, own)
		}
	}
}

func TestStoryIsOneScreen(t *testing.T) {
	rules := make([]policy.ExplainedRule, 0, 200)
	for range 199 {
		rules = append(rules, policy.ExplainedRule{Detail: "egress[0]", Action: "Allow", Why: policy.NotPeer})
	}
	rules = append(rules, policy.ExplainedRule{Detail: "egress[199]", Action: "Deny", Matched: true})
	rule := nodestate.Rule{Kind: "NetworkPolicy", Name: "a/p", Detail: "egress[199]"}
	s := &Story{Source: "pod a/client", Target: "Service a/web", Request: whywire.Request{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.96.0.1"), Protocol: model.ProtocolTCP, Port: 80},
		Nodes: []whywire.Answer{{Node: "n1\x1b[2J", Epoch: 4, Service: &whywire.Service{Name: "Service a/web", Frontend: "10.96.0.1:80/tcp", Where: whywire.AtConnect, Chosen: "10.0.0.30:80"},
			Policies: []whywire.End{{Direction: "egress", Explanation: policy.Explanation{Isolated: true, Known: true, Rule: rule,
				Tiers: []policy.ExplainedTier{{Name: "default", End: policy.EndDecided, Policies: []policy.ExplainedPolicy{{Kind: "NetworkPolicy", Name: "a/p", Rules: rules}}}}}}},
			Program: whywire.Program{Name: "weir_from_workload", Tag: "aa", Live: "aa", Same: true, ID: 7},
			Outcome: whywire.Outcome{Verdict: whywire.Dropped, Reason: "POLICY_EGRESS", Text: "denied by egress policy", Rule: rule.String()}}}}
	for i := range 30 {
		s.Nodes[0].Service.Backends = append(s.Nodes[0].Service.Backends, whywire.Backend{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80).String(), Usable: true})
	}
	s.Conclude()
	var out strings.Builder
	if err := s.Write(&out, "text"); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"199 rules do not match: 199 by peer", "egress[199]", "10.0.0.30:80", "30 endpoints in all", "tag aa (program 7, the same as loaded)", "Denied on node", "NetworkPolicy a/p egress[199]"} {
		if !strings.Contains(text, want) {
			t.Errorf("does not mention %q", want)
		}
	}
	if n := strings.Count(text, "\n"); n > 40 || strings.Contains(text, "\x1b") || s.Allowed || s.Doubtful {
		t.Errorf("%d lines, allowed %t, doubtful %t:\n%s", n, s.Allowed, s.Doubtful, text)
	}
	s.Nodes[0].Warnings = []string{"two of us disagree"}
	s.Conclude()
	out.Reset()
	if err := s.Write(&out, "text"); err != nil || !s.Doubtful || !strings.Contains(out.String(), "!! two of us disagree") {
		t.Errorf("a disagreement is not reported: %v\n%s", err, out.String())
	}
}
