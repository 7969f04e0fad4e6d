// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// reference answers by walking tiers, policies, rules and pods, packet by packet; it shares nothing
// with the code under test but the model and the selector language. The pods of an address decide
// which selectors pick it and what it calls its ports.
type reference struct{ c *model.Cluster }

// question is a packet as policy sees it, from the side of one of our pods.
type question struct {
	pod          *model.Pod
	addr, peer   netip.Addr
	in           bool // to the pod
	proto        model.Protocol
	sport, dport uint16
	names        []string // patterns of domain names that led the pod to the peer
}

func (r reference) labels(s *model.LabelSelector, have map[string]string) bool {
	ok := true
	if s == nil {
		return ok
	}
	for _, q := range s.Requirements {
		v, has := have[q.Key]
		in := false
		for _, want := range q.Values {
			in = in || want == v
		}
		switch q.Op {
		case model.In:
			ok = ok && has && in
		case model.NotIn:
			ok = ok && !(has && in)
		case model.Exists:
			ok = ok && has
		case model.DoesNotExist:
			ok = ok && !has
		}
	}
	return ok
}

// inherited adds labels below a prefix, where there are none of that name.
func inherited(into map[string]string, prefix, name string, from map[string]string) {
	all := map[string]string{prefix + "projectcalico.org/name": name}
	for k, v := range from {
		if k != "projectcalico.org/name" {
			all[prefix+k] = v
		}
	}
	for k, v := range all {
		if _, has := into[k]; !has {
			into[k] = v
		}
	}
}

func (r reference) podHas(expr string, p *model.Pod) bool {
	have := map[string]string{}
	for k, v := range p.Labels {
		if !strings.HasPrefix(k, "pcns.") && !strings.HasPrefix(k, "pcsa.") {
			have[k] = v
		}
	}
	have["projectcalico.org/namespace"], have["projectcalico.org/orchestrator"] = p.Name.Namespace, "k8s"
	if p.ServiceAccount != "" {
		have["projectcalico.org/serviceaccount"] = p.ServiceAccount
		if a := r.c.ServiceAccounts[model.Name{Namespace: p.Name.Namespace, Name: p.ServiceAccount}]; a != nil {
			inherited(have, "pcsa.", a.Name.Name, a.Labels)
		}
	}
	if n := r.c.Namespaces[p.Name.Namespace]; n != nil {
		inherited(have, "pcns.", n.Name, n.Labels)
	}
	return matches(expr, have)
}

func (r reference) setHas(expr string, s *model.NetworkSet) bool {
	have := map[string]string{}
	for k, v := range s.Labels {
		if !strings.HasPrefix(k, "pcns.") && !strings.HasPrefix(k, "pcsa.") {
			have[k] = v
		}
	}
	if ns := s.Name.Namespace; ns != "" {
		have["projectcalico.org/namespace"] = ns
		if n := r.c.Namespaces[ns]; n != nil {
			inherited(have, "pcns.", n.Name, n.Labels)
		}
	}
	return matches(expr, have)
}

func matches(expr string, have map[string]string) bool {
	s, err := selector.Parse(expr)
	if err != nil {
		panic(err)
	}
	return s.Matches(have)
}

func (r reference) picks(s *model.Selector, p *model.Pod) bool {
	ns := p.Name.Namespace
	if s.Namespace != "" && s.Namespace != ns {
		return false
	}
	if s.Namespace == "" && s.Namespaces != nil && len(s.Namespaces.Requirements) > 0 {
		n, known := r.c.Namespaces[ns]
		if !known || !r.labels(s.Namespaces, n.Labels) {
			return false
		}
	}
	return r.labels(s.Pods, p.Labels) && (s.Expression == "" || r.podHas(s.Expression, p))
}

// podsAt returns the pods that have an address; the node's own knowledge comes first.
func (r reference) podsAt(a netip.Addr) []*model.Pod {
	usable := func(p *model.Pod) bool { return p != nil && !p.HostNetwork && !p.Finished }
	if ep := r.c.Local.Endpoints[a]; ep != nil {
		if p := r.c.Pods.Get(ep.Pod); usable(p) {
			return []*model.Pod{p}
		}
		return nil
	}
	var out []*model.Pod
	for p := range r.c.Pods.All() {
		if usable(p) && slices.Contains(p.Addrs, a) && r.has(p, a) {
			out = append(out, p)
		}
	}
	return out
}

// expressed: do the pods at an address, or a set with it, have these labels?
func (r reference) expressed(expr string, a netip.Addr, pods []*model.Pod) bool {
	for _, p := range pods {
		if r.podHas(expr, p) {
			return true
		}
	}
	for _, s := range r.c.NetworkSets {
		if r.setHas(expr, s) && inAny(s.Nets, a) {
			return true
		}
	}
	return false
}

