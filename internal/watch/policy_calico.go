// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv3 "github.com/weir-net/weir/api/policy/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/defaults"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch/parse"
)

// calicoPolicy is what the two kinds of policy of projectcalico.org/v3 have in common.
type calicoPolicy struct {
	finding
	kind, tier                                          string
	order                                               *float64
	selector, namespaceSelector, serviceAccountSelector string
	types                                               []v3.PolicyType
	ingress, egress                                     []policyv3.Rule
	namespace                                           string
	created                                             int64
	wrong                                               bool // something cannot be enforced as it is written
}

// bad reports what cannot be enforced as it is written. The policy then denies everything to its
// subject.
func (p *calicoPolicy) bad(field, value, message, action string) {
	p.Add(field, value, message+"; the policy denies everything", action)
	p.wrong = true
}

// ConvertCalicoPolicy converts a projectcalico.org/v3 NetworkPolicy.
func ConvertCalicoPolicy(np *policyv3.NetworkPolicy) (*model.Policy, []weirv1.Problem) {
	s := &np.Spec
	p := &calicoPolicy{finding: *newFinding(model.KindCalicoNetworkPolicy, np), kind: model.KindCalicoNetworkPolicy, tier: s.Tier, order: s.Order,
		selector: s.Selector, serviceAccountSelector: s.ServiceAccountSelector, types: s.Types, ingress: s.Ingress, egress: s.Egress,
		namespace: np.Namespace, created: created(np)}
	return p.convert(parse.NameOf(np)), p.List
}

// ConvertGlobalNetworkPolicy converts a projectcalico.org/v3 GlobalNetworkPolicy. It returns nil
// for one that is not in force.
func ConvertGlobalNetworkPolicy(np *policyv3.GlobalNetworkPolicy) (*model.Policy, []weirv1.Problem) {
	s := &np.Spec
	p := &calicoPolicy{finding: *newFinding(model.KindGlobalNetworkPolicy, np), kind: model.KindGlobalNetworkPolicy, tier: s.Tier, order: s.Order,
		selector: s.Selector, namespaceSelector: s.NamespaceSelector, serviceAccountSelector: s.ServiceAccountSelector, types: s.Types,
		ingress: s.Ingress, egress: s.Egress, created: created(np)}
	out := p.convert(parse.NameOf(np))
	out.ApplyOnForward, out.PreDNAT, out.DoNotTrack = s.ApplyOnForward, s.PreDNAT, s.DoNotTrack
	if s.DoNotTrack {
		p.doNotTrack(out, s)
	}
	p.forHosts(out, s.ApplyOnForward)
	return out, p.List
}

// forHosts checks what a policy says of what a host endpoint's node hands on, and before Services.
func (p *calicoPolicy) forHosts(out *model.Policy, onForward bool) {
	if out.PreDNAT && !out.DoNotTrack {
		p.preDNAT(out)
	}
	if onForward {
		p.unknownEnd(out)
	}
}

// doNotTrack checks what a policy must be that evaluates each packet by itself.
func (p *calicoPolicy) doNotTrack(out *model.Policy, s *policyv3.GlobalNetworkPolicySpec) {
	if s.PreDNAT {
		p.bad("spec.preDNAT", "true", "is set together with doNotTrack, and no policy can be both", "leave one of them out")
		out.PreDNAT = false
		deny(out, p.summary())
	}
	if !s.ApplyOnForward {
		p.Add("spec.applyOnForward", "false", "must be true with doNotTrack; it counts as true", "set it")
		out.ApplyOnForward = true
	}
	for _, dir := range []string{"egress", "ingress"} {
		rules := p.ingress
		if dir == "egress" {
			rules = p.egress
		}
		for i := range rules {
			if len(rules[i].Destination.Domains) > 0 && dir == "egress" {
				p.Add(fmt.Sprintf("spec.egress[%d].destination.domains", i), rules[i].Destination.Domains[0], "is not known to host endpoints, which alone doNotTrack is about; the rule matches nothing", "use nets")
			}
			if rules[i].Action == v3.Log {
				p.Add(fmt.Sprintf("spec.%s[%d].action", dir, i), "Log", "reports only packets that are denied then: there are no flows to report", "leave the rule out")
			}
		}
	}
}

// preDNAT checks what a policy must be that evaluates before Services.
func (p *calicoPolicy) preDNAT(out *model.Policy) {
	if !out.ApplyOnForward {
		p.Add("spec.applyOnForward", "false", "must be true with preDNAT; it counts as true", "set it")
		out.ApplyOnForward = true
	}
	if out.AppliesEgress {
		p.Add("spec.types", "", "has Egress, and preDNAT is about ingress alone; egress is not in force", "leave it out")
		out.AppliesEgress, out.Egress = false, nil
	}
}

