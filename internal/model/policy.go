// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"net/netip"
)

// PolicyID names a policy among those of all kinds.
type PolicyID struct {
	Kind string
	Name Name
}

// The kinds of policies, as rules name them. The two kinds that are both called NetworkPolicy are
// distinguished by their group.
const (
	KindNetworkPolicy              = "NetworkPolicy" // networking.k8s.io
	KindCalicoNetworkPolicy        = "NetworkPolicy.projectcalico.org"
	KindGlobalNetworkPolicy        = "GlobalNetworkPolicy"
	KindClusterNetworkPolicy       = "ClusterNetworkPolicy"
	KindAdminNetworkPolicy         = "AdminNetworkPolicy"
	KindBaselineAdminNetworkPolicy = "BaselineAdminNetworkPolicy"

	KindStagedNetworkPolicy           = "StagedNetworkPolicy"
	KindStagedGlobalNetworkPolicy     = "StagedGlobalNetworkPolicy"
	KindStagedKubernetesNetworkPolicy = "StagedKubernetesNetworkPolicy"
)

// KindInForce returns the kind whose policies those of a staged kind represent; every other kind
// itself.
func KindInForce(kind string) string {
	switch kind {
	case KindStagedNetworkPolicy:
		return KindCalicoNetworkPolicy
	case KindStagedGlobalNetworkPolicy:
		return KindGlobalNetworkPolicy
	case KindStagedKubernetesNetworkPolicy:
		return KindNetworkPolicy
	}
	return kind
}

// Policy is a policy of any kind in one form.
type Policy struct {
	Kind                          string
	Name                          Name
	Tier                          string
	Created                       int64    // when, in seconds; 0 = not known
	Order                         float64  // within the tier; lower is earlier, +Inf last, equal ones by name
	Subject                       Selector // pods that it isolates
	Ingress                       []Rule   // used when AppliesIngress
	Egress                        []Rule   // used when AppliesEgress
	AppliesIngress, AppliesEgress bool
	// What a policy says to host endpoints. One with PreDNAT or DoNotTrack is for them alone:
	// PreDNAT evaluates what comes in, as it came, before Services are translated; DoNotTrack
	// evaluates each packet by itself, before everything else. ApplyOnForward is about what is
	// forwarded by the node in addition to what its own processes exchange.
	ApplyOnForward, PreDNAT, DoNotTrack bool
	// Invalid says what in the object cannot be enforced exactly, naming the field. A NetworkPolicy
	// then isolates its subject and allows nothing; a policy of another kind has one rule that
	// denies everything (fail closed). Empty = fine.
	Invalid string
}

// ID is the key of the policy in a Cluster.
func (p *Policy) ID() PolicyID { return PolicyID{p.Kind, p.Name} }

// StagedPolicy is a policy of a staged kind: what would be decided if it were in force is found
// out, and decides nothing. It would take the place of the policy of the same name whose kind
// is KindInForce, or alongside the others when there is none.
type StagedPolicy struct {
	Policy Policy
	// Delete says that it stages the end of that policy: its own rules mean nothing.
	Delete bool
}

// Replaces is the policy whose place it would take.
func (p *StagedPolicy) Replaces() PolicyID {
	return PolicyID{KindInForce(p.Policy.Kind), p.Policy.Name}
}

// Tier is a list of policies that is looked at as one: a rule's Pass, and the end of a tier that
// passes, lead to the next tier. A tier counts for a pod when one of its policies selects the pod.
type Tier struct {
	Name  string
	Order float64 // lower is earlier, +Inf last; equal ones by name
	// Pass is defaultAction Pass: what no rule of the tier matches goes on. Otherwise it is denied.
	Pass bool
}

// The tiers that are there without an object, and the order of NetworkPolicies in theirs.
const (
	TierDefault        = "default"
	TierAdmin          = "kube-admin"                 // ClusterNetworkPolicy, tier Admin
	TierBaseline       = "kube-baseline"              // ClusterNetworkPolicy, tier Baseline
	TierAdminV1        = "adminnetworkpolicy"         // AdminNetworkPolicy
	TierBaselineV1     = "baselineadminnetworkpolicy" // BaselineAdminNetworkPolicy
	NetworkPolicyOrder = 1000
	orderAdmin         = 1_000
	orderDefault       = 1_000_000
	orderBaseline      = 10_000_000
)

// builtInTiers are in force whatever the API says of them.
var builtInTiers = map[string]Tier{
	TierAdmin: {TierAdmin, orderAdmin, true}, TierAdminV1: {TierAdminV1, orderAdmin, true}, TierDefault: {TierDefault, orderDefault, false},
	TierBaseline: {TierBaseline, orderBaseline, true}, TierBaselineV1: {TierBaselineV1, orderBaseline, true},
}

