// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weir-net/weir/internal/model"
)

// fullRule is a rule with something in every part.
func fullRule(a model.Action) model.Rule {
	sel := func() *model.LabelSelector {
		return &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{"a", "b"}}}}
	}
	ports := func(p uint16) []model.PortRange {
		return []model.PortRange{{Protocol: model.ProtocolTCP, First: p, Last: p}}
	}
	net := netip.MustParsePrefix("10.0.0.0/8")
	return model.Rule{Name: "r", Action: a, IPVersion: 4, Ports: ports(80), NotPorts: ports(81), SourcePorts: ports(82), NotSourcePorts: ports(83),
		Peers: []model.Peer{{Pods: &model.Selector{Namespaces: sel(), Pods: sel(), Expression: "x == 'y'"}}, {CIDR: net}, {Nodes: sel()}},
		Other: &model.Entity{NotNets: []netip.Prefix{net}, Selector: "all()"}, Own: &model.Entity{Selector: "has(a)"}}
}

// message is one with a policy with one rule of ingress.
func message(kind string, a model.Action) *Message {
	w := &writer{}
	w.begin()
	w.m.Policies = []*Policy{w.policy(&model.Policy{Kind: kind, Name: model.Name{Namespace: "ns", Name: "p"}, Tier: "default", AppliesIngress: true,
		Subject: model.Selector{Namespace: "ns", Pods: &model.LabelSelector{Requirements: []model.Requirement{{Key: "a", Op: model.Exists}}}, Expression: "has(b)"},
		Ingress: []model.Rule{fullRule(a)}})}
	return w.m
}

// read reads a message with one policy.
func read(t *testing.T, m *Message, expression func(string) error) (*model.Policy, []string) {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := (&Decoder{Expression: expression}).Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range out.Changes.Policies {
		return p, out.NotUnderstood
	}
	t.Fatal("no policy")
	return nil, nil
}

// closed is what is to become of a rule that is not understood.
func closed(a Action) model.Rule {
	switch a {
	case Action_ACTION_ALLOW:
		return model.Rule{Name: "r", Action: model.Allow, Other: &model.Entity{InNets: true}}
	case Action_ACTION_LOG:
		return model.Rule{Name: "r", Action: model.Log, Other: &model.Entity{InNets: true}}
	}
	return model.Rule{Name: "r", Action: model.Deny}
}

// TestRulesThatAreNotUnderstood changes rules as a newer, or a wrong, sender may.
func TestRulesThatAreNotUnderstood(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*Rule){
		"family that is missing":          func(r *Rule) { r.Family = 0 },
		"family that is not known":        func(r *Rule) { r.Family = 9 },
		"peer of another kind":            func(r *Rule) { r.Peers[1].Kind = 99 },
		"peer of no kind":                 func(r *Rule) { r.Peers[1].Kind = 0 },
		"peer with nothing":               func(r *Rule) { r.Peers[1] = &Peer{} },
		"peer without its pods":           func(r *Rule) { r.Peers[0].Pods = nil },
		"peer without its nodes":          func(r *Rule) { r.Peers[2].Nodes = nil },
		"peer without its CIDR":           func(r *Rule) { r.Peers[1].Cidr = nil },
		"only peers of other kinds":       func(r *Rule) { r.Peers = []*Peer{{Kind: 7}} },
		"nodes that are said to be a net": func(r *Rule) { r.Peers[2].Kind = PeerKind_PEER_KIND_CIDR },
		"ports without a protocol":        func(r *Rule) { r.Ports[0].Protocol = nil },
		"not_ports without a protocol":    func(r *Rule) { r.NotPorts[0].Protocol = nil },
		"operator that is not known":      func(r *Rule) { r.Peers[0].Pods.Namespaces.Requirements[0].Operator = 9 },
		"operator that is missing":        func(r *Rule) { r.Peers[2].Nodes.Requirements[0].Operator = 0 },
	}
	for name, change := range cases {
		for _, a := range []model.Action{model.Allow, model.Deny, model.Pass, model.Log} {
			m := message(model.KindCalicoNetworkPolicy, a)
			before, odd := read(t, m, everyExpression)
			if len(odd) > 0 || !reflect.DeepEqual(before.Ingress[0], fullRule(a)) {
				t.Fatalf("not understood as it is: %v, %+v", odd, before)
			}
			change(m.Policies[0].Ingress[0])
			p, odd := read(t, m, everyExpression)
			if want := closed(m.Policies[0].Ingress[0].Action); !reflect.DeepEqual(p.Ingress, []model.Rule{want}) || len(odd) != 1 {
				t.Errorf("%s, action %d: %+v, reported %v", name, a, p.Ingress, odd)
			}
			if p.Invalid != "" || !reflect.DeepEqual(p.Subject, before.Subject) {
				t.Errorf("%s: the policy became %+v", name, p)
			}
		}
	}
	for _, a := range []Action{0, 99, -1} {
		m := message(model.KindCalicoNetworkPolicy, model.Allow)
		m.Policies[0].Ingress[0].Action = a
		if p, odd := read(t, m, everyExpression); !reflect.DeepEqual(p.Ingress, []model.Rule{{Name: "r", Action: model.Deny}}) || len(odd) != 1 {
			t.Errorf("action %d: %+v, reported %v", a, p.Ingress, odd)
		}
	}
}