// unknownEnd reports rules whose own end is not known where a host endpoint evaluates what is
// forwarded. There they are strict: what allows is left out, anything else denies (calc).
func (p *calicoPolicy) unknownEnd(out *model.Policy) {
	for _, dir := range []string{"egress", "ingress"} {
		rules := out.Ingress
		if dir == "egress" {
			rules = out.Egress
		}
		for i := range rules {
			if rules[i].Own != nil {
				p.Add(fmt.Sprintf("spec.%s[%d]", dir, i), "", "has conditions on the end that host endpoints represent, which is not supported yet where they evaluate "+
					"what is forwarded, before Services, or each packet by itself: there the rule allows nothing", "say it of the other end and of ports")
			}
		}
	}
}

func (p *calicoPolicy) convert(name model.Name) *model.Policy {
	out := &model.Policy{Kind: p.kind, Name: name, Created: p.created, Tier: defaults.Tier(p.tier), Order: math.Inf(1)}
	if p.order != nil {
		out.Order = *p.order
	}
	out.Subject = model.Selector{Namespace: p.namespace, Expression: p.subject()}
	out.AppliesIngress, out.AppliesEgress = p.directions()
	for i := range p.ingress {
		out.Ingress = append(out.Ingress, p.rule(fmt.Sprintf("spec.ingress[%d]", i), &p.ingress[i], true))
	}
	for i := range p.egress {
		out.Egress = append(out.Egress, p.rule(fmt.Sprintf("spec.egress[%d]", i), &p.egress[i], false))
	}
	if p.wrong {
		deny(out, p.summary())
	}
	return out
}

// deny makes a policy deny everything, because of what is wrong with it.
func deny(p *model.Policy, why string) {
	p.Invalid, p.Ingress, p.Egress = why, nil, nil
	if p.AppliesIngress {
		p.Ingress = []model.Rule{{Name: "invalid", Action: model.Deny}}
	}
	if p.AppliesEgress {
		p.Egress = []model.Rule{{Name: "invalid", Action: model.Deny}}
	}
}

// directions are those that types list, or the default.
func (p *calicoPolicy) directions() (ingress, egress bool) {
	if len(p.types) == 0 {
		return defaults.Directions(len(p.ingress), len(p.egress))
	}
	for i, t := range p.types {
		switch t {
		case v3.PolicyTypeIngress:
			ingress = true
		case v3.PolicyTypeEgress:
			egress = true
		default:
			p.bad(fmt.Sprintf("spec.types[%d]", i), string(t), "is neither Ingress nor Egress", "correct it")
			ingress, egress = true, true
		}
	}
	return ingress, egress
}

// subject returns the expression that picks the pods. What cannot be read picks all.
func (p *calicoPolicy) subject() string {
	of := []*selector.Selector{p.parse("spec.selector", p.selector), p.parse("spec.serviceAccountSelector", p.serviceAccountSelector),
		p.parse("spec.namespaceSelector", p.namespaceSelector)}
	of[1], of[2] = ofAccounts(of[1]), ofNamespaces(of[2])
	return p.expression("spec.selector", of...)
}

// parse reads a selector; nil for none, and for one that is wrong.
func (p *calicoPolicy) parse(field, text string) *selector.Selector {
	if text == "" {
		return nil
	}
	s, err := selector.Parse(text)
	if err != nil {
		p.bad(field, text, err.Error(), "correct it")
		return nil
	}
	return s
}

// expression joins selectors; empty when there is none. Those that are right each may be too much
// together.
func (p *calicoPolicy) expression(field string, of ...*selector.Selector) string {
	if !slices.ContainsFunc(of, func(s *selector.Selector) bool { return s != nil }) {
		return ""
	}
	text := selector.And(of...).String()
	if _, err := selector.Parse(text); err != nil {
		p.bad(field, "", "cannot be used together with the other selectors: "+err.Error(), "make it smaller, by labels of its own")
		return ""
	}
	return text
}

// ofNamespaces makes a selector of namespaces one of what is in them: all() is everything that is
// in a namespace, and global() what is in none.
func ofNamespaces(s *selector.Selector) *selector.Selector {
	if s == nil {
		return nil
	}
	in := selector.Has(model.LabelNamespace)
	return s.Prefixed(model.PrefixNamespace, in, selector.Not(in))
}

func ofAccounts(s *selector.Selector) *selector.Selector {
	if s == nil {
		return nil
	}
	return s.Prefixed(model.PrefixAccount, nil, nil)
}

