// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// tiers makes the tiers alongside those that are always there, and a network set, anew.
func (r *crowd) tiers() {
	r.c.Tiers, r.c.NetworkSets = map[string]*model.Tier{}, map[model.Name]*model.NetworkSet{}
	for i, name := range []string{"early", "late"} {
		if r.chance(80) {
			r.c.Tiers[name] = &model.Tier{Name: name, Order: []float64{10, 2_000_000}[i], Pass: r.chance(60)}
		}
	}
	if r.chance(60) {
		set := &model.NetworkSet{Name: model.Name{Name: "set"}, Labels: map[string]string{"app": "x", "who": "set"},
			Nets: []netip.Prefix{one(r, netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("172.31.1.55/32"), netip.MustParsePrefix("10.244.1.0/31"))}}
		r.c.NetworkSets[set.Name] = set
	}
}

// tiered adds or replaces one of four policies of the kinds that have tiers.
func (r *crowd) tiered() {
	p := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: fmt.Sprintf("g%d", r.IntN(4))},
		Tier: one(r, "early", "late", model.TierDefault, model.TierAdmin, model.TierBaseline), Order: one(r, 1, 2, math.Inf(1))}
	p.Subject.Expression = r.expression()
	p.AppliesIngress = r.chance(70)
	p.AppliesEgress = !p.AppliesIngress || r.chance(30)
	for range 1 + r.IntN(4) {
		p.Ingress = append(p.Ingress, r.tieredRule())
		p.Egress = append(p.Egress, r.tieredRule())
	}
	r.forHosts(p)
	if r.chance(25) { // may take the place of one that is there, or its end may be staged
		s := &model.StagedPolicy{Policy: *p, Delete: r.chance(30)}
		s.Policy.Kind = model.KindStagedGlobalNetworkPolicy
		if r.c.Staged == nil {
			r.c.Staged = map[model.PolicyID]*model.StagedPolicy{}
		}
		r.c.Staged[s.Policy.ID()] = s
		return
	}
	r.c.Policies[p.ID()] = p
}

func (r *crowd) expression() string {
	return one(r, "all()", "app == 'x'", "app != 'y'", "app in {'x', 'z'}", "who == 'set'", "pcns.team == 'x' && app == 'z'", "!has(app)")
}

// messages are those of a type, or of a type and a code.
func (r *crowd) messages() []model.PortRange {
	first := one[uint16](r, 8, 8, 0, 13) << 8
	last := first + 255
	if r.chance(50) {
		first += uint16(r.IntN(3))
		last = first
	}
	return []model.PortRange{{Protocol: model.ProtocolICMP, First: first, Last: last}}
}

func (r *crowd) tieredRule() model.Rule {
	rule := model.Rule{Action: one(r, model.Allow, model.Allow, model.Allow, model.Deny, model.Pass, model.Log)}
	if r.chance(60) {
		e := &model.Entity{}
		if r.chance(50) {
			e.Selector = r.expression()
		}
		if r.chance(30) {
			e.NotSelector = r.expression()
		}
		if r.chance(30) {
			e.InNets, e.Nets = true, []netip.Prefix{one(r, netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("10.244.0.0/30"), netip.MustParsePrefix("8.8.8.8/32"))}
		}
		if r.chance(20) {
			e.NotNets = []netip.Prefix{one(r, netip.MustParsePrefix("172.31.9.0/24"), netip.MustParsePrefix("10.244.0.2/31"))}
		}
		rule.Other = e
	}
	if r.chance(10) {
		rule.Own = &model.Entity{Selector: r.expression()}
	}
	proto := one(r, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolAny, model.Protocol(47), model.ProtocolICMP)
	switch proto {
	case model.ProtocolICMP:
		rule.Ports = []model.PortRange{{Protocol: proto, Last: 65535}}
		if r.chance(60) {
			rule.Ports = r.messages()
		}
		if r.chance(25) {
			rule.NotPorts = r.messages()
		}
		return rule
	case model.ProtocolAny:
		return rule
	case 47:
		if r.chance(30) {
			rule.NotProtocol = proto
			return rule
		}
		rule.Ports = []model.PortRange{{Protocol: proto, Last: 65535}}
		return rule
	}
	ports := func() []model.PortRange {
		first := one[uint16](r, 29, 53, 80, 1000, 1001, 3929, 5353, 8080, 20000)
		return []model.PortRange{{Protocol: proto, First: first, Last: first + one[uint16](r, 0, 0, 1, 700)}}
	}
	rule.Ports = []model.PortRange{{Protocol: proto, Last: 65535}}
	if r.chance(50) {
		rule.Ports = ports()
	}
	if r.chance(25) {
		rule.NotPorts = ports()
	}
	if r.chance(25) {
		rule.SourcePorts = ports()
	}
	if r.chance(15) {
		rule.NotSourcePorts = ports()
	}
	return rule
}

// clusterPolicy adds or replaces one of six policies of the kinds of policy.networking.k8s.io.
func (r *crowd) clusterPolicy() {
	p := &model.Policy{Name: model.Name{Name: fmt.Sprintf("k%d", r.IntN(2))}, Order: float64(r.IntN(3))}
	switch r.IntN(3) {
	case 0:
		p.Kind, p.Tier = model.KindClusterNetworkPolicy, one(r, model.TierAdmin, model.TierBaseline)
	case 1:
		p.Kind, p.Tier = model.KindAdminNetworkPolicy, model.TierAdminV1
	default:
		p.Kind, p.Tier = model.KindBaselineAdminNetworkPolicy, model.TierBaselineV1
	}
	p.Subject = model.Selector{Namespaces: &model.LabelSelector{}, Pods: r.selector()}
	for range r.IntN(3) {
		p.Ingress = append(p.Ingress, r.clusterRule(true))
	}
	for range r.IntN(3) {
		p.Egress = append(p.Egress, r.clusterRule(false))
	}
	p.AppliesIngress, p.AppliesEgress = len(p.Ingress) > 0, len(p.Egress) > 0
	r.c.Policies[p.ID()] = p
}

// clusterRule is a rule as these kinds have them: with at least one peer, nodes and networks in
// egress.
func (r *crowd) clusterRule(in bool) model.Rule {
	rule := model.Rule{Action: one(r, model.Allow, model.Allow, model.Deny, model.Pass)}
	pods := true
	for range 1 + r.IntN(2) {
		peer := model.Peer{Pods: &model.Selector{Namespaces: &model.LabelSelector{}, Pods: r.selector()}}
		if !in && r.chance(50) {
			pods = false
			peer = model.Peer{Nodes: r.selector()}
			if peer.Nodes == nil {
				peer.Nodes = &model.LabelSelector{}
			}
			if r.chance(60) {
				peer = model.Peer{CIDR: one(r, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("10.244.0.0/30"))}
			}
		}
		rule.Peers = append(rule.Peers, peer)
	}
	for range r.IntN(3) {
		first := one[uint16](r, 80, 8080, 5353, 1000)
		p := model.PortRange{Protocol: one(r, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP), First: first, Last: first + one[uint16](r, 0, 700)}
		if pods && r.chance(20) {
			p = model.PortRange{Named: "web"}
		}
		rule.Ports = append(rule.Ports, p)
	}
	return rule
}
