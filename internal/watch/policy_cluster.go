// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// clusterPolicy is a ClusterPolicy on its way into the model.
//
// What cannot be enforced as it is written fails closed as the API asks for: an Allow rule matches
// nothing, a Deny or a Pass rule denies everything. The other rules of the policy count. Where it
// is not a rule that cannot be read, but whom the policy is about or where its place is, it is
// about all pods, allows nothing, and denies what it would pass on.
type clusterPolicy struct {
	finding
	consequence string // of what is found now
	wrong       bool   // something outside of the rules
	noDomains   bool   // the kind or the tier has no domain names
	unknown     []string
}

func (p *clusterPolicy) bad(field, value, message, action string) {
	p.Add(field, value, message+"; "+p.consequence, action)
}

// ConvertClusterNetworkPolicy converts a policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy.
func ConvertClusterNetworkPolicy(o *ClusterPolicy) (*model.Policy, []weirv1.Problem) {
	p := newClusterPolicy(model.KindClusterNetworkPolicy, o)
	tier := model.TierAdmin
	switch o.Spec.Tier {
	case "Admin":
	case "Baseline":
		tier, p.noDomains = model.TierBaseline, true
	default:
		p.outside("spec.tier", o.Spec.Tier, "is neither Admin nor Baseline", "correct it")
	}
	return p.convert(o, model.KindClusterNetworkPolicy, tier, "Accept"), p.List
}

// ConvertAdminNetworkPolicy converts a policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy.
func ConvertAdminNetworkPolicy(o *ClusterPolicy) (*model.Policy, []weirv1.Problem) {
	p := newClusterPolicy(model.KindAdminNetworkPolicy, o)
	p.noDomains = true
	return p.convert(o, model.KindAdminNetworkPolicy, model.TierAdminV1, "Allow"), p.List
}

// ConvertBaselineAdminNetworkPolicy converts a policy.networking.k8s.io/v1alpha1
// BaselineAdminNetworkPolicy.
func ConvertBaselineAdminNetworkPolicy(o *ClusterPolicy) (*model.Policy, []weirv1.Problem) {
	p := newClusterPolicy(model.KindBaselineAdminNetworkPolicy, o)
	p.noDomains = true
	return p.convert(o, model.KindBaselineAdminNetworkPolicy, model.TierBaselineV1, "Allow"), p.List
}

func newClusterPolicy(kind string, o *ClusterPolicy) *clusterPolicy {
	return &clusterPolicy{finding: *newFinding(kind, o), consequence: "the policy is about all pods, and allows and passes nothing"}
}

// outside reports something that is not in a rule.
func (p *clusterPolicy) outside(field, value, message, action string) {
	p.bad(field, value, message, action)
	p.wrong = true
}

// convert gives the policy its place and its rules; allow is what the kind calls the action.
func (p *clusterPolicy) convert(o *ClusterPolicy, kind, tier, allow string) *model.Policy {
	out := &model.Policy{Kind: kind, Name: parse.NameOf(o), Created: created(o), Tier: tier, Order: float64(o.Spec.Priority), Subject: p.subject(&o.Spec.Subject),
		AppliesIngress: len(o.Spec.Ingress) > 0, AppliesEgress: len(o.Spec.Egress) > 0}
	for _, field := range o.Unknown {
		if !strings.HasPrefix(field, "spec.ingress[") && !strings.HasPrefix(field, "spec.egress[") {
			p.outside(field, "", "is not known", "remove it")
		}
	}
	if p.wrong {
		out.Invalid = p.summary()
	}
	p.unknown = o.Unknown
	actions := map[string]model.Action{allow: model.Allow, "Deny": model.Deny}
	if kind != model.KindBaselineAdminNetworkPolicy {
		actions["Pass"] = model.Pass
	}
	for i := range o.Spec.Ingress {
		r := &o.Spec.Ingress[i]
		out.Ingress = append(out.Ingress, p.rule(fmt.Sprintf("spec.ingress[%d]", i), r, r.From, actions, true))
	}
	for i := range o.Spec.Egress {
		r := &o.Spec.Egress[i]
		out.Egress = append(out.Egress, p.rule(fmt.Sprintf("spec.egress[%d]", i), r, r.To, actions, false))
	}
	return out
}