// Tier returns a tier by its name; known is false of one that does not exist, whose policies are
// not in force.
func (c *Cluster) Tier(name string) (t Tier, known bool) {
	if t, ok := builtInTiers[name]; ok {
		return t, true
	}
	if t := c.Tiers[name]; t != nil {
		return *t, true
	}
	return Tier{Name: name, Order: math.Inf(1)}, false
}

// NetworkSet is a NetworkSet, or with an empty namespace a GlobalNetworkSet: addresses that
// selectors pick by labels.
type NetworkSet struct {
	Name   Name
	Labels map[string]string
	Nets   []netip.Prefix
	// Domains are what DNS says of these names, as CalicoDomainPattern returns them, sorted: to
	// egress rules that allow and pick the set.
	Domains []string
}

// ServiceAccount is a v1 ServiceAccount.
type ServiceAccount struct {
	Name   Name
	Labels map[string]string
}

// Action is what a rule does.
type Action uint8

// The actions.
const (
	Allow Action = iota
	Deny
	Pass
	Log // decides nothing
)

// Rule matches when everything in it does.
type Rule struct {
	Name   string // what the object calls it; may be empty
	Action Action
	Peers  []Peer      // the other end is one of these; empty = everybody
	Ports  []PortRange // destination ports, one of these; empty = every protocol and port

	IPVersion   uint8    // 4 or 6; 0 = both
	NotProtocol Protocol // any but this one; ProtocolAny = no such condition
	// NotPorts are destination ports that do not match; SourcePorts and NotSourcePorts are the same
	// of the source.
	NotPorts, SourcePorts, NotSourcePorts []PortRange
	Other                                 *Entity // what else holds of the other end; nil = nothing
	Own                                   *Entity // what holds of the end that the policy isolates; nil = nothing
}

// Peer is pods by selector, a CIDR, nodes, or domain names.
type Peer struct {
	Pods   *Selector
	CIDR   netip.Prefix // valid when nothing else is set
	Except []netip.Prefix
	Nodes  *LabelSelector // the nodes' addresses
	// Domains are what DNS says of these names, as DomainPattern or CalicoDomainPattern returns
	// them, sorted: of egress rules that allow alone.
	Domains []string
}

// Entity is an end of a rule of projectcalico.org: everything in it holds. Expressions are of
// package selector, over the labels of pods and network sets, those of their namespace and account
// below PrefixNamespace and PrefixAccount.
type Entity struct {
	InNets                bool // one of Nets, which may be none
	Nets, NotNets         []netip.Prefix
	Selector, NotSelector string // empty = no such condition
	Service               Name   // the address is an endpoint's of this Service; zero = no such condition
}

// PortRange matches a protocol and its ports First..Last, or the port that the pod at that end
// calls Named. Protocol ProtocolAny = every one. First 0, Last 65535 = every port. The port of an
// ICMP message, in the family of the packet, is its type * 256 + its code.
type PortRange struct {
	Protocol    Protocol
	First, Last uint16
	Named       string
	// Service, when set, matches the ports (with their protocols) at which the other end is an
	// endpoint of the Service.
	Service Name
}

// Selector picks pods: those in the namespaces picked by Namespaces (or in Namespace when that is
// set) whose labels match Pods and Expression.
type Selector struct {
	Namespace  string         // exactly this one, when not empty
	Namespaces *LabelSelector // otherwise; nil = every namespace
	Pods       *LabelSelector // nil = every pod
	Expression string         // of package selector, over a pod's labels, as in Entity; empty = every pod
}

// Labels that the selector language sees on a pod in addition to its own, and before its own.
const (
	LabelNamespace      = "projectcalico.org/namespace"
	LabelServiceAccount = "projectcalico.org/serviceaccount"
	LabelOrchestrator   = "projectcalico.org/orchestrator"
	// PrefixNamespace and PrefixAccount are put before the labels of the namespace and of the
	// service account, which come after its own; with LabelName also their names.
	PrefixNamespace = "pcns."
	PrefixAccount   = "pcsa."
	LabelName       = "projectcalico.org/name"
)

// LabelSelector is a conjunction of requirements (metav1.LabelSelector, with matchLabels turned
// into In requirements). Its canonical text names it: two equal texts select the same.
type LabelSelector struct {
	Requirements []Requirement // sorted by key, operator, values
}

// Operator of a Requirement.
type Operator string

// The operators of metav1.LabelSelectorRequirement.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Requirement is one condition on labels.
type Requirement struct {
	Key    string
	Op     Operator
	Values []string // sorted
}
