package model

import "net/netip"

// Policy is a policy of any kind in one form. The first slice has networking.k8s.io/v1 NetworkPolicy;
// tiers, order, Pass and Deny take their places here later.
type Policy struct {
	Kind                          string // "NetworkPolicy"
	Name                          Name
	Tier                          string   // "default"
	Order                         float64  // within the tier; lower is earlier
	Subject                       Selector // pods that it isolates
	Ingress                       []Rule   // used when AppliesIngress
	Egress                        []Rule   // used when AppliesEgress
	AppliesIngress, AppliesEgress bool
	// Invalid says what in the object cannot be enforced exactly, naming the field; the policy then
	// isolates its subject and allows nothing by the rules concerned (fail closed). Empty = fine.
	Invalid string
}

// Action is what a rule does.
type Action uint8

// The actions.
const (
	Allow Action = iota
	Deny
	Pass
)

// Rule matches when its peer and its ports match.
type Rule struct {
	Action Action
	Peers  []Peer      // empty = everybody
	Ports  []PortRange // empty = every protocol and port
}

// Peer is either pods by selector or a CIDR.
type Peer struct {
	Pods   *Selector
	CIDR   netip.Prefix // valid when Pods is nil
	Except []netip.Prefix
}

// PortRange matches a protocol and its ports First..Last, or the port that the destination pod calls
// Named. Protocol ProtocolAny = every one. First 0, Last 65535 = every port.
type PortRange struct {
	Protocol    Protocol
	First, Last uint16
	Named       string
}

// Selector picks pods: those in the namespaces picked by Namespaces (or in Namespace when that is set)
// whose labels match Pods.
type Selector struct {
	Namespace  string         // exactly this one, when not empty
	Namespaces *LabelSelector // otherwise; nil = every namespace
	Pods       *LabelSelector // nil = every pod
}

// LabelSelector is a conjunction of requirements (metav1.LabelSelector, with matchLabels turned into
// In requirements). Its canonical text names it: two equal texts select the same.
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