// subject returns which pods the policy is about.
func (p *clusterPolicy) subject(s *clusterSubject) model.Selector {
	if (s.Namespaces == nil) == (s.Pods == nil) {
		p.outside("spec.subject", "", "must have one of namespaces, pods", "correct it")
		return model.Selector{}
	}
	before := len(p.List)
	out := *p.pods("spec.subject", s.Namespaces, s.Pods)
	if len(p.List) > before {
		p.outside("spec.subject", "", "cannot be read", "correct it")
		return model.Selector{}
	}
	return out
}

// pods returns the pods of namespaces, or of pods where namespaces is nil. What is wrong is
// reported.
func (p *clusterPolicy) pods(field string, namespaces *metav1.LabelSelector, pods *namespacedPods) *model.Selector {
	if namespaces != nil {
		return &model.Selector{Namespaces: p.labelSelector(field+".namespaces", namespaces)}
	}
	return &model.Selector{Namespaces: p.labelSelector(field+".pods.namespaceSelector", &pods.NamespaceSelector),
		Pods: p.labelSelector(field+".pods.podSelector", &pods.PodSelector)}
}

// rule converts a rule. It keeps its place whatever is wrong with it, so that "ingress[2]" names
// the same rule in the object and in a verdict.
func (p *clusterPolicy) rule(field string, r *clusterRule, peers []clusterPeer, actions map[string]model.Action, in bool) model.Rule {
	before := len(p.List)
	out := model.Rule{Name: r.Name}
	var known bool
	out.Action, known = actions[r.Action]
	p.consequence = "the rule denies everything"
	if known && out.Action == model.Allow {
		p.consequence = "the rule matches nothing"
	}
	if !known {
		p.bad(field+".action", r.Action, "is no action of this kind", "correct it")
	}
	for _, x := range p.unknown {
		if strings.HasPrefix(x, field+".") {
			p.bad(x, "", "is not known, and may narrow the rule", "remove it")
		}
	}
	peersField := field + map[bool]string{true: ".from", false: ".to"}[in]
	if len(peers) == 0 {
		p.bad(peersField, "", "is empty", "give at least one peer")
	}
	for i := range peers {
		out.Peers = append(out.Peers, p.peers(fmt.Sprintf("%s[%d]", peersField, i), &peers[i], in)...)
	}
	if out.Action != model.Allow && slices.ContainsFunc(out.Peers, func(x model.Peer) bool { return len(x.Domains) > 0 }) {
		p.bad(peersField, "", "has domainNames, which are for the action that allows alone", "use networks")
	}
	out.Ports = p.ports(field, r)
	named := slices.ContainsFunc(out.Ports, func(x model.PortRange) bool { return x.Named != "" })
	if named && slices.ContainsFunc(out.Peers, func(x model.Peer) bool { return x.Pods == nil }) {
		p.bad(field, "", "has a named port with nodes or networks, which have no names for ports", "make two rules of it")
	}
	switch {
	case len(p.List) == before && !(p.wrong && out.Action == model.Pass):
		return out
	case known && out.Action == model.Allow:
		return model.Rule{Name: r.Name, Action: model.Allow, Peers: []model.Peer{nobody()}}
	}
	return model.Rule{Name: "invalid", Action: model.Deny}
}

// peers converts a peer, to none when it cannot be enforced.
func (p *clusterPolicy) peers(field string, x *clusterPeer, in bool) []model.Peer {
	set := 0
	for _, is := range []bool{x.Namespaces != nil, x.Pods != nil, x.Nodes != nil, len(x.Networks) > 0, len(x.DomainNames) > 0} {
		if is {
			set++
		}
	}
	before := len(p.List)
	var out []model.Peer
	switch {
	case set != 1:
		p.bad(field, "", "must have one of namespaces, pods, and in egress rules nodes, networks; other kinds of peers are not known", "correct it")
	case x.Namespaces != nil || x.Pods != nil:
		out = append(out, model.Peer{Pods: p.pods(field, x.Namespaces, x.Pods)})
	case len(x.DomainNames) > 0:
		return p.domains(field+".domainNames", x.DomainNames, in)
	case in:
		p.bad(field, "", "is not for ingress rules", "use namespaces or pods")
	case x.Nodes != nil:
		out = append(out, model.Peer{Nodes: p.labelSelector(field+".nodes", x.Nodes)})
	default:
		for i, text := range x.Networks {
			n, err := parse.Prefix(text, false)
			if err != nil {
				p.bad(fmt.Sprintf("%s.networks[%d]", field, i), text, err.Error(), "correct it")
				continue
			}
			out = append(out, model.Peer{CIDR: n})
		}
		return out
	}
	if len(out) > 0 && len(p.List) > before {
		p.bad(field, "", "cannot be read", "correct it")
	}
	return out
}

