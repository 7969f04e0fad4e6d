// SPDX-License-Identifier: Apache-2.0

package wire

import "github.com/weir-net/weir/internal/model"

func (w *writer) policy(p *model.Policy) *Policy {
	return &Policy{Kind: w.text(p.Kind), Namespace: w.text(p.Name.Namespace), Name: []byte(p.Name.Name), Tier: w.text(p.Tier), Created: p.Created, Order: p.Order,
		Subject: w.selector(&p.Subject), Ingress: w.rules(p.Ingress), Egress: w.rules(p.Egress), NotIngress: !p.AppliesIngress, NotEgress: !p.AppliesEgress,
		ApplyOnForward: p.ApplyOnForward, PreDnat: p.PreDNAT, DoNotTrack: p.DoNotTrack, Invalid: w.text(p.Invalid)}
}

func (w *writer) staged(s *model.StagedPolicy) *StagedPolicy {
	return &StagedPolicy{Policy: w.policy(&s.Policy), Delete: s.Delete}
}

func (w *writer) tier(t *model.Tier) *Tier {
	return &Tier{Name: []byte(t.Name), Order: t.Order, Pass: t.Pass}
}

// What is not here is not known to receivers either: zero.
var (
	actions   = map[model.Action]Action{model.Allow: Action_ACTION_ALLOW, model.Deny: Action_ACTION_DENY, model.Pass: Action_ACTION_PASS, model.Log: Action_ACTION_LOG}
	families  = map[uint8]Family{0: Family_FAMILY_BOTH, 4: Family_FAMILY_IPV4, 6: Family_FAMILY_IPV6}
	operators = map[model.Operator]Operator{model.In: Operator_OPERATOR_IN, model.NotIn: Operator_OPERATOR_NOT_IN,
		model.Exists: Operator_OPERATOR_EXISTS, model.DoesNotExist: Operator_OPERATOR_DOES_NOT_EXIST}
)

func (w *writer) rules(list []model.Rule) []*Rule {
	return each(list, func(r model.Rule) *Rule {
		return &Rule{Name: w.text(r.Name), Action: actions[r.Action], Peers: each(r.Peers, w.peer), Ports: each(r.Ports, w.portRange),
			Family: families[r.IPVersion], NotProtocol: uint32(r.NotProtocol), NotPorts: each(r.NotPorts, w.portRange),
			SourcePorts: each(r.SourcePorts, w.portRange), NotSourcePorts: each(r.NotSourcePorts, w.portRange),
			Other: w.entity(r.Other), Own: w.entity(r.Own)}
	})
}

func (w *writer) peer(p model.Peer) *Peer {
	return &Peer{Kind: kindOf(&p), Pods: w.selector(p.Pods), Cidr: PrefixBytes(p.CIDR), Except: each(p.Except, PrefixBytes), Nodes: w.labelSelector(p.Nodes), Domains: w.texts(p.Domains)}
}

// kindOf is what calc takes a peer for.
func kindOf(p *model.Peer) PeerKind {
	switch {
	case p.Pods != nil:
		return PeerKind_PEER_KIND_PODS
	case p.Nodes != nil:
		return PeerKind_PEER_KIND_NODES
	case len(p.Domains) > 0:
		return PeerKind_PEER_KIND_DOMAINS
	case p.CIDR.IsValid():
		return PeerKind_PEER_KIND_CIDR
	}
	return PeerKind_PEER_KIND_NOBODY
}

func (w *writer) entity(e *model.Entity) *Entity {
	if e == nil {
		return nil
	}
	return &Entity{InNets: e.InNets, Nets: each(e.Nets, PrefixBytes), NotNets: each(e.NotNets, PrefixBytes), Selector: w.text(e.Selector),
		NotSelector: w.text(e.NotSelector), Service: w.name(e.Service)}
}

func (w *writer) portRange(p model.PortRange) *PortRange {
	protocol := uint32(p.Protocol)
	return &PortRange{Protocol: &protocol, First: uint32(p.First), Last: uint32(p.Last), Named: w.text(p.Named), Service: w.name(p.Service)}
}

func (w *writer) selector(s *model.Selector) *Selector {
	if s == nil {
		return nil
	}
	return &Selector{Namespace: w.text(s.Namespace), Namespaces: w.labelSelector(s.Namespaces), Pods: w.labelSelector(s.Pods), Expression: w.text(s.Expression)}
}

func (w *writer) labelSelector(s *model.LabelSelector) *LabelSelector {
	if s == nil {
		return nil
	}
	return &LabelSelector{Requirements: each(s.Requirements, func(r model.Requirement) *Requirement {
		return &Requirement{Key: w.text(r.Key), Operator: operators[r.Op], Values: w.texts(r.Values)}
	})}
}
