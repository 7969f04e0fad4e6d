// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// clusterPolicyOf reads a policy of policy.networking.k8s.io from YAML as the watch does.
func clusterPolicyOf(t *testing.T, kind, text string) (*model.Policy, []weirv1.Problem) {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetKind(kind)
	convert := map[string]func(*ClusterPolicy) (*model.Policy, []weirv1.Problem){
		model.KindClusterNetworkPolicy: ConvertClusterNetworkPolicy, model.KindAdminNetworkPolicy: ConvertAdminNetworkPolicy,
		model.KindBaselineAdminNetworkPolicy: ConvertBaselineAdminNetworkPolicy,
	}[kind]
	return policyKind(kind, convert).convert(u)
}

func TestConvertClusterNetworkPolicy(t *testing.T) {
	t.Parallel()
	got, found := clusterPolicyOf(t, model.KindClusterNetworkPolicy, `
metadata: {name: p, labels: {x: z}}
spec:
  tier: Admin
  priority: 7
  subject: {pods: {namespaceSelector: {matchLabels: {env: prod}}, podSelector: {matchLabels: {app: db}}}}
  ingress:
  - name: web
    action: Accept
    from: [{namespaces: {matchLabels: {team: a}}}, {pods: {podSelector: {matchExpressions: [{key: tier, operator: Exists}]}}}]
    protocols:
    - tcp: {destinationPort: {number: 80}}
    - udp: {destinationPort: {range: {start: 53, end: 63}}}
    - sctp: {destinationPort: {number: 9}}
    - destinationNamedPort: http
  - {action: Pass, from: [{namespaces: {}}]}
  egress:
  - {action: Deny, to: [{nodes: {matchLabels: {zone: z}}}, {networks: [192.0.2.9/24, "fd00::/8"]}]}
status: {conditions: []}
`)
	requires := func(key, value string) *model.LabelSelector {
		return labels(model.Requirement{Key: key, Op: model.In, Values: []string{value}})
	}
	check(t, got, &model.Policy{Kind: "ClusterNetworkPolicy", Name: model.Name{Name: "p"}, Tier: "kube-admin", Order: 7,
		Subject: model.Selector{Namespaces: requires("env", "prod"), Pods: requires("app", "db")}, AppliesIngress: true, AppliesEgress: true,
		Ingress: []model.Rule{
			{Name: "web", Action: model.Allow, Peers: []model.Peer{
				{Pods: &model.Selector{Namespaces: requires("team", "a")}},
				{Pods: &model.Selector{Namespaces: labels(), Pods: labels(model.Requirement{Key: "tier", Op: model.Exists})}},
			}, Ports: []model.PortRange{
				{Protocol: model.ProtocolTCP, First: 80, Last: 80}, {Protocol: model.ProtocolUDP, First: 53, Last: 63},
				{Protocol: model.ProtocolSCTP, First: 9, Last: 9}, {Protocol: model.ProtocolAny, Named: "http"},
			}},
			{Action: model.Pass, Peers: []model.Peer{{Pods: &model.Selector{Namespaces: labels()}}}},
		},
		Egress: []model.Rule{{Action: model.Deny, Peers: []model.Peer{{Nodes: requires("zone", "z")},
			{CIDR: netip.MustParsePrefix("192.0.2.0/24")}, {CIDR: netip.MustParsePrefix("fd00::/8")}}}},
	}, found, "")

	got, _ = clusterPolicyOf(t, model.KindClusterNetworkPolicy, `
metadata: {name: p}
spec: {tier: Baseline, priority: 0, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]}
`)
	if got.Tier != model.TierBaseline || got.AppliesIngress || !got.AppliesEgress {
		t.Errorf("%+v", got)
	}
}

