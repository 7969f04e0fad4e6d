// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	policyv3 "github.com/weir-net/weir/api/policy/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// converted reads a policy from YAML as the watch does.
func convertedPolicy(t *testing.T, text string) (*model.Policy, []weirv1.Problem) {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	if u.GetKind() == "GlobalNetworkPolicy" {
		return policyKind(model.KindGlobalNetworkPolicy, ConvertGlobalNetworkPolicy).convert(u)
	}
	return policyKind(model.KindCalicoNetworkPolicy, ConvertCalicoPolicy).convert(u)
}

func TestConvertCalicoPolicy(t *testing.T) {
	t.Parallel()
	got, problems := convertedPolicy(t, `
kind: NetworkPolicy
metadata: {name: p, namespace: shop}
spec:
  tier: sec
  order: 7.5
  selector: app == 'web'
  serviceAccountSelector: role == 'x'
  types: [Ingress, Egress]
  ingress:
  - action: Allow
    protocol: TCP
    source: {selector: a == 'b', ports: [5], notSelector: c == 'd', serviceAccounts: {names: [s2, s1]}}
    destination: {ports: [80, "90:95", http], notPorts: [91], nets: [10.0.0.1]}
  - {action: Pass, ipVersion: 6, notProtocol: UDP, source: {namespaceSelector: "env == 'x' || all()", nets: [10.1.2.3/8]}}
  - {action: Allow, source: {services: {name: svc}}}
  - {action: Deny, source: {namespaceSelector: global()}}
  egress:
  - {action: Deny, protocol: 47, destination: {notSelector: has(x)}}
  - {action: Allow, protocol: UDP, destination: {services: {name: dns, namespace: kube-system}}}
`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	port := func(p model.Protocol, first, last uint16) model.PortRange {
		return model.PortRange{Protocol: p, First: first, Last: last}
	}
	want := &model.Policy{Kind: "NetworkPolicy.projectcalico.org", Name: model.Name{Namespace: "shop", Name: "p"}, Tier: "sec", Order: 7.5,
		Subject:        model.Selector{Namespace: "shop", Expression: `(app == "web" && pcsa.role == "x")`},
		AppliesIngress: true, AppliesEgress: true,
		Ingress: []model.Rule{
			{Action: model.Allow, Ports: []model.PortRange{port(6, 80, 80), port(6, 90, 95), {Protocol: 6, Named: "http"}},
				NotPorts: []model.PortRange{port(6, 91, 91)}, SourcePorts: []model.PortRange{port(6, 5, 5)},
				Other: &model.Entity{Selector: `(projectcalico.org/namespace == "shop" && projectcalico.org/serviceaccount in {"s1", "s2"} && a == "b")`, NotSelector: `c == "d"`},
				Own:   &model.Entity{InNets: true, Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}},
			{Action: model.Pass, IPVersion: 6, NotProtocol: 17, Other: &model.Entity{Selector: `(pcns.env == "x" || has(projectcalico.org/namespace))`,
				InNets: true, Nets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
			{Action: model.Allow, Other: &model.Entity{Service: model.Name{Namespace: "shop", Name: "svc"}}},
			{Action: model.Deny, Other: &model.Entity{Selector: `!has(projectcalico.org/namespace)`}},
		},
		Egress: []model.Rule{
			{Action: model.Deny, Ports: []model.PortRange{port(47, 0, 65535)}, Other: &model.Entity{Selector: `projectcalico.org/namespace == "shop"`, NotSelector: "has(x)"}},
			{Action: model.Allow, Ports: []model.PortRange{{Protocol: 17, Service: model.Name{Namespace: "kube-system", Name: "dns"}}}},
		}}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("- want, + got:\n%s", d)
	}
	bare, problems := convertedPolicy(t, "{kind: GlobalNetworkPolicy, metadata: {name: g}, spec: {namespaceSelector: \"x == 'y'\", egress: [{action: Allow}]}}")
	if len(problems) > 0 || bare.Tier != "default" || bare.Order != math.Inf(1) || bare.AppliesIngress || !bare.AppliesEgress ||
		bare.Subject != (model.Selector{Expression: `pcns.x == "y"`}) {
		t.Errorf("%+v %v", bare, problems)
	}
}

// What cannot be enforced as it is written denies everything to what it selects, and says which
// field it is.
func TestCalicoPolicyThatIsWrongDenies(t *testing.T) {
	t.Parallel()
	for spec, field := range map[string]string{
		"{selector: 'a = b'}":                                                                    "spec.selector",
		"{ingress: [{action: Maybe}]}":                                                           "spec.ingress[0].action",
		"{ingress: [{action: Allow, http: {methods: [GET]}}]}":                                   "spec.ingress[0].http",
		"{ingress: [{action: Allow, protocol: FOO}]}":                                            "spec.ingress[0].protocol",
		"{ingress: [{action: Allow, source: {nets: [10.0.0.0/33]}}]}":                            "spec.ingress[0].source.nets[0]",
		"{ingress: [{action: Allow, destination: {ports: [80]}}]}":                               "spec.ingress[0].destination.ports",
		"{ingress: [{action: Allow, protocol: UDPLite, source: {ports: [1]}}]}":                  "spec.ingress[0].source.ports",
		"{ingress: [{action: Allow, ipVersion: 5}]}":                                             "spec.ingress[0].ipVersion",
		"{ingress: [{action: Allow, destination: {services: {name: a}}}]}":                       "spec.ingress[0]",
		"{egress: [{action: Allow, destination: {services: {name: a}, nets: ['::']}}]}":          "spec.egress[0].destination.services",
		"{ingress: [{action: Allow, protocol: TCP, destination: {ports: ['5:x y']}}]}":           "spec",
		"{ingress: [{action: Allow, protocol: TCP, icmp: {type: 8}}]}":                           "spec.ingress[0].icmp",
		"{ingress: [{action: Allow, protocol: ICMP, icmp: {type: 256}}]}":                        "spec.ingress[0].icmp.type",
		"{ingress: [{action: Allow, protocol: ICMP, notICMP: {code: 0}}]}":                       "spec.ingress[0].notICMP.code",
		"{ingress: [{action: Allow, protocol: ICMPv6, icmp: {type: 0}}]}":                        "spec.ingress[0].icmp.type",
		"{egress: [{action: Allow, destination: {domains: ['w*.a.com']}}]}":                      "spec.egress[0].destination.domains[0]",
		"{egress: [{action: Allow, destination: {domains: [a.com, '*']}}]}":                      "spec.egress[0].destination.domains[1]",
		"{egress: [{action: Deny, destination: {domains: [a.com]}}]}":                            "spec.egress[0].destination.domains",
		"{egress: [{action: Pass, destination: {domains: [a.com]}}]}":                            "spec.egress[0].destination.domains",
		"{egress: [{action: Allow, source: {domains: [a.com]}}]}":                                "spec.egress[0].source.domains",
		"{ingress: [{action: Allow, destination: {domains: [a.com]}}]}":                          "spec.ingress[0].destination.domains",
		"{egress: [{action: Allow, destination: {domains: [a.com], selector: all()}}]}":          "spec.egress[0].destination.domains",
		"{egress: [{action: Allow, destination: {domains: [a.com], nets: [10.0.0.0/8]}}]}":       "spec.egress[0].destination.domains",
		"{egress: [{action: Allow, destination: {domains: [a.com], notNets: [10.0.0.0/8]}}]}":    "spec.egress[0].destination.domains",
		"{egress: [{action: Allow, destination: {domains: [a.com], namespaceSelector: all()}}]}": "spec.egress[0].destination.domains",
		"{egress: [{action: Allow, destination: {domains: [a.com], serviceAccounts: {}}}]}":      "spec.egress[0].destination.domains",
		"{types: [Sideways]}": "spec.types[0]",
		"{order: first}":      "spec",
	} {
		p, problems := convertedPolicy(t, "{kind: NetworkPolicy, metadata: {name: p, namespace: shop}, spec: "+spec+"}")
		if p == nil || len(problems) == 0 || problems[0].Field != field {
			t.Errorf("%s: %+v %v", spec, p, problems)
			continue
		}
		for _, rules := range [][]model.Rule{p.Ingress, p.Egress} {
			for _, r := range rules {
				if r.Action != model.Deny || len(r.Ports) > 0 || r.Other != nil {
					t.Errorf("%s: a rule is left: %+v", spec, r)
				}
			}
		}
		if p.Invalid == "" || p.AppliesIngress != (len(p.Ingress) == 1) || p.AppliesEgress != (len(p.Egress) == 1) || !p.AppliesIngress && !p.AppliesEgress ||
			strings.Contains(spec, "egress") && !p.AppliesEgress || p.Subject.Namespace != "shop" {
			t.Errorf("%s: %+v", spec, p)
		}
	}
}

func TestConvertTier(t *testing.T) {
	t.Parallel()
	order, pass := 5.0, v3.Pass
	tier := &v3.Tier{Spec: v3.TierSpec{Order: &order, DefaultAction: &pass}}
	tier.Name = "a"
	got, problems := ConvertTier(tier)
	if *got != (model.Tier{Name: "a", Order: 5, Pass: true}) || len(problems) > 0 {
		t.Errorf("%+v %v", got, problems)
	}
	tier.Name = "default"
	if _, problems = ConvertTier(tier); len(problems) != 1 {
		t.Errorf("the order of a tier that is built in: %v", problems)
	}
}

// Selectors that are right each can be too much together: the policy denies rather than pick
// nobody.
func TestSelectorsTooMuchTogether(t *testing.T) {
	t.Parallel()
	var values []string
	for i := range 350 {
		values = append(values, fmt.Sprintf("'%031d'", i))
	}
	long := "a in {" + strings.Join(values, ", ") + "}"
	for what, spec := range map[string]string{
		"subject": `{selector: "` + long + `", serviceAccountSelector: "` + long + `", types: [Ingress], ingress: [{action: Deny}]}`,
		"rule":    `{selector: all(), types: [Ingress], ingress: [{action: Deny, source: {selector: "` + long + `", namespaceSelector: "` + long + `"}}]}`,
	} {
		p, problems := convertedPolicy(t, "{kind: GlobalNetworkPolicy, metadata: {name: p}, spec: "+spec+"}")
		if p == nil || p.Invalid == "" || len(problems) != 1 || !strings.HasSuffix(problems[0].Field, "elector") {
			t.Errorf("%s: %+v %v", what, p, problems)
		}
		if what == "subject" && p.Subject.Expression != "" {
			t.Errorf("the policy isolates %.60q… only", p.Subject.Expression)
		}
	}
}

// Domain names of rules and of network sets, as projectcalico.org has them.
func TestConvertDomains(t *testing.T) {
	t.Parallel()
	p, problems := convertedPolicy(t, "{kind: NetworkPolicy, metadata: {name: p, namespace: shop}, spec: {types: [Egress], egress: [{action: Allow, protocol: TCP, "+
		"destination: {domains: [B.com, 'a.*.Com.', '*.b.com', b.com.], ports: [443]}}]}}")
	want := model.Rule{Action: model.Allow, Peers: []model.Peer{{Domains: []string{"*.b.com", "a.*.com", "b.com"}}}, Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 443, Last: 443}}}
	if len(problems) > 0 || p == nil || len(p.Egress) != 1 || !p.Egress[0].Equal(&want) {
		t.Errorf("%+v %v", p, problems)
	}
	set, problems := ConvertNetworkSet(&policyv3.NetworkSet{Spec: policyv3.NetworkSetSpec{Nets: []string{"10.0.0.0/8"}, AllowedEgressDomains: []string{"www.B.*", "w*.b.com", "a.com"}}})
	if len(problems) != 1 || problems[0].Field != "spec.allowedEgressDomains[1]" || !slices.Equal(set.Domains, []string{"a.com", "www.b.*"}) || len(set.Nets) != 1 {
		t.Errorf("%+v %v", set, problems)
	}
	_, problems = ConvertGlobalNetworkPolicy(&policyv3.GlobalNetworkPolicy{Spec: policyv3.GlobalNetworkPolicySpec{DoNotTrack: true, ApplyOnForward: true, NetworkPolicySpec: policyv3.NetworkPolicySpec{
		Egress: []policyv3.Rule{{Action: v3.Allow, Destination: policyv3.EntityRule{Domains: []string{"a.com"}}}}}}})
	if len(problems) != 1 || problems[0].Field != "spec.egress[0].destination.domains" {
		t.Errorf("doNotTrack: %v", problems)
	}
}

