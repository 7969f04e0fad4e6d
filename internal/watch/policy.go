// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/defaults"
	"github.com/weir-net/weir/internal/watch/parse"
)

// ConvertNetworkPolicy converts a networking.k8s.io/v1 NetworkPolicy. What cannot be enforced
// exactly is named in Invalid, and its rule is left out: the pods stay isolated, and less is
// allowed rather than more. A subject selector that cannot be read selects every pod of the
// namespace.
func ConvertNetworkPolicy(np *networkingv1.NetworkPolicy) (*model.Policy, []weirv1.Problem) {
	f := newFinding("NetworkPolicy", np)
	return f.networkPolicy(model.KindNetworkPolicy, np), f.List
}

func (f *finding) networkPolicy(kind string, np *networkingv1.NetworkPolicy) *model.Policy {
	out := &model.Policy{Kind: kind, Name: parse.NameOf(np), Created: created(np), Tier: model.TierDefault, Order: model.NetworkPolicyOrder}
	out.Subject = model.Selector{Namespace: np.Namespace, Pods: f.labelSelector("spec.podSelector", &np.Spec.PodSelector)}
	out.AppliesIngress, out.AppliesEgress = f.policyTypes(np)
	if out.AppliesIngress {
		for i, r := range np.Spec.Ingress {
			field := fmt.Sprintf("spec.ingress[%d]", i)
			f.rule(&out.Ingress, np.Namespace, field, "from", r.From, r.Ports)
		}
	}
	if out.AppliesEgress {
		for i, r := range np.Spec.Egress {
			field := fmt.Sprintf("spec.egress[%d]", i)
			f.rule(&out.Egress, np.Namespace, field, "to", r.To, r.Ports)
		}
	}
	out.Invalid = f.summary()
	return out
}

// policyTypes are the directions that policyTypes list, or the default.
func (f *finding) policyTypes(np *networkingv1.NetworkPolicy) (ingress, egress bool) {
	if len(np.Spec.PolicyTypes) == 0 {
		return defaults.KubernetesDirections(len(np.Spec.Egress))
	}
	for i, t := range np.Spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			f.Add(fmt.Sprintf("spec.policyTypes[%d]", i), string(t),
				"is neither Ingress nor Egress; both directions are isolated", "correct it")
			ingress, egress = true, true
		}
	}
	return ingress, egress
}

// rule appends a converted rule, or nothing when no part of it can be enforced as written. An empty
// list of peers or ports means "all", so a list that lost all its elements must not be passed on.
// Where only some elements are bad the rule goes on with the others.
func (f *finding) rule(out *[]model.Rule, namespace, field, peersName string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	rule := model.Rule{Action: model.Allow}
	for i := range peers {
		if p, ok := f.peer(namespace, fmt.Sprintf("%s.%s[%d]", field, peersName, i), &peers[i]); ok {
			rule.Peers = append(rule.Peers, p)
		}
	}
	for i := range ports {
		if p, ok := f.portRange(fmt.Sprintf("%s.ports[%d]", field, i), &ports[i]); ok {
			rule.Ports = append(rule.Ports, p)
		}
	}
	if len(peers) > 0 && len(rule.Peers) == 0 || len(ports) > 0 && len(rule.Ports) == 0 {
		// Keep the rule's place, so that "ingress[2]" names the same rule in the object and in a
		// verdict; it matches nothing.
		rule = model.Rule{Action: model.Allow, Peers: []model.Peer{nobody()}}
	}
	*out = append(*out, rule)
}

// nobody is a peer that no pod and no address matches.
func nobody() model.Peer {
	return model.Peer{Pods: &model.Selector{Pods: &model.LabelSelector{Requirements: []model.Requirement{
		{Key: "weir.dev/nobody", Op: model.DoesNotExist}, {Key: "weir.dev/nobody", Op: model.Exists},
	}}}}
}

func (f *finding) peer(namespace, field string, p *networkingv1.NetworkPolicyPeer) (model.Peer, bool) {
	switch {
	case p.IPBlock != nil:
		if p.PodSelector != nil || p.NamespaceSelector != nil {
			f.Add(field, "", "has ipBlock together with a selector; the peer is left out", "use one of them a peer")
			return model.Peer{}, false
		}
		return f.ipBlock(field+".ipBlock", p.IPBlock)
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		f.Add(field, "", "has none of podSelector, namespaceSelector, ipBlock; the peer is left out and matches nothing",
			"use one of these, or remove the peer")
		return model.Peer{}, false
	}
	before := len(f.List)
	sel := &model.Selector{}
	if p.PodSelector != nil {
		sel.Pods = f.labelSelector(field+".podSelector", p.PodSelector)
	}
	if p.NamespaceSelector != nil {
		sel.Namespaces = f.labelSelector(field+".namespaceSelector", p.NamespaceSelector)
	} else {
		sel.Namespace = namespace
	}
	if len(f.List) > before { // a part of a selector was left out: it would match more than was written
		return model.Peer{}, false
	}
	return model.Peer{Pods: sel}, true
}