// named: has a set with these labels one of the names?
func (r reference) named(expr string, names []string) bool {
	for _, s := range r.c.NetworkSets {
		if anyOf(s.Domains, names) && r.setHas(expr, s) {
			return true
		}
	}
	return false
}

func anyOf(list, of []string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return slices.Contains(of, s) })
}

func inAny(nets []netip.Prefix, a netip.Addr) bool {
	for _, n := range nets {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

func (r reference) entityMatches(e *model.Entity, a netip.Addr, pods []*model.Pod, names []string) bool {
	switch {
	case e == nil:
		return true
	case e.InNets && !inAny(e.Nets, a), inAny(e.NotNets, a):
		return false
	case e.Selector != "" && !r.expressed(e.Selector, a, pods) && !r.named(e.Selector, names):
		return false
	case e.NotSelector != "" && r.expressed(e.NotSelector, a, pods):
		return false
	}
	return e.Service == (model.Name{}) || r.serves(e.Service, a, nil)
}

// serves: is the address an endpoint of a Service, at a port that at wants?
func (r reference) serves(svc model.Name, a netip.Addr, at func(model.EndpointPort) bool) bool {
	for _, sl := range r.c.Slices {
		if sl.Service != svc {
			continue
		}
		for _, e := range sl.Endpoints {
			if slices.Contains(e.Addrs, a) && (at == nil || slices.ContainsFunc(sl.Ports, at)) {
				return true
			}
		}
	}
	return false
}

func (r reference) portMatches(pr model.PortRange, at netip.Addr, pods []*model.Pod, proto model.Protocol, port uint16) bool {
	if pr.Service != (model.Name{}) {
		if pr.Protocol != model.ProtocolAny && pr.Protocol != proto {
			return false
		}
		return r.serves(pr.Service, at, func(p model.EndpointPort) bool { return p.Protocol == proto && p.Port == port })
	}
	if pr.Protocol != model.ProtocolAny && pr.Protocol != proto {
		return false
	}
	if pr.Named != "" {
		for _, p := range pods {
			for _, pp := range p.Ports {
				if pp.Name == pr.Named && pp.Protocol == proto && pp.Port == port {
					return true
				}
			}
		}
		return false
	}
	if pr.First == 0 && pr.Last == 65535 {
		return true
	}
	return (pr.Protocol != model.ProtocolAny || slices.Contains(worldProtocols, proto)) && pr.First <= port && port <= pr.Last
}

func (r reference) ruleMatches(rule *model.Rule, q question) bool {
	peers, own := r.podsAt(q.peer), []*model.Pod{q.pod}
	hit := len(rule.Peers) == 0
	for _, p := range rule.Peers {
		switch {
		case p.Pods != nil:
			hit = hit || slices.ContainsFunc(peers, func(x *model.Pod) bool { return r.picks(p.Pods, x) })
		case p.Nodes != nil:
			for _, n := range r.c.Nodes {
				hit = hit || r.labels(p.Nodes, n.Labels) && slices.Contains(n.Addrs, q.peer) && r.nodeHas(n, q.peer)
			}
		case p.Domains != nil:
			hit = hit || anyOf(p.Domains, q.names)
		default:
			hit = hit || p.CIDR.Contains(q.peer) && !inAny(p.Except, q.peer)
		}
	}
	var names []string // of network sets
	if !q.in && rule.Action == model.Allow {
		names = q.names
	}
	switch {
	case !hit, rule.IPVersion == 4 && !q.addr.Is4(), rule.IPVersion == 6 && q.addr.Is4(),
		rule.NotProtocol != 0 && rule.NotProtocol == q.proto,
		!r.entityMatches(rule.Other, q.peer, peers, names), !r.entityMatches(rule.Own, q.addr, own, nil):
		return false
	}
	src, srcAt, dst, dstAt := own, q.addr, peers, q.peer
	if q.in {
		src, srcAt, dst, dstAt = dst, dstAt, src, srcAt
	}
	one := func(list []model.PortRange, at netip.Addr, pods []*model.Pod, port uint16) bool {
		return slices.ContainsFunc(list, func(pr model.PortRange) bool { return r.portMatches(pr, at, pods, q.proto, port) })
	}
	// ICMP of the other family is nothing that a rule can mean.
	foreign := map[bool]model.Protocol{true: 58, false: 1}[q.addr.Is4()]
	if len(rule.Ports) > 0 && !slices.ContainsFunc(rule.Ports, func(p model.PortRange) bool { return p.Protocol != foreign }) {
		return false
	}
	return (len(rule.Ports) == 0 || one(rule.Ports, dstAt, dst, q.dport)) && !one(rule.NotPorts, dstAt, dst, q.dport) &&
		(len(rule.SourcePorts) == 0 || one(rule.SourcePorts, srcAt, src, q.sport)) && !one(rule.NotSourcePorts, srcAt, src, q.sport)
}

// tiers returns the names of all tiers in their order, and which pass at their end.
func (r reference) tiers() (names []string, passes map[string]bool) {
	order := map[string]float64{"adminnetworkpolicy": 1e3, "kube-admin": 1e3, "default": 1e6, "kube-baseline": 1e7, "baselineadminnetworkpolicy": 1e7}
	passes = map[string]bool{"adminnetworkpolicy": true, "kube-admin": true, "kube-baseline": true, "baselineadminnetworkpolicy": true}
	for n, t := range r.c.Tiers {
		order[n], passes[n] = t.Order, t.Pass
	}
	for n := range order {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(order[a], order[b]), strings.Compare(a, b)) })
	return names, passes
}