// FuzzConvertCalicoPolicy: whatever a policy's spec is, it becomes one whose selectors can be read,
// or one that denies everything in the directions that it is about.
func FuzzConvertCalicoPolicy(f *testing.F) {
	for _, spec := range []string{
		"{selector: app == 'web', types: [Ingress], ingress: [{action: Allow, protocol: TCP, source: {nets: [10.0.0.0/8], notSelector: has(a)}, destination: {ports: [80, '90:95', web]}}]}",
		"{order: 5, tier: sec, egress: [{action: Deny, protocol: ICMP, icmp: {type: 8, code: 0}, notICMP: {type: 3}}, {action: Pass, notProtocol: 47, ipVersion: 6}]}",
		"{egress: [{action: Allow, destination: {services: {name: a, namespace: b}, serviceAccounts: {names: [x]}}}], ingress: first}",
		"{types: Sideways}", "[]", "1", "{selector: 1, ingress: [1]}", "{ingress: [{action: Allow, http: {methods: [GET]}}]}",
		"{types: [Egress], egress: [{action: Allow, protocol: 256}]}", "{namespaceSelector: '!all()', preDNAT: true}",
	} {
		f.Add(spec, true)
		f.Add(spec, false)
	}
	f.Fuzz(func(t *testing.T, text string, global bool) {
		var spec any
		if yaml.Unmarshal([]byte(text), &spec) != nil {
			t.Skip("no YAML")
		}
		u := &unstructured.Unstructured{Object: map[string]any{"kind": "NetworkPolicy", "metadata": map[string]any{"name": "p", "namespace": "shop"}, "spec": spec}}
		convert := policyKind(model.KindCalicoNetworkPolicy, ConvertCalicoPolicy).convert
		if global {
			u.Object["metadata"] = map[string]any{"name": "p"}
			convert = policyKind(model.KindGlobalNetworkPolicy, ConvertGlobalNetworkPolicy).convert
		}
		p, problems := convert(u)
		if p == nil {
			if len(problems) == 0 || !global {
				t.Fatal("a policy is left out without a word")
			}
			return
		}
		if p.Invalid != "" && len(problems) == 0 || !p.AppliesIngress && !p.AppliesEgress {
			t.Fatalf("%+v %v", p, problems)
		}
		readable := func(expression string) {
			if _, err := selector.Parse(expression); expression != "" && err != nil {
				t.Errorf("selector %q: %v", expression, err)
			}
		}
		readable(p.Subject.Expression)
		for _, r := range append(append([]model.Rule{}, p.Ingress...), p.Egress...) {
			if p.Invalid != "" && (r.Action != model.Deny || len(r.Ports)+len(r.NotPorts)+len(r.SourcePorts) > 0 || r.Other != nil || r.Own != nil) {
				t.Errorf("a rule is left of what cannot be read: %+v", r)
			}
			for _, e := range []*model.Entity{r.Other, r.Own} {
				if e != nil {
					readable(e.Selector)
					readable(e.NotSelector)
				}
			}
		}
	})
}
