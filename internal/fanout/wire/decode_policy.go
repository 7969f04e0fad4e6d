// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	"github.com/weir-net/weir/internal/model"
)

// note names what was not understood.
func (d *Decoded) note(p *model.Policy, where, what string) {
	if len(d.NotUnderstood) < mostNotUnderstood {
		d.NotUnderstood = append(d.NotUnderstood, fmt.Sprintf("%s %s: %s%s", p.Kind, p.Name, where, what))
	}
}

// policy reads a policy. One of no tier would not be in force, and is malformed.
func (r *reader) policy(p *Policy, d *Decoded) *model.Policy {
	out := &model.Policy{Kind: r.keyText("kind", p.Kind), Name: model.Name{Namespace: r.text("namespace", p.Namespace), Name: r.key("name", p.Name)}, Tier: r.keyText("tier", p.Tier),
		Created: p.Created, Order: p.Order, AppliesIngress: !p.NotIngress, AppliesEgress: !p.NotEgress, ApplyOnForward: p.ApplyOnForward, PreDNAT: p.PreDnat,
		DoNotTrack: p.DoNotTrack, Invalid: r.text("invalid", p.Invalid)}
	r.odd = ""
	r.critical(p)
	if s := part(r, "subject", p.Subject, r.selector); s != nil {
		out.Subject = *s
	} else {
		r.notUnderstood("it has no subject")
	}
	if r.odd != "" {
		d.note(out, "", r.odd)
		failClosed(out, r.odd)
		return out
	}
	out.Ingress = list(r, "ingress", p.Ingress, func(m *Rule) model.Rule { return r.rule(m, out, d, "ingress") })
	out.Egress = list(r, "egress", p.Egress, func(m *Rule) model.Rule { return r.rule(m, out, d, "egress") })
	return out
}

// failClosed makes a policy about all that its subject may have been, with nothing that it allows.
func failClosed(p *model.Policy, why string) {
	p.Subject = model.Selector{Namespace: p.Subject.Namespace}
	p.Invalid = "not understood: " + why
	if p.Kind == model.KindNetworkPolicy {
		return // it isolates
	}
	deny := []model.Rule{{Name: "invalid", Action: model.Deny}}
	if p.AppliesIngress {
		p.Ingress = deny
	}
	if p.AppliesEgress {
		p.Egress = deny
	}
}

func (r *reader) staged(s *StagedPolicy, d *Decoded) *model.StagedPolicy {
	out := &model.StagedPolicy{Delete: s.Delete}
	p := part(r, "policy", s.Policy, func(p *Policy) *model.Policy { return r.policy(p, d) })
	if p == nil {
		r.fail("policy", "is not there")
		return out
	}
	out.Policy = *p
	return out
}

func (r *reader) tier(t *Tier) (string, *model.Tier) {
	out := &model.Tier{Name: r.key("name", t.Name), Order: t.Order, Pass: t.Pass}
	return out.Name, out
}

// The values of the model, by those of messages.
var (
	knownActions   = turned(actions)
	knownFamilies  = turned(families)
	knownOperators = turned(operators)
)

func turned[K, V comparable](m map[K]V) map[V]K {
	out := make(map[V]K, len(m))
	for k, v := range m {
		out[v] = k
	}
	return out
}

func (r *reader) rule(m *Rule, p *model.Policy, d *Decoded, direction string) model.Rule {
	r.odd = ""
	r.critical(m)
	out := model.Rule{Name: r.text("name", m.Name), Peers: list(r, "peers", m.Peers, r.peer), Ports: list(r, "ports", m.Ports, r.portRange),
		NotProtocol: r.protocol("not_protocol", m.NotProtocol), NotPorts: list(r, "not_ports", m.NotPorts, r.portRange),
		SourcePorts: list(r, "source_ports", m.SourcePorts, r.portRange), NotSourcePorts: list(r, "not_source_ports", m.NotSourcePorts, r.portRange),
		Other: part(r, "other", m.Other, r.entity), Own: part(r, "own", m.Own, r.entity)}
	family, known := knownFamilies[m.Family]
	if out.IPVersion = family; !known {
		r.notUnderstood("family %d", m.Family)
	}
	action, known := knownActions[m.Action]
	if out.Action = action; !known {
		r.notUnderstood("action %d", m.Action)
	}
	if r.odd == "" {
		return out
	}
	d.note(p, direction+" rule: ", r.odd)
	if known && (action == model.Allow || action == model.Log) {
		return model.Rule{Name: out.Name, Action: action, Other: &model.Entity{InNets: true}} // one of no networks
	}
	return model.Rule{Name: out.Name, Action: model.Deny}
}

func (r *reader) peer(p *Peer) model.Peer {
	r.critical(p)
	out := model.Peer{Pods: part(r, "pods", p.Pods, r.selector), CIDR: one(r, "cidr", p.Cidr, r.prefix), Except: list(r, "except", p.Except, r.prefix),
		Nodes: part(r, "nodes", p.Nodes, r.labelSelector), Domains: r.textList("domains", p.Domains)}
	kind := kindOf(&out)
	if p.Kind != kind {
		r.notUnderstood("a peer of kind %d, with what kind %d has", p.Kind, kind)
	}
	return out
}

func (r *reader) entity(e *Entity) *model.Entity {
	r.critical(e)
	return &model.Entity{InNets: e.InNets, Nets: list(r, "nets", e.Nets, r.prefix), NotNets: list(r, "not_nets", e.NotNets, r.prefix),
		Selector: r.expression("selector", e.Selector), NotSelector: r.expression("not_selector", e.NotSelector), Service: r.name("service", e.Service)}
}

func (r *reader) portRange(p *PortRange) model.PortRange {
	r.critical(p)
	if p.Protocol == nil {
		r.notUnderstood("ports without a protocol")
	}
	return model.PortRange{Protocol: r.protocol("protocol", p.GetProtocol()), First: r.port("first", p.First), Last: r.port("last", p.Last),
		Named: r.text("named", p.Named), Service: r.name("service", p.Service)}
}

func (r *reader) selector(s *Selector) *model.Selector {
	r.critical(s)
	return &model.Selector{Namespace: r.text("namespace", s.Namespace), Namespaces: part(r, "namespaces", s.Namespaces, r.labelSelector),
		Pods: part(r, "pods", s.Pods, r.labelSelector), Expression: r.expression("expression", s.Expression)}
}

func (r *reader) labelSelector(s *LabelSelector) *model.LabelSelector {
	r.critical(s)
	return &model.LabelSelector{Requirements: list(r, "requirements", s.Requirements, r.requirement)}
}

func (r *reader) requirement(q *Requirement) model.Requirement {
	r.critical(q)
	operator, known := knownOperators[q.Operator]
	if !known {
		r.notUnderstood("operator %d", q.Operator)
	}
	return model.Requirement{Key: r.text("key", q.Key), Op: operator, Values: r.textList("values", q.Values)}
}