// domains converts a peer of domain names, which only egress rules of tier Admin have.
func (p *clusterPolicy) domains(field string, names []string, in bool) []model.Peer {
	if in || p.noDomains {
		p.bad(field, names[0], "is for egress rules of a ClusterNetworkPolicy of tier Admin alone", "use networks")
		return nil
	}
	var out []string
	for i, text := range names {
		pattern, err := model.DomainPattern(text)
		if err != nil {
			p.bad(fmt.Sprintf("%s[%d]", field, i), text, err.Error(), "correct it")
			continue
		}
		out = append(out, pattern)
	}
	slices.Sort(out)
	return []model.Peer{{Domains: slices.Compact(out)}}
}

// ports converts what a rule says of protocols and ports; none = everything.
func (p *clusterPolicy) ports(field string, r *clusterRule) []model.PortRange {
	var out []model.PortRange
	if r.Protocols != nil && len(*r.Protocols) == 0 || r.Ports != nil && len(*r.Ports) == 0 {
		p.bad(field, "", "has an empty list of protocols or ports", "remove it, or give one")
	}
	if r.Protocols != nil {
		for i := range *r.Protocols {
			out = append(out, p.protocols(fmt.Sprintf("%s.protocols[%d]", field, i), &(*r.Protocols)[i]))
		}
	}
	if r.Ports != nil {
		for i := range *r.Ports {
			out = append(out, p.port(fmt.Sprintf("%s.ports[%d]", field, i), &(*r.Ports)[i]))
		}
	}
	return out
}

// protocols converts an element of v1alpha2.
func (p *clusterPolicy) protocols(field string, x *clusterProtocol) model.PortRange {
	var found []model.PortRange
	for _, of := range []struct {
		name  string
		match *clusterProtocolPort
		proto model.Protocol
	}{{".tcp", x.TCP, model.ProtocolTCP}, {".udp", x.UDP, model.ProtocolUDP}, {".sctp", x.SCTP, model.ProtocolSCTP}} {
		switch {
		case of.match == nil:
		case of.match.DestinationPort == nil:
			p.bad(field+of.name, "", "has no destinationPort; nothing else is known", "correct it")
			found = append(found, model.PortRange{})
		default:
			found = append(found, p.destination(field+of.name+".destinationPort", of.proto, of.match.DestinationPort))
		}
	}
	if x.DestinationNamedPort != "" {
		found = append(found, p.named(field+".destinationNamedPort", x.DestinationNamedPort))
	}
	if len(found) != 1 {
		p.bad(field, "", "must have one of tcp, udp, sctp, destinationNamedPort; other matches are not known", "correct it")
		return model.PortRange{}
	}
	return found[0]
}

func (p *clusterPolicy) destination(field string, proto model.Protocol, x *clusterPortMatch) model.PortRange {
	if (x.Number != 0) == (x.Range != nil) {
		p.bad(field, "", "must have one of number, range", "correct it")
		return model.PortRange{}
	}
	if x.Range != nil {
		return p.numbers(field+".range", proto, x.Range.Start, x.Range.End)
	}
	return p.numbers(field+".number", proto, x.Number, x.Number)
}

// port converts an element of v1alpha1.
func (p *clusterPolicy) port(field string, x *clusterPort) model.PortRange {
	var found []model.PortRange
	if x.PortNumber != nil {
		found = append(found, p.numbers(field+".portNumber", p.transport(field+".portNumber", x.PortNumber.Protocol), x.PortNumber.Port, x.PortNumber.Port))
	}
	if x.PortRange != nil {
		found = append(found, p.numbers(field+".portRange", p.transport(field+".portRange", x.PortRange.Protocol), x.PortRange.Start, x.PortRange.End))
	}
	if x.NamedPort != nil {
		found = append(found, p.named(field+".namedPort", *x.NamedPort))
	}
	if len(found) != 1 {
		p.bad(field, "", "must have one of portNumber, portRange, namedPort; other matches are not known", "correct it")
		return model.PortRange{}
	}
	return found[0]
}