// entity returns what an end of a rule says of addresses, nil when it says nothing.
func (p *calicoPolicy) entity(field string, e *v3.EntityRule) *model.Entity {
	out := &model.Entity{InNets: len(e.Nets) > 0, Nets: p.nets(field+".nets", e.Nets), NotNets: p.nets(field+".notNets", e.NotNets)}
	names, accounts := p.accounts(field+".serviceAccounts", e.ServiceAccounts)
	own, spaces := p.parse(field+".selector", e.Selector), ofNamespaces(p.parse(field+".namespaceSelector", e.NamespaceSelector))
	if spaces == nil && p.namespace != "" && (own != nil || names != nil || accounts != nil || e.NotSelector != "") {
		spaces = selector.In(model.LabelNamespace, p.namespace) // a namespace's policy is about its own namespace
	}
	out.Selector = p.expression(field+".selector", spaces, names, accounts, own)
	out.NotSelector = p.expression(field+".notSelector", p.parse(field+".notSelector", e.NotSelector))
	if !out.InNets && len(out.NotNets) == 0 && out.Selector == "" && out.NotSelector == "" {
		return nil
	}
	return out
}

// accounts returns the selectors of service accounts, by name and by label.
func (p *calicoPolicy) accounts(field string, m *v3.ServiceAccountMatch) (names, labels *selector.Selector) {
	if m == nil {
		return nil, nil
	}
	for i, n := range m.Names {
		if n == "" || strings.ContainsAny(n, `'"`) {
			p.bad(fmt.Sprintf("%s.names[%d]", field, i), n, "is no name", "correct it")
			return nil, nil
		}
	}
	if len(m.Names) > 0 {
		names = selector.In(model.LabelServiceAccount, m.Names...)
	}
	return names, ofAccounts(p.parse(field+".selector", m.Selector))
}

func (p *calicoPolicy) nets(field string, list []string) []netip.Prefix {
	out, bad := parseNets(list)
	for _, i := range slices.Sorted(maps.Keys(bad)) {
		p.bad(fmt.Sprintf("%s[%d]", field, i), list[i], bad[i].Error(), "correct it")
	}
	return out
}

// parseNets reads CIDRs and addresses; bad are those that are neither.
func parseNets(list []string) (out []netip.Prefix, bad map[int]error) {
	for i, text := range list {
		n, err := parse.Prefix(text, false)
		if err != nil {
			if bad == nil {
				bad = map[int]error{}
			}
			bad[i] = err
			continue
		}
		out = append(out, n)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out), bad
}

// ConvertTier converts a Tier.
func ConvertTier(t *v3.Tier) (*model.Tier, []weirv1.Problem) {
	f := newFinding("Tier", t)
	out := &model.Tier{Name: t.Name, Order: math.Inf(1)}
	if t.Spec.Order != nil {
		out.Order = *t.Spec.Order
	}
	if a := t.Spec.DefaultAction; a != nil {
		switch *a {
		case v3.Pass:
			out.Pass = true
		case v3.Deny:
		default:
			f.Add("spec.defaultAction", string(*a), "is neither Deny nor Pass; Deny is in force", "correct it")
		}
	}
	if built, known := (&model.Cluster{}).Tier(t.Name); known && *out != built {
		f.Add("metadata.name", t.Name, "is a tier that is always there; its order and default action stay what they are", "remove the object, or choose another name")
	}
	return out, f.List
}

// ConvertNetworkSet converts a NetworkSet.
func ConvertNetworkSet(s *policyv3.NetworkSet) (*model.NetworkSet, []weirv1.Problem) {
	return networkSet("NetworkSet", s, s.Labels, &s.Spec)
}

// ConvertGlobalNetworkSet converts a GlobalNetworkSet.
func ConvertGlobalNetworkSet(s *policyv3.GlobalNetworkSet) (*model.NetworkSet, []weirv1.Problem) {
	return networkSet("GlobalNetworkSet", s, s.Labels, &s.Spec)
}

func networkSet(kind string, o metav1.Object, labels map[string]string, spec *policyv3.NetworkSetSpec) (*model.NetworkSet, []weirv1.Problem) {
	f := newFinding(kind, o)
	out := &model.NetworkSet{Name: parse.NameOf(o), Labels: labels}
	var bad map[int]error
	out.Nets, bad = parseNets(spec.Nets)
	for _, i := range slices.Sorted(maps.Keys(bad)) {
		f.Add(fmt.Sprintf("spec.nets[%d]", i), spec.Nets[i], bad[i].Error()+"; it is left out", "correct it")
	}
	out.Domains, bad = parseDomains(spec.AllowedEgressDomains)
	for _, i := range slices.Sorted(maps.Keys(bad)) {
		f.Add(fmt.Sprintf("spec.allowedEgressDomains[%d]", i), spec.AllowedEgressDomains[i], bad[i].Error()+"; it is left out", "correct it")
	}
	return out, f.List
}

