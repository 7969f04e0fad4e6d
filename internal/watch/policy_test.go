// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/model"
)

func labels(reqs ...model.Requirement) *model.LabelSelector {
	return &model.LabelSelector{Requirements: reqs}
}

func in(key string, values ...string) model.Requirement {
	return model.Requirement{Key: key, Op: model.In, Values: values}
}

func TestConvertNetworkPolicy(t *testing.T) {
	got, found := ConvertNetworkPolicy(from[networkingv1.NetworkPolicy](t, `
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web, a: b}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - podSelector: {}
    - namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [yy, x, x]}, {key: env, operator: Exists}]}
    - namespaceSelector: {}
      podSelector: {matchLabels: {role: client}}
    - ipBlock: {cidr: 192.0.2.9/24, except: [192.0.2.128/25, 192.0.2.0/30, 192.0.2.0/30]}
    ports:
    - {port: 80}
    - {port: 8000, endPort: 8010, protocol: UDP}
    - {port: http, protocol: TCP}
    - {protocol: SCTP}
  - {}
  egress:
  - to: [{ipBlock: {cidr: "fd00::/8"}}]
`))
	want := &model.Policy{Kind: "NetworkPolicy", Name: model.Name{Namespace: "shop", Name: "web"}, Tier: "default", Order: 1000,
		Subject:        model.Selector{Namespace: "shop", Pods: labels(in("a", "b"), in("app", "web"))},
		AppliesIngress: true, AppliesEgress: true,
		Ingress: []model.Rule{{
			Peers: []model.Peer{
				{Pods: &model.Selector{Namespace: "shop", Pods: labels()}},
				{Pods: &model.Selector{Namespaces: labels(model.Requirement{Key: "env", Op: model.Exists}, model.Requirement{Key: "team", Op: model.NotIn, Values: []string{"x", "yy"}})}},
				{Pods: &model.Selector{Namespaces: labels(), Pods: labels(in("role", "client"))}},
				{CIDR: netip.MustParsePrefix("192.0.2.0/24"), Except: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("192.0.2.128/25")}},
			},
			Ports: []model.PortRange{
				{Protocol: model.ProtocolTCP, First: 80, Last: 80},
				{Protocol: model.ProtocolUDP, First: 8000, Last: 8010},
				{Protocol: model.ProtocolTCP, Named: "http"},
				{Protocol: model.ProtocolSCTP, First: 0, Last: 65535},
			}}, {}},
		Egress: []model.Rule{{Peers: []model.Peer{{CIDR: netip.MustParsePrefix("fd00::/8")}}}},
	}
	check(t, got, want, found, "")
}

func TestPolicyTypesDefault(t *testing.T) {
	for text, want := range map[string][2]bool{
		`{podSelector: {}}`:                                       {true, false},
		`{podSelector: {}, egress: [{}]}`:                         {true, true},
		`{podSelector: {}, policyTypes: [Egress]}`:                {false, true},
		`{podSelector: {}, policyTypes: [Ingress], egress: [{}]}`: {true, false},
		`{podSelector: {}, policyTypes: [Sideways]}`:              {true, true},
	} {
		p, _ := ConvertNetworkPolicy(from[networkingv1.NetworkPolicy](t, "{metadata: {name: p, namespace: n}, spec: "+text+"}"))
		if p.AppliesIngress != want[0] || p.AppliesEgress != want[1] {
			t.Errorf("%s: ingress %v egress %v, want %v", text, p.AppliesIngress, p.AppliesEgress, want)
		}
		if !want[1] && len(p.Egress) > 0 {
			t.Errorf("%s: rules of a direction that the policy does not have", text)
		}
	}
}

// matches is the meaning of a selector's labels, for the test of "nobody".
func matches(s *model.LabelSelector, l map[string]string) bool {
	for _, r := range s.Requirements {
		_, has := l[r.Key]
		if r.Op == model.Exists && !has || r.Op == model.DoesNotExist && has {
			return false
		}
	}
	return true
}