// TestExpressionsThatCannotBeRead is about a newer selector language, in rules and in a subject.
func TestExpressionsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"x == 'y'", "all()", "has(a)"} {
		for _, a := range []model.Action{model.Allow, model.Deny} {
			m := message(model.KindCalicoNetworkPolicy, a)
			p, odd := read(t, m, func(s string) error {
				if s == text {
					return errors.New("a word that is not known")
				}
				return nil
			})
			if want := closed(m.Policies[0].Ingress[0].Action); !reflect.DeepEqual(p.Ingress, []model.Rule{want}) || len(odd) != 1 {
				t.Errorf("%s: %+v, reported %v", text, p.Ingress, odd)
			}
		}
	}
	for _, expression := range []func(string) error{nil, func(string) error { return errors.New("not known") }} {
		p, _ := read(t, message(model.KindCalicoNetworkPolicy, model.Allow), expression)
		if !reflect.DeepEqual(p.Subject, model.Selector{Namespace: "ns"}) || !reflect.DeepEqual(p.Ingress, []model.Rule{{Name: "invalid", Action: model.Deny}}) {
			t.Errorf("%+v", p)
		}
	}
}

func TestPoliciesThatAreNotUnderstood(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{model.KindNetworkPolicy, model.KindClusterNetworkPolicy} {
		for name, change := range map[string]func(*Policy){
			"no subject":               func(p *Policy) { p.Subject = nil },
			"operator of the subject":  func(p *Policy) { p.Subject.Pods.Requirements[0].Operator = 9 },
			"a field that is not read": func(p *Policy) { p.ProtoReflect().SetUnknown(field(99)) },
		} {
			m := message(kind, model.Allow)
			m.Policies[0].NotIngress, m.Policies[0].NotEgress = false, false
			change(m.Policies[0])
			p, odd := read(t, m, everyExpression)
			want := []model.Rule{{Name: "invalid", Action: model.Deny}}
			if kind == model.KindNetworkPolicy {
				want = nil
			}
			if len(odd) != 1 || p.Invalid == "" || !p.AppliesIngress || !p.AppliesEgress || !reflect.DeepEqual(p.Ingress, want) || !reflect.DeepEqual(p.Egress, want) ||
				p.Subject.Pods != nil || p.Subject.Expression != "" {
				t.Errorf("%s, %s: %+v, reported %v", kind, name, p, odd)
			}
		}
	}
}

// field is an unknown field.
func field(number protowire.Number) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
}

