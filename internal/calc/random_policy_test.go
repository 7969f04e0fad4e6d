// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

func policyID(namespace, name string) model.PolicyID {
	return model.PolicyID{Kind: "NetworkPolicy", Name: model.Name{Namespace: namespace, Name: name}}
}

// expression is a random expression of the selector language, over what pods and network sets have.
func (w *world) expression() string {
	return pick(w, "all()", "app == 'x'", "app != 'x'", "app in {'x','y'}", "!has(tier)", "has(app) && tier == 'y'", "app == 'z' || tier == 'z'",
		"projectcalico.org/namespace == 'a'", "projectcalico.org/namespace == 'b' && app == 'x'", "!has(projectcalico.org/namespace)",
		"pcns.app == 'x'", "pcns.projectcalico.org/name == 'c'", "pcsa.app == 'y'", "projectcalico.org/serviceaccount in {'sa0'}", "pcsa.projectcalico.org/name == 'sa1'",
		"app starts with 'x' && pcns.tier != 'x'")
}

func (w *world) nets() []netip.Prefix {
	var out []netip.Prefix
	for range 1 + w.IntN(3) {
		out = append(out, w.cidr())
	}
	return out
}

func (w *world) entity(own bool) *model.Entity {
	e := &model.Entity{}
	if w.IntN(4) == 0 {
		e.InNets, e.Nets = true, w.nets()
	}
	if w.IntN(4) == 0 {
		e.NotNets = w.nets()
	}
	if w.IntN(2) == 0 {
		e.Selector = w.expression()
	}
	if w.IntN(4) == 0 {
		e.NotSelector = w.expression()
	}
	if !own && w.IntN(6) == 0 {
		e = &model.Entity{Service: model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("s", w.IntN(8))}}
	}
	return e
}

var worldDomains = []string{"*.test", "a.test", "b.test", "www.*.test", "www.x.*"}

// domains returns some domain names, and at least one.
func (w *world) domains() []string {
	out := []string{pick(w.names, worldDomains...), pick(w.names, worldDomains...)}
	slices.Sort(out)
	return slices.Compact(out)
}

// calicoRule is a rule as projectcalico.org has them.
func (w *world) calicoRule(in bool) model.Rule {
	r := model.Rule{Action: pick(w, model.Allow, model.Allow, model.Deny, model.Pass, model.Log)}
	if w.IntN(3) > 0 {
		r.Other = w.entity(false)
	}
	if !in && r.Action == model.Allow && w.names.IntN(3) == 0 {
		r.Other, r.Peers = nil, []model.Peer{{Domains: w.domains()}}
	}
	if w.IntN(5) == 0 {
		r.Own = w.entity(true)
	}
	if w.IntN(8) == 0 {
		r.IPVersion = pick(w, uint8(4), 6)
	}
	if w.IntN(8) == 0 {
		r.NotProtocol = pick(w, model.ProtocolTCP, model.ProtocolICMP, model.ProtocolICMPv6, model.Protocol(47))
	}
	proto := pick(w, worldProtocols...)
	ported := func() []model.PortRange {
		var out []model.PortRange
		for range 1 + w.IntN(2) {
			p := w.portRange()
			p.Protocol = proto
			out = append(out, p)
		}
		return out
	}
	switch w.IntN(6) {
	case 0:
		other := pick(w, model.Protocol(47), model.ProtocolICMP, model.ProtocolICMPv6)
		r.Ports = []model.PortRange{{Protocol: other, Last: 65535}}
	case 1:
		t := uint16(pick(w, 0, 8, 13, 128))
		icmp := model.PortRange{Protocol: pick(w, model.ProtocolICMP, model.ProtocolICMPv6), First: t << 8, Last: t<<8 | 255}
		if w.IntN(2) == 0 {
			icmp.Last = icmp.First
		}
		r.Ports = []model.PortRange{icmp}
		if w.IntN(2) == 0 {
			r.Ports, r.NotPorts = []model.PortRange{{Protocol: icmp.Protocol, Last: 65535}}, []model.PortRange{icmp}
		}
	case 2:
		r.Ports = []model.PortRange{{Protocol: proto, Last: 65535}}
		r.NotPorts = ported()
	case 3:
		r.Ports = ported()
	case 4:
		r.Ports = []model.PortRange{{Protocol: proto, Last: 65535}}
		r.SourcePorts = ported()
		if w.IntN(2) == 0 {
			r.Ports = ported()
		}
		if w.IntN(3) == 0 {
			r.NotSourcePorts = ported()
		}
	}
	if w.IntN(10) == 0 && !in { // of the other end alone
		r = model.Rule{Action: r.Action, Ports: []model.PortRange{{Protocol: pick(w, model.ProtocolAny, model.ProtocolTCP), Service: model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("s", w.IntN(8))}}}}
	}
	return r
}