func TestConvertAdminNetworkPolicies(t *testing.T) {
	t.Parallel()
	text := `
metadata: {name: default}
spec:
  priority: 3
  subject: {namespaces: {}}
  ingress:
  - {name: r, action: Allow, from: [{namespaces: {}}], ports: [{portNumber: {port: 80}}, {portRange: {protocol: UDP, start: 1, end: 9}}, {namedPort: dns}]}
`
	want := &model.Policy{Kind: "AdminNetworkPolicy", Name: model.Name{Name: "default"}, Tier: "adminnetworkpolicy", Order: 3,
		Subject: model.Selector{Namespaces: labels()}, AppliesIngress: true,
		Ingress: []model.Rule{{Name: "r", Action: model.Allow, Peers: []model.Peer{{Pods: &model.Selector{Namespaces: labels()}}}, Ports: []model.PortRange{
			{Protocol: model.ProtocolTCP, First: 80, Last: 80}, {Protocol: model.ProtocolUDP, First: 1, Last: 9}, {Protocol: model.ProtocolAny, Named: "dns"},
		}}}}
	got, found := clusterPolicyOf(t, model.KindAdminNetworkPolicy, text)
	check(t, got, want, found, "")
	want.Kind, want.Tier, want.Order = "BaselineAdminNetworkPolicy", "baselineadminnetworkpolicy", 0
	got, found = clusterPolicyOf(t, model.KindBaselineAdminNetworkPolicy, strings.Replace(text, "priority: 3", "", 1))
	check(t, got, want, found, "")
}