// messagesIn calls f with every message in m, itself included.
func messagesIn(m protoreflect.Message, path string, f func(path string, m protoreflect.Message)) {
	f(path, m)
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case d.Message() == nil:
		case d.IsList():
			for i := range v.List().Len() {
				messagesIn(v.List().Get(i).Message(), fmt.Sprintf("%s.%s[%d]", path, d.Name(), i), f)
			}
		default:
			messagesIn(v.Message(), path+"."+string(d.Name()), f)
		}
		return true
	})
}

// TestUnknownFields puts a field that nobody knows into every message of a policy: below 100 the
// rule or the policy is not understood, from 100 on nothing changes.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	var paths []string
	messagesIn(message(model.KindCalicoNetworkPolicy, model.Allow).Policies[0].ProtoReflect(), "policy", func(path string, _ protoreflect.Message) { paths = append(paths, path) })
	if len(paths) < 20 {
		t.Fatalf("only %v", paths)
	}
	for _, path := range paths {
		for _, number := range []protowire.Number{99, 100} {
			m := message(model.KindCalicoNetworkPolicy, model.Allow)
			was, _ := read(t, m, everyExpression)
			messagesIn(m.Policies[0].ProtoReflect(), "policy", func(at string, m protoreflect.Message) {
				if at == path {
					m.SetUnknown(field(number))
				}
			})
			p, odd := read(t, m, everyExpression)
			switch {
			case number == 100:
				if len(odd) > 0 || !reflect.DeepEqual(p, was) {
					t.Errorf("%s: field 100: %+v, reported %v", path, p, odd)
				}
			case strings.HasPrefix(path, "policy.ingress"):
				if !reflect.DeepEqual(p.Ingress, []model.Rule{closed(Action_ACTION_ALLOW)}) || len(odd) != 1 {
					t.Errorf("%s: field 99: %+v, reported %v", path, p.Ingress, odd)
				}
			case p.Invalid == "" || len(odd) != 1:
				t.Errorf("%s: field 99: %+v, reported %v", path, p, odd)
			}
		}
	}
	// Elsewhere they are ignored.
	m := message(model.KindCalicoNetworkPolicy, model.Allow)
	m.ProtoReflect().SetUnknown(field(99))
	m.Pods = []*PodGroup{{Pods: []*Pod{{Name: []byte("p")}}}}
	messagesIn(m.Pods[0].ProtoReflect(), "", func(_ string, m protoreflect.Message) { m.SetUnknown(field(50)) })
	if _, odd := read(t, m, everyExpression); len(odd) > 0 {
		t.Errorf("reported %v", odd)
	}
}

// TestWhatIsMissing holds what fields mean that a sender left out.
func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	b, err := proto.Marshal(&Message{Version: Version, Texts: [][]byte{[]byte("s")}, Services: []*Service{{Name: 1}}, Tiers: []*Tier{{Name: []byte("t")}},
		Policies: []*Policy{{Kind: 1, Tier: 1, Name: []byte("p"), Subject: &Selector{}, Ingress: []*Rule{{}}}}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := (&Decoder{}).Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if s := m.Changes.Services[model.Name{Name: "s"}]; !s.Restricted || len(s.SourceRanges) > 0 {
		t.Errorf("%+v", s)
	}
	if tier := m.Changes.Tiers["t"]; tier.Pass {
		t.Errorf("%+v", tier)
	}
	if p := m.Changes.Policies[model.PolicyID{Kind: "s", Name: model.Name{Name: "p"}}]; !p.AppliesIngress || !p.AppliesEgress || !reflect.DeepEqual(p.Ingress, []model.Rule{{Action: model.Deny}}) {
		t.Errorf("%+v", p)
	}
}

func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	m := message(model.KindCalicoNetworkPolicy, model.Allow)
	for range 1000 {
		m.Policies[0].Ingress = append(m.Policies[0].Ingress, &Rule{})
	}
	if p, odd := read(t, m, everyExpression); len(p.Ingress) != 1001 || len(odd) != mostNotUnderstood {
		t.Errorf("%d rules, %d reported", len(p.Ingress), len(odd))
	}
}