// addCalicoPolicy adds a policy of the kinds that have tiers.
func (w *world) addCalicoPolicy(i int) {
	p := &model.Policy{Kind: pick(w, model.KindCalicoNetworkPolicy, model.KindGlobalNetworkPolicy, model.KindClusterNetworkPolicy),
		Name: model.Name{Name: fmt.Sprint("p", i)}, Tier: pick(w, "default", "sec", "sec2", model.TierAdmin, model.TierBaseline, "ghost"),
		Order: pick(w, 0, 1, 1, math.Inf(1)), AppliesIngress: w.IntN(3) > 0, AppliesEgress: w.IntN(3) > 0}
	p.Created = int64(i % 3)
	p.Subject.Expression = w.expression()
	if p.Kind == model.KindCalicoNetworkPolicy {
		p.Name.Namespace = pick(w, worldNamespaces...)
		p.Subject.Namespace = p.Name.Namespace
	}
	for range 1 + w.IntN(4) {
		p.Ingress = append(p.Ingress, w.calicoRule(true))
		p.Egress = append(p.Egress, w.calicoRule(false))
	}
	if w.IntN(4) == 0 {
		n := w.labelSelector()
		if n == nil {
			n = &model.LabelSelector{}
		}
		p.Egress[0] = model.Rule{Name: "nodes", Action: model.Deny, Peers: []model.Peer{{Nodes: n}}}
	}
	w.c.Policies[p.ID()] = p
}

// addStaged adds a staged policy, many of them of the name of one in force.
func (w *world) addStaged(i int) {
	there := maps.Clone(w.c.Policies)
	if w.IntN(3) == 0 {
		w.addPolicy(i)
	} else {
		w.addCalicoPolicy(i)
	}
	for id, p := range w.c.Policies {
		kind, can := map[string]string{model.KindNetworkPolicy: model.KindStagedKubernetesNetworkPolicy, model.KindCalicoNetworkPolicy: model.KindStagedNetworkPolicy,
			model.KindGlobalNetworkPolicy: model.KindStagedGlobalNetworkPolicy}[id.Kind]
		if there[id] == p || !can {
			continue
		}
		s := &model.StagedPolicy{Policy: *p, Delete: w.IntN(4) == 0}
		s.Policy.Kind = kind
		w.c.Staged[s.Policy.ID()] = s
	}
	w.c.Policies = there
}

func (w *world) addTier(i int) {
	name := []string{"sec", "sec2"}[i%2]
	w.c.Tiers[name] = &model.Tier{Name: name, Order: pick(w, 10, 10, 2_000_000, math.Inf(1)), Pass: w.IntN(2) == 0}
}

func (w *world) addNetworkSet(i int) {
	s := &model.NetworkSet{Name: model.Name{Namespace: pick(w, "", "a", "b"), Name: fmt.Sprint("set", i)}, Labels: w.labels(), Nets: w.nets()}
	if w.names.IntN(2) == 0 {
		s.Domains = w.domains()
	}
	w.c.NetworkSets[s.Name] = s
}