// inForce says that a policy is of a tier that there is: others are as if they were not there.
func (r reference) inForce(p *model.Policy) bool {
	names, _ := r.tiers()
	return slices.Contains(names, p.Tier)
}

// mine returns the policies that bind the pod in the direction, in the order within tiers. unknown:
// it is not known yet what the pod is, and some policy could bind it.
func (r reference) mine(q question) (mine []*model.Policy, unknown bool) {
	byLabels, byAccounts, could := false, false, false
	for _, p := range r.c.Policies {
		if ns := p.Subject.Namespace; !r.inForce(p) || ns != "" && ns != q.pod.Name.Namespace {
			continue
		}
		byLabels = byLabels || strings.Contains(p.Subject.Expression, "pcns.") || p.Subject.Namespaces != nil && len(p.Subject.Namespaces.Requirements) > 0
		byAccounts = byAccounts || strings.Contains(p.Subject.Expression, "pcsa.")
		if applies := p.AppliesEgress && !q.in || p.AppliesIngress && q.in; !applies {
			continue
		}
		could = true
		if r.picks(&p.Subject, q.pod) {
			mine = append(mine, p)
		}
	}
	slices.SortFunc(mine, func(a, b *model.Policy) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name), strings.Compare(enforcedKind(a.Kind), enforcedKind(b.Kind)))
	})
	account := r.c.ServiceAccounts[model.Name{Namespace: q.pod.Name.Namespace, Name: q.pod.ServiceAccount}]
	return mine, could && (byLabels && r.c.Namespaces[q.pod.Name.Namespace] == nil || byAccounts && q.pod.ServiceAccount != "" && account == nil)
}

// verdict returns whether a packet is allowed, the text of the rule that says so, and whether a
// rule asked for a log before.
func (r reference) verdict(q question) (allow bool, name string, log bool) {
	mine, unknown := r.mine(q)
	if unknown {
		return false, "default-deny", false
	}
	if len(mine) == 0 {
		return true, "", false
	}
	names, passes := r.tiers()
	for _, tier := range names {
		here, handedOn := false, false
	tier:
		for _, p := range mine {
			if p.Tier != tier {
				continue
			}
			here = true
			rules, dir := p.Egress, "egress"
			if q.in {
				rules, dir = p.Ingress, "ingress"
			}
			for i := range rules {
				if p.Invalid != "" && rules[i].Action != model.Deny || !r.ruleMatches(&rules[i], q) {
					continue
				}
				if rules[i].Action == model.Log {
					log = true
					continue
				}
				if rules[i].Action == model.Pass {
					handedOn = true
					break tier
				}
				name := fmt.Sprintf("%s %s %s[%d]", p.Kind, p.Name, dir, i)
				if rules[i].Name != "" {
					name += fmt.Sprintf(" %q", rules[i].Name)
				}
				if tier != "default" {
					name += " in tier " + tier
				}
				return rules[i].Action == model.Allow, name, log
			}
		}
		if here && !handedOn && !passes[tier] {
			return false, "default-deny", log
		}
	}
	return true, "default-allow", log
}

func enforcedKind(kind string) string {
	switch kind {
	case "StagedKubernetesNetworkPolicy":
		return "NetworkPolicy"
	case "StagedNetworkPolicy":
		return "NetworkPolicy.projectcalico.org"
	}
	return strings.TrimPrefix(kind, "Staged")
}

// enforced is the cluster with its staged policies in force.
func (r reference) enforced() reference {
	c := *r.c
	c.Policies, c.Staged = map[model.PolicyID]*model.Policy{}, nil
	for id, p := range r.c.Policies {
		c.Policies[id] = p
	}
	for id, p := range r.c.Staged {
		id.Kind = enforcedKind(id.Kind)
		c.Policies[id] = &p.Policy
		if p.Delete {
			delete(c.Policies, id)
		}
	}
	return reference{&c}
}