// A rule that cannot be enforced as it is written allows nothing, and where it would deny or pass
// on it denies everything; the rest of the policy counts.
func TestRulesOfClusterPoliciesFailClosed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, rule, field string }{
		{"ClusterNetworkPolicy", `to: [{domainNames: ["www.*.com"]}]`, "spec.egress[0].to[0].domainNames[0]"},
		{"ClusterNetworkPolicy", `to: [{domainNames: [example.com], networks: [10.0.0.0/8]}]`, "spec.egress[0].to[0]"},
		{"AdminNetworkPolicy", `to: [{domainNames: [example.com]}]`, "spec.egress[0].to[0].domainNames"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}, {futureKind: {}}]`, "spec.egress[0].to[1].futureKind spec.egress[0].to[1]"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}, networks: [10.0.0.0/8]}]`, "spec.egress[0].to[0]"},
		{"ClusterNetworkPolicy", `to: []`, "spec.egress[0].to"},
		{"ClusterNetworkPolicy", ``, "spec.egress[0].to"},
		{"ClusterNetworkPolicy", `to: [{networks: [10.0.0.0/8, nonsense]}]`, "spec.egress[0].to[0].networks[1]"},
		{"ClusterNetworkPolicy", `to: [{nodes: {matchExpressions: [{key: a, operator: Near}]}}]`, "spec.egress[0].to[0].nodes.matchExpressions[0].operator spec.egress[0].to[0]"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {matchExpressions: [{key: a, operator: In}]}}]`, "spec.egress[0].to[0].namespaces.matchExpressions[0].values spec.egress[0].to[0]"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}], protocols: [{icmp: {}}]`, "spec.egress[0].protocols[0].icmp spec.egress[0].protocols[0]"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}], protocols: []`, "spec.egress[0]"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}], protocols: [{tcp: {sourcePort: {number: 1}}}]`, "spec.egress[0].protocols[0].tcp.sourcePort spec.egress[0].protocols[0].tcp"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]`, "spec.egress[0].protocols[0].tcp.destinationPort"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}], protocols: [{udp: {destinationPort: {range: {start: 9, end: 8}}}}]`, "spec.egress[0].protocols[0].udp.destinationPort.range"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}], protocols: [{sctp: {destinationPort: {number: 70000}}}]`, "spec.egress[0].protocols[0].sctp.destinationPort.number"},
		{"ClusterNetworkPolicy", `to: [{namespaces: {}}, {nodes: {}}], protocols: [{destinationNamedPort: http}]`, "spec.egress[0]"},
		{"ClusterNetworkPolicy", `to: [{networks: [10.0.0.0/8]}], protocols: [{destinationNamedPort: http}]`, "spec.egress[0]"},
		{"AdminNetworkPolicy", `to: [{namespaces: {}}], ports: [{}]`, "spec.egress[0].ports[0]"},
		{"AdminNetworkPolicy", `to: [{namespaces: {}}], ports: [{portNumber: {protocol: ICMP, port: 1}}]`, "spec.egress[0].ports[0].portNumber.protocol"},
		{"AdminNetworkPolicy", `to: [{namespaces: {}}], ports: [{portRange: {start: 0, end: 1}}]`, "spec.egress[0].ports[0].portRange"},
		{"AdminNetworkPolicy", `to: [{namespaces: {}}], ports: [{namedPort: ""}]`, "spec.egress[0].ports[0].namedPort"},
		{"BaselineAdminNetworkPolicy", `to: [{domainNames: [example.com]}]`, "spec.egress[0].to[0].domainNames"},
	} {
		allow := map[bool]string{true: "Accept", false: "Allow"}[c.kind == "ClusterNetworkPolicy"]
		for _, action := range []string{allow, "Deny", "Pass"} {
			got, found := clusterPolicyOf(t, c.kind, `{metadata: {name: p}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [
{action: `+action+`, `+c.rule+`}, {action: `+allow+`, to: [{namespaces: {}}]}]}}`)
			unknown := action == "Pass" && c.kind == "BaselineAdminNetworkPolicy"
			want := c.field
			if unknown {
				want = "spec.egress[0].action " + want
			}
			if fields(found) != want || got.Invalid != "" || !got.AppliesEgress || len(got.Egress) != 2 {
				t.Fatalf("%s %s: problems in %q, want %q; %+v", action, c.rule, fields(found), want, got)
			}
			r := got.Egress[0]
			closed := r.Action == model.Deny && len(r.Peers)+len(r.Ports) == 0
			if action == allow {
				closed = r.Action == model.Allow && len(r.Peers) == 1 && r.Peers[0].Pods != nil && !matches(r.Peers[0].Pods.Pods, nil) &&
					!matches(r.Peers[0].Pods.Pods, map[string]string{"weir.dev/nobody": ""})
			}
			if !closed {
				t.Errorf("%s %s: %+v", action, c.rule, r)
			}
			if r := got.Egress[1]; r.Action != model.Allow || len(r.Peers) != 1 || r.Peers[0].Pods == nil || r.Peers[0].Pods.Pods != nil {
				t.Errorf("%s %s: the rule next to it became %+v", action, c.rule, r)
			}
		}
	}
}

// Nodes and networks are no peers of ingress: the node's own packets cannot be distinguished from
// those of its health checks.
func TestIngressPeersOfClusterPolicies(t *testing.T) {
	t.Parallel()
	for _, peer := range []string{`{nodes: {}}`, `{networks: [10.0.0.0/8]}`} {
		got, found := clusterPolicyOf(t, model.KindClusterNetworkPolicy, `{metadata: {name: p}, spec: {tier: Admin, subject: {namespaces: {}}, ingress: [{action: Deny, from: [`+peer+`]}]}}`)
		if fields(found) != "spec.ingress[0].from[0]" || got.Ingress[0].Action != model.Deny || len(got.Ingress[0].Peers) > 0 {
			t.Errorf("%s: %v %+v", peer, found, got)
		}
	}
}

// Where it is not known whom a policy is about, or where its place is, it is about everybody,
// allows nothing, and does not pass.
func TestClusterPoliciesFailClosed(t *testing.T) {
	t.Parallel()
	rules := `ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Pass, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]`
	for spec, field := range map[string]string{
		`tier: Admin, ` + rules: "spec.subject",
		`tier: Admin, subject: {namespaces: {}, pods: {podSelector: {}, namespaceSelector: {}}}, ` + rules: "spec.subject",
		`tier: Admin, subject: {namespaces: {matchExpressions: [{key: a, operator: Near}]}}, ` + rules:     "spec.subject.namespaces.matchExpressions[0].operator spec.subject",
		`tier: Middle, subject: {namespaces: {}}, ` + rules:                                                "spec.tier",
	} {
		got, found := clusterPolicyOf(t, model.KindClusterNetworkPolicy, "{metadata: {name: p}, spec: {"+spec+"}}")
		if fields(found) != field || got.Invalid == "" || len(got.Ingress) != 3 {
			t.Fatalf("%s: problems in %q: %+v", spec, fields(found), got)
		}
		if s := got.Subject; s.Namespace != "" || s.Pods != nil || s.Namespaces != nil && len(s.Namespaces.Requirements) > 0 {
			t.Errorf("%s: is about %+v", spec, s)
		}
		if r := got.Ingress[1]; r.Action != model.Deny || len(r.Peers) > 0 {
			t.Errorf("%s: passes: %+v", spec, r)
		}
	}
	got, found := clusterPolicyOf(t, model.KindClusterNetworkPolicy, `{metadata: {name: p}, spec: {tier: Admin, priority: high, subject: {namespaces: {}}, egress: 7}}`)
	if len(found) == 0 || got.Invalid == "" || len(got.Egress) != 1 || got.Egress[0].Action != model.Deny || len(got.Egress[0].Peers) > 0 {
		t.Errorf("what cannot be decoded: %v %+v", found, got)
	}
}

// A field that is not known may be what narrows a rule, in a version of the kind that was before
// ours or comes after it.
func TestFieldsThatAreNotKnownFailClosed(t *testing.T) {
	t.Parallel()
	object := func(action string, peer map[string]any, more map[string]any) *unstructured.Unstructured {
		rule := map[string]any{"action": action, "from": []any{peer}}
		for k, v := range more {
			rule[k] = v
		}
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy",
			"metadata": map[string]any{"name": "p"},
			"spec":     map[string]any{"priority": int64(1), "subject": map[string]any{"namespaces": map[string]any{}}, "ingress": []any{rule}}}}
	}
	selector := map[string]any{"matchLabels": map[string]any{"team": "a"}}
	for name, x := range map[string]struct{ peer, more map[string]any }{
		"a wrapped selector": {map[string]any{"namespaces": map[string]any{"namespaceSelector": selector}}, nil},
		"the same labels":    {map[string]any{"namespaces": map[string]any{"sameLabels": []any{"tenant"}}}, nil},
		"beside a peer":      {map[string]any{"namespaces": selector, "when": "night"}, nil},
		"in the rule":        {map[string]any{"namespaces": selector}, map[string]any{"when": "night"}},
	} {
		for _, action := range []string{"Allow", "Deny"} {
			o, err := decode[ClusterPolicy](object(action, x.peer, x.more))
			if err != nil {
				t.Fatal(err)
			}
			p, problems := ConvertAdminNetworkPolicy(o)
			if len(problems) == 0 {
				t.Errorf("%s, %s: not reported", name, action)
			}
			r := p.Ingress[0]
			if closed := action == "Allow" && reflect.DeepEqual(r.Peers, []model.Peer{nobody()}) || action == "Deny" && r.Name == "invalid" && len(r.Peers) == 0; !closed {
				t.Errorf("%s, %s: became %+v", name, action, r)
			}
		}
	}
	if o, err := decode[ClusterPolicy](object("Allow", map[string]any{"namespaces": selector}, nil)); err != nil || len(o.Unknown) > 0 {
		t.Errorf("all is known: %v %v", o, err)
	}
}

// Rules of tier Admin that allow may name domains; nothing else may.
func TestDomainNames(t *testing.T) {
	t.Parallel()
	of := func(tier, action, direction string) (*model.Policy, []string) {
		got, found := clusterPolicyOf(t, model.KindClusterNetworkPolicy, `{metadata: {name: p}, spec: {tier: `+tier+`, priority: 1, subject: {namespaces: {}}, `+
			direction+`: [{action: `+action+`, `+map[string]string{"egress": "to", "ingress": "from"}[direction]+`: [{domainNames: [Www.Example.com., "*.example.org", www.example.com]}, {networks: [192.0.2.0/24]}]}]}}`)
		var fields []string
		for _, x := range found {
			fields = append(fields, x.Field)
		}
		return got, fields
	}
	got, problems := of("Admin", "Accept", "egress")
	want := []model.Peer{{Domains: []string{"*.example.org", "www.example.com"}}, {CIDR: netip.MustParsePrefix("192.0.2.0/24")}}
	if len(problems) > 0 || !reflect.DeepEqual(got.Egress[0].Peers, want) {
		t.Errorf("%v: %+v", problems, got.Egress[0].Peers)
	}
	for _, c := range []struct{ tier, action, direction, field string }{
		{"Admin", "Deny", "egress", "spec.egress[0].to"}, {"Admin", "Pass", "egress", "spec.egress[0].to"},
		{"Baseline", "Accept", "egress", "spec.egress[0].to[0].domainNames"}, {"Admin", "Accept", "ingress", "spec.ingress[0].from[0].domainNames"},
	} {
		got, problems := of(c.tier, c.action, c.direction)
		if !slices.Contains(problems, c.field) {
			t.Errorf("%v: problems in %v", c, problems)
		}
		for _, r := range append(got.Egress, got.Ingress...) {
			if r.Action == model.Allow && slices.ContainsFunc(r.Peers, func(p model.Peer) bool { return len(p.Domains) > 0 || p.CIDR.Bits() == 24 }) {
				t.Errorf("%v: %+v", c, r)
			}
		}
	}
}