func (p *clusterPolicy) transport(field string, name corev1.Protocol) model.Protocol {
	proto, ok := protocolOf(name)
	if !ok {
		p.bad(field+".protocol", string(name), "is none of TCP, UDP, SCTP", "correct it")
	}
	return proto
}

func (p *clusterPolicy) numbers(field string, proto model.Protocol, first, last int32) model.PortRange {
	if first < 1 || last > 65535 || first > last {
		p.bad(field, fmt.Sprintf("%d..%d", first, last), "is not within 1..65535, or ends before it starts", "correct it")
		return model.PortRange{}
	}
	return model.PortRange{Protocol: proto, First: uint16(first), Last: uint16(last)}
}

// named is a port by name, of whatever protocol the pod has it.
func (p *clusterPolicy) named(field, name string) model.PortRange {
	if name == "" || len(name) > 63 {
		p.bad(field, name, "is no name of a port", "correct it")
	}
	return model.PortRange{Protocol: model.ProtocolAny, Named: name}
}

// unknownFields returns the fields below spec that ClusterPolicy does not have. They may be what
// narrows a rule in another version of the kind.
func unknownFields(u *unstructured.Unstructured) (out []string) {
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &ClusterPolicy{}, true)
	strict, is := runtime.AsStrictDecodingError(err)
	if !is {
		return nil
	}
	for _, e := range strict.Errors() {
		_, field, _ := strings.Cut(e.Error(), "unknown field \"")
		if field = strings.TrimSuffix(field, "\""); strings.HasPrefix(field, "spec.") {
			out = append(out, field)
		}
	}
	return out
}

// ClusterPolicy is as much of the kinds of policy.networking.k8s.io as counts here:
// ClusterNetworkPolicy (v1alpha2), AdminNetworkPolicy and BaselineAdminNetworkPolicy (v1alpha1).
// Where they call the same thing by the same name they share it.
type ClusterPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              clusterSpec `json:"spec"`

	Unknown []string `json:"-"` // fields below spec that are not known here
}

type clusterSpec struct {
	Tier     string         `json:"tier"` // of ClusterNetworkPolicy
	Priority int32          `json:"priority"`
	Subject  clusterSubject `json:"subject"`
	Ingress  []clusterRule  `json:"ingress"`
	Egress   []clusterRule  `json:"egress"`
}

type clusterSubject struct {
	Namespaces *metav1.LabelSelector `json:"namespaces"`
	Pods       *namespacedPods       `json:"pods"`
}

type namespacedPods struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       metav1.LabelSelector `json:"podSelector"`
}

type clusterRule struct {
	Name      string             `json:"name"`
	Action    string             `json:"action"`
	From      []clusterPeer      `json:"from"`      // of ingress
	To        []clusterPeer      `json:"to"`        // of egress
	Protocols *[]clusterProtocol `json:"protocols"` // v1alpha2
	Ports     *[]clusterPort     `json:"ports"`     // v1alpha1
}

type clusterPeer struct {
	Namespaces  *metav1.LabelSelector `json:"namespaces"`
	Pods        *namespacedPods       `json:"pods"`
	Nodes       *metav1.LabelSelector `json:"nodes"`
	Networks    []string              `json:"networks"`
	DomainNames []string              `json:"domainNames"`
}

type clusterProtocol struct {
	TCP                  *clusterProtocolPort `json:"tcp"`
	UDP                  *clusterProtocolPort `json:"udp"`
	SCTP                 *clusterProtocolPort `json:"sctp"`
	DestinationNamedPort string               `json:"destinationNamedPort"`
}

type clusterProtocolPort struct {
	DestinationPort *clusterPortMatch `json:"destinationPort"`
}

type clusterPortMatch struct {
	Number int32             `json:"number"`
	Range  *clusterPortRange `json:"range"`
}

type clusterPortRange struct {
	Protocol corev1.Protocol `json:"protocol"` // v1alpha1
	Start    int32           `json:"start"`
	End      int32           `json:"end"`
}

type clusterPort struct {
	PortNumber *struct {
		Protocol corev1.Protocol `json:"protocol"`
		Port     int32           `json:"port"`
	} `json:"portNumber"`
	PortRange *clusterPortRange `json:"portRange"`
	NamedPort *string           `json:"namedPort"`
}