// ConvertServiceAccount converts a ServiceAccount.
func ConvertServiceAccount(a *corev1.ServiceAccount) (*model.ServiceAccount, []weirv1.Problem) {
	return &model.ServiceAccount{Name: parse.NameOf(a), Labels: a.Labels}, nil
}

// ConvertStagedNetworkPolicy converts a StagedNetworkPolicy. It returns nil for one that is to be
// ignored.
func ConvertStagedNetworkPolicy(np *policyv3.StagedNetworkPolicy) (*model.StagedPolicy, []weirv1.Problem) {
	s := &np.Spec
	p := &calicoPolicy{finding: *newFinding(model.KindStagedNetworkPolicy, np), kind: model.KindStagedNetworkPolicy, tier: s.Tier, order: s.Order,
		selector: s.Selector, serviceAccountSelector: s.ServiceAccountSelector, types: s.Types, ingress: s.Ingress, egress: s.Egress,
		namespace: np.Namespace}
	return p.staged(s.StagedAction, parse.NameOf(np), p.convert), p.List
}

// ConvertStagedGlobalNetworkPolicy converts a StagedGlobalNetworkPolicy. It returns nil for one
// that is to be ignored, and for one without tracking: of what has no flow there are no events.
func ConvertStagedGlobalNetworkPolicy(np *policyv3.StagedGlobalNetworkPolicy) (*model.StagedPolicy, []weirv1.Problem) {
	s := &np.Spec
	p := &calicoPolicy{finding: *newFinding(model.KindStagedGlobalNetworkPolicy, np), kind: model.KindStagedGlobalNetworkPolicy, tier: s.Tier, order: s.Order,
		selector: s.Selector, namespaceSelector: s.NamespaceSelector, serviceAccountSelector: s.ServiceAccountSelector, types: s.Types,
		ingress: s.Ingress, egress: s.Egress}
	if s.StagedAction != v3.StagedActionDelete && s.DoNotTrack {
		p.Add("spec.doNotTrack", "true", "is about packets without flows, which are not reported; the policy is ignored", "remove the policy")
		return nil, p.List
	}
	return p.staged(s.StagedAction, parse.NameOf(np), func(name model.Name) *model.Policy {
		out := p.convert(name)
		out.ApplyOnForward, out.PreDNAT = s.ApplyOnForward, s.PreDNAT
		p.forHosts(out, s.ApplyOnForward)
		return out
	}), p.List
}

// ConvertStagedKubernetesNetworkPolicy converts a StagedKubernetesNetworkPolicy. It returns nil for
// one that is to be ignored.
func ConvertStagedKubernetesNetworkPolicy(np *v3.StagedKubernetesNetworkPolicy) (*model.StagedPolicy, []weirv1.Problem) {
	f := newFinding(model.KindStagedKubernetesNetworkPolicy, np)
	s := &np.Spec
	out := f.staged(s.StagedAction, parse.NameOf(np), func(model.Name) *model.Policy {
		return f.networkPolicy(model.KindStagedKubernetesNetworkPolicy, &networkingv1.NetworkPolicy{ObjectMeta: np.ObjectMeta,
			Spec: networkingv1.NetworkPolicySpec{PodSelector: s.PodSelector, Ingress: s.Ingress, Egress: s.Egress, PolicyTypes: s.PolicyTypes}})
	})
	return out, f.List
}

// staged converts by the action. Learn is for those who write the rules; until they have, it is as
// Set. An action that is none stages the policy: it decides nothing either way.
func (f *finding) staged(action v3.StagedAction, name model.Name, convert func(model.Name) *model.Policy) *model.StagedPolicy {
	switch action {
	case v3.StagedActionIgnore:
		return nil
	case v3.StagedActionDelete, v3.StagedActionSet, v3.StagedActionLearn, "":
	default:
		f.Add("spec.stagedAction", string(action), "is none of Set, Delete, Learn, Ignore; the policy is staged", "correct it")
	}
	p := convert(name)
	if action != v3.StagedActionDelete {
		return &model.StagedPolicy{Policy: *p}
	}
	p.Ingress, p.Egress, p.Invalid, f.List = nil, nil, "", nil // its rules mean nothing
	return &model.StagedPolicy{Policy: *p, Delete: true}
}