// What cannot be read allows nothing, whatever is written around it, and is named.
func TestPolicyFailsClosed(t *testing.T) {
	for peersAndPorts, field := range map[string]string{
		`from: [{}]`:                          "spec.ingress[0].from[0]",
		`from: [{ipBlock: {cidr: nonsense}}]`: "spec.ingress[0].from[0].ipBlock.cidr",
		`from: [{ipBlock: {cidr: 10.0.0.0/8, except: [192.0.2.0/24]}}]`:                        "spec.ingress[0].from[0].ipBlock.except[0]",
		`from: [{ipBlock: {cidr: 10.0.0.0/8, except: ["fd00::/64"]}}]`:                         "spec.ingress[0].from[0].ipBlock.except[0]",
		`from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]`:                               "spec.ingress[0].from[0]",
		`from: [{podSelector: {matchExpressions: [{key: a, operator: Near, values: [b]}]}}]`:   "spec.ingress[0].from[0].podSelector.matchExpressions[0].operator",
		`from: [{namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}]`:            "spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].values",
		`from: [{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]`: "spec.ingress[0].from[0].podSelector.matchExpressions[0].values",
		`ports: [{port: 0}]`:                  "spec.ingress[0].ports[0]",
		`ports: [{port: 90, endPort: 80}]`:    "spec.ingress[0].ports[0]",
		`ports: [{port: 90, endPort: 70000}]`: "spec.ingress[0].ports[0]",
		`ports: [{port: http, endPort: 80}]`:  "spec.ingress[0].ports[0].port",
		`ports: [{endPort: 80}]`:              "spec.ingress[0].ports[0].endPort",
		`ports: [{port: 80, protocol: ICMP}]`: "spec.ingress[0].ports[0].protocol",
	} {
		p, found := ConvertNetworkPolicy(from[networkingv1.NetworkPolicy](t,
			"{metadata: {name: p, namespace: n}, spec: {podSelector: {}, ingress: [{"+peersAndPorts+"}]}}"))
		if !p.AppliesIngress || !strings.Contains(p.Invalid, field) || fields(found) != field {
			t.Errorf("%s: invalid %q, problems in %q", peersAndPorts, p.Invalid, fields(found))
		}
		if len(p.Ingress) != 1 || len(p.Ingress[0].Peers) != 1 || p.Ingress[0].Peers[0].Pods == nil ||
			matches(p.Ingress[0].Peers[0].Pods.Pods, nil) || matches(p.Ingress[0].Peers[0].Pods.Pods, map[string]string{"weir.dev/nobody": ""}) {
			t.Errorf("%s: allows %+v", peersAndPorts, p.Ingress)
		}
	}
	// A good element next to a bad one stays.
	p, _ := ConvertNetworkPolicy(from[networkingv1.NetworkPolicy](t,
		"{metadata: {name: p, namespace: n}, spec: {podSelector: {}, ingress: [{from: [{}, {ipBlock: {cidr: 10.0.0.0/8}}]}]}}"))
	if want := []model.Rule{{Peers: []model.Peer{{CIDR: netip.MustParsePrefix("10.0.0.0/8")}}}}; !reflect.DeepEqual(p.Ingress, want) {
		t.Errorf("got %+v", p.Ingress)
	}
	// A subject that cannot be read in full isolates more pods, not fewer.
	p, _ = ConvertNetworkPolicy(from[networkingv1.NetworkPolicy](t,
		"{metadata: {name: p, namespace: n}, spec: {podSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: Near}]}}}"))
	if !reflect.DeepEqual(p.Subject.Pods, labels(in("a", "b"))) || p.Invalid == "" {
		t.Errorf("got %+v %q", p.Subject.Pods, p.Invalid)
	}
}

// Two selectors that say the same have one canonical form.
func TestSelectorsAreCanonical(t *testing.T) {
	a := newFinding("x", &metav1.ObjectMeta{})
	one := a.labelSelector("f", from[metav1.LabelSelector](t, `{matchLabels: {b: "2", a: "1"}, matchExpressions: [{key: c, operator: In, values: ["y", x]}, {key: a, operator: In, values: ["1"]}]}`))
	two := a.labelSelector("f", from[metav1.LabelSelector](t, `{matchExpressions: [{key: c, operator: In, values: [x, "y", "y"]}, {key: b, operator: In, values: ["2"]}], matchLabels: {a: "1"}}`))
	if !reflect.DeepEqual(one, two) || len(one.Requirements) != 3 {
		t.Errorf("%+v\n%+v", one, two)
	}
}

// Whatever bytes an object is made of, the conversions do not panic and give valid ranges.
func FuzzConvertNetworkPolicy(f *testing.F) {
	f.Add("10.0.0.0/8", "10.0.0.1/32", "key", "In", "v", int32(80), int32(90), "TCP", "Ingress")
	f.Add("::/0", "x", "", "Near", "", int32(-1), int32(1<<30), "", "")
	f.Fuzz(func(t *testing.T, cidr, except, key, op, value string, port, end int32, proto, direction string) {
		np := from[networkingv1.NetworkPolicy](t, "{metadata: {name: p, namespace: n}, spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: x}}, {podSelector: {}}], ports: [{port: 1, endPort: 2}]}]}}")
		r := &np.Spec.Ingress[0]
		r.From[0].IPBlock.CIDR, r.From[0].IPBlock.Except = cidr, []string{except}
		r.From[1].PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOperator(op), Values: []string{value}}}
		r.Ports[0].Port.IntVal, r.Ports[0].EndPort = port, &end
		protocol := corev1.Protocol(proto)
		r.Ports[0].Protocol = &protocol
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyType(direction)}
		got, _ := ConvertNetworkPolicy(np)
		for _, rule := range append(got.Ingress, got.Egress...) {
			for _, pr := range rule.Ports {
				if pr.Named == "" && pr.First > pr.Last {
					t.Errorf("range %d..%d", pr.First, pr.Last)
				}
			}
			for _, peer := range rule.Peers {
				for _, e := range peer.Except {
					if !peer.CIDR.Contains(e.Addr()) || e != e.Masked() {
						t.Errorf("except %s of %s", e, peer.CIDR)
					}
				}
			}
		}
	})
}