func (w *world) addHostEndpoint(i int) {
	h := &model.HostEndpoint{Name: fmt.Sprint("h", i), Node: pick(w, "n0", "n0", "n1"), Interface: pick(w, "eth0", model.AllInterfaces, ""), Labels: w.labels(),
		ExpectedIPs: []netip.Addr{addr("172.31.1.10")}, Ports: []model.PodPort{{Name: "web", Protocol: model.ProtocolTCP, Port: 8080}}}
	if w.IntN(2) == 0 {
		h.Profiles = []string{model.ProfileDefaultAllow}
	}
	if w.IntN(3) == 0 {
		h.ExpectedIPs = nil
	}
	w.c.HostEndpoints[h.Name] = h
}

// addHostPolicy adds a policy for most host endpoints, of one of the ways in which they evaluate.
func (w *world) addHostPolicy(i int) {
	p := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: fmt.Sprint("h", i)}, Tier: pick(w, "default", "sec"),
		Order: float64(w.IntN(3)), AppliesIngress: true, AppliesEgress: w.IntN(3) > 0}
	p.Subject.Expression = pick(w, "all()", "has(app)", "app != 'x'")
	switch w.IntN(4) {
	case 0:
		p.ApplyOnForward = true
	case 1:
		p.ApplyOnForward, p.PreDNAT, p.AppliesEgress = true, true, false
	case 2:
		p.ApplyOnForward, p.DoNotTrack = true, true
	}
	for range 1 + w.IntN(4) {
		p.Ingress = append(p.Ingress, w.calicoRule(true))
		p.Egress = append(p.Egress, w.calicoRule(false))
	}
	w.c.Policies[p.ID()] = p
}

func (w *world) addServiceAccount(i int) {
	a := &model.ServiceAccount{Name: model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("sa", i%2)}, Labels: w.labels()}
	w.c.ServiceAccounts[a.Name] = a
}

// addClusterPolicy adds a policy as the kinds of policy.networking.k8s.io are converted to.
func (w *world) addClusterPolicy(i int) {
	of := pick(w, [2]string{model.KindClusterNetworkPolicy, model.TierAdmin}, [2]string{model.KindClusterNetworkPolicy, model.TierBaseline},
		[2]string{model.KindAdminNetworkPolicy, model.TierAdminV1}, [2]string{model.KindBaselineAdminNetworkPolicy, model.TierBaselineV1})
	p := &model.Policy{Kind: of[0], Tier: of[1], Name: model.Name{Name: fmt.Sprint("k", i)}, Order: float64(w.IntN(3))}
	selector := func() *model.LabelSelector {
		if s := w.labelSelector(); s != nil {
			return s
		}
		return &model.LabelSelector{}
	}
	pods := func() model.Selector { return model.Selector{Namespaces: selector(), Pods: w.labelSelector()} }
	p.Subject = pods()
	if w.IntN(12) == 0 {
		p.Invalid, p.Subject = "spec.subject", model.Selector{}
	}
	rule := func(in bool) model.Rule {
		r := model.Rule{Name: pick(w, "", "n"), Action: pick(w, model.Allow, model.Allow, model.Deny, model.Pass)}
		named := true
		for range 1 + w.IntN(3) {
			s := pods()
			peer := model.Peer{Pods: &s}
			if !in && w.IntN(2) == 0 {
				named = false
				peer = model.Peer{CIDR: w.cidr()}
				if w.IntN(2) == 0 {
					peer = model.Peer{Nodes: selector()}
				}
			}
			r.Peers = append(r.Peers, peer)
		}
		if !in && p.Tier == model.TierAdmin && r.Action == model.Allow && w.names.IntN(2) == 0 {
			named, r.Peers = false, append(r.Peers, model.Peer{Domains: w.domains()})
		}
		for range w.IntN(3) {
			if x := w.portRange(); x.Named == "" || named {
				r.Ports = append(r.Ports, x)
			}
		}
		return r
	}
	for range w.IntN(4) {
		p.Ingress = append(p.Ingress, rule(true))
	}
	for range w.IntN(4) {
		p.Egress = append(p.Egress, rule(false))
	}
	p.AppliesIngress, p.AppliesEgress = len(p.Ingress) > 0, len(p.Egress) > 0
	w.c.Policies[p.ID()] = p
}
