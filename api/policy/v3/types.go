// SPDX-License-Identifier: Apache-2.0

// Package v3 holds the kinds of policy of projectcalico.org/v3 with the fields that the published
// module's types lack: domains of rules, allowedEgressDomains of network sets
// (docs/guides/domain-names.md). Everything else in them is of the published types. The
// CustomResourceDefinitions are made from those, with these fields added (deploy/gen). It carries
// no logic.
package v3

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EntityRule is an end of a rule.
type EntityRule struct {
	v3.EntityRule `json:",inline"`

	// Domains are domain names, or wildcards.
	Domains []string `json:"domains,omitempty"`
}

// Rule is a rule of a policy.
type Rule struct {
	Action      v3.Action             `json:"action"`
	IPVersion   *int                  `json:"ipVersion,omitempty"`
	Protocol    *numorstring.Protocol `json:"protocol,omitempty"`
	NotProtocol *numorstring.Protocol `json:"notProtocol,omitempty"`
	ICMP        *v3.ICMPFields        `json:"icmp,omitempty"`
	NotICMP     *v3.ICMPFields        `json:"notICMP,omitempty"`
	Source      EntityRule            `json:"source,omitempty"`
	Destination EntityRule            `json:"destination,omitempty"`
	HTTP        *v3.HTTPMatch         `json:"http,omitempty"`
	Metadata    *v3.RuleMetadata      `json:"metadata,omitempty"`
}

// NetworkPolicy is a policy of a namespace.
type NetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NetworkPolicySpec `json:"spec,omitempty"`
}

// NetworkPolicySpec is what a NetworkPolicy says.
type NetworkPolicySpec struct {
	Tier                   string                     `json:"tier,omitempty"`
	Order                  *float64                   `json:"order,omitempty"`
	Ingress                []Rule                     `json:"ingress,omitempty"`
	Egress                 []Rule                     `json:"egress,omitempty"`
	Selector               string                     `json:"selector,omitempty"`
	Types                  []v3.PolicyType            `json:"types,omitempty"`
	ServiceAccountSelector string                     `json:"serviceAccountSelector,omitempty"`
	PerformanceHints       []v3.PolicyPerformanceHint `json:"performanceHints,omitempty"`
}

// GlobalNetworkPolicy is a policy of the cluster.
type GlobalNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GlobalNetworkPolicySpec `json:"spec,omitempty"`
}

// GlobalNetworkPolicySpec is what a GlobalNetworkPolicy says.
type GlobalNetworkPolicySpec struct {
	NetworkPolicySpec `json:",inline"`

	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	DoNotTrack        bool   `json:"doNotTrack,omitempty"`
	PreDNAT           bool   `json:"preDNAT,omitempty"`
	ApplyOnForward    bool   `json:"applyOnForward,omitempty"`
}

// StagedNetworkPolicy is a NetworkPolicy that is not in force.
type StagedNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec StagedNetworkPolicySpec `json:"spec,omitempty"`
}

// StagedNetworkPolicySpec is what a StagedNetworkPolicy says.
type StagedNetworkPolicySpec struct {
	NetworkPolicySpec `json:",inline"`

	StagedAction v3.StagedAction `json:"stagedAction,omitempty"`
}

// StagedGlobalNetworkPolicy is a GlobalNetworkPolicy that is not in force.
type StagedGlobalNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec StagedGlobalNetworkPolicySpec `json:"spec,omitempty"`
}

// StagedGlobalNetworkPolicySpec is what a StagedGlobalNetworkPolicy says.
type StagedGlobalNetworkPolicySpec struct {
	GlobalNetworkPolicySpec `json:",inline"`

	StagedAction v3.StagedAction `json:"stagedAction,omitempty"`
}

// NetworkSet is a set of networks and names in a namespace.
type NetworkSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NetworkSetSpec `json:"spec,omitempty"`
}

// GlobalNetworkSet is a set of networks and names of the cluster.
type GlobalNetworkSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NetworkSetSpec `json:"spec,omitempty"`
}

// NetworkSetSpec is what is in a set.
type NetworkSetSpec struct {
	Nets []string `json:"nets,omitempty"`
	// AllowedEgressDomains are domain names, or wildcards, for egress rules that allow.
	AllowedEgressDomains []string `json:"allowedEgressDomains,omitempty"`
}