func (f *finding) ipBlock(field string, b *networkingv1.IPBlock) (model.Peer, bool) {
	cidr, err := parse.Prefix(b.CIDR, false)
	if err != nil {
		f.Add(field+".cidr", b.CIDR, err.Error()+"; the peer is left out", "correct it")
		return model.Peer{}, false
	}
	peer := model.Peer{CIDR: cidr}
	for i, e := range b.Except {
		ex, err := parse.Prefix(e, false)
		if err == nil && (ex.Addr().Is4() != cidr.Addr().Is4() || ex.Bits() < cidr.Bits() || !cidr.Contains(ex.Addr())) {
			err = fmt.Errorf("is not inside of %s", cidr)
		}
		if err != nil {
			f.Add(fmt.Sprintf("%s.except[%d]", field, i), e, err.Error()+"; the peer is left out", "correct it")
			return model.Peer{}, false
		}
		peer.Except = append(peer.Except, ex)
	}
	slices.SortFunc(peer.Except, netip.Prefix.Compare)
	peer.Except = slices.Compact(peer.Except)
	return peer, true
}

func (f *finding) portRange(field string, p *networkingv1.NetworkPolicyPort) (model.PortRange, bool) {
	out := model.PortRange{Protocol: model.ProtocolTCP, First: 0, Last: 65535}
	if p.Protocol != nil {
		proto, ok := protocolOf(*p.Protocol)
		if !ok {
			f.Add(field+".protocol", string(*p.Protocol), "is none of TCP, UDP, SCTP; the port is left out", "correct it")
			return out, false
		}
		out.Protocol = proto
	}
	if p.Port == nil {
		if p.EndPort != nil {
			f.Add(field+".endPort", fmt.Sprint(*p.EndPort), "needs port; the port is left out", "add port")
			return out, false
		}
		return out, true
	}
	if p.Port.Type == intstr.String {
		if p.EndPort != nil || p.Port.StrVal == "" || len(p.Port.StrVal) > 63 {
			f.Add(field+".port", p.Port.StrVal, "is not a port's name that is allowed here; the port is left out",
				"use a name without endPort, or numbers")
			return out, false
		}
		return model.PortRange{Protocol: out.Protocol, Named: p.Port.StrVal}, true
	}
	first, last := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if first < 1 || first > 65535 || last < first || last > 65535 {
		f.Add(field, fmt.Sprintf("%d..%d", first, last), "is not within 1..65535, or endPort is below port; the port is left out", "correct it")
		return out, false
	}
	out.First, out.Last = uint16(first), uint16(last)
	return out, true
}

// labelSelector converts a selector into its canonical form: sorted, each requirement once.
func (f *finding) labelSelector(field string, s *metav1.LabelSelector) *model.LabelSelector {
	out := &model.LabelSelector{}
	for k, v := range s.MatchLabels {
		out.Requirements = append(out.Requirements, model.Requirement{Key: k, Op: model.In, Values: []string{v}})
	}
	for i, e := range s.MatchExpressions {
		field := fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		r := model.Requirement{Key: e.Key, Op: model.Operator(e.Operator)}
		switch e.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(e.Values) == 0 {
				f.Add(field+".values", "", "is empty; the requirement is left out", "give values")
				continue
			}
			r.Values = slices.Compact(slices.Sorted(slices.Values(e.Values)))
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(e.Values) > 0 {
				f.Add(field+".values", strings.Join(e.Values, ","), "must be empty with "+string(e.Operator)+"; the requirement is left out", "remove them")
				continue
			}
		default:
			f.Add(field+".operator", string(e.Operator), "is none of In, NotIn, Exists, DoesNotExist; the requirement is left out", "correct it")
			continue
		}
		out.Requirements = append(out.Requirements, r)
	}
	slices.SortFunc(out.Requirements, compareRequirements)
	out.Requirements = slices.CompactFunc(out.Requirements, func(a, b model.Requirement) bool { return compareRequirements(a, b) == 0 })
	return out
}

func compareRequirements(a, b model.Requirement) int {
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.Op), string(b.Op)); c != 0 {
		return c
	}
	return slices.Compare(a.Values, b.Values)
}

// summary is the problems in one text, for model.Policy.Invalid.
func (f *finding) summary() string {
	var parts []string
	for _, p := range f.List {
		parts = append(parts, p.Field+": "+p.Message)
	}
	return strings.Join(parts, "; ")
}
