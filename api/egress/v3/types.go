// SPDX-License-Identifier: Apache-2.0

// Package v3 holds EgressGatewayPolicy of projectcalico.org/v3, which the published module of types
// lacks: by which egress gateways pods leave the cluster, by where to
// (docs/guides/egress-gateways.md). The fields, their values and defaults are those that Calico's
// documentation names, so that an object written for it means the same. It carries no logic.
//
// +groupName=projectcalico.org
package v3

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Resource is the name of the kind's objects in the API.
const Resource = "egressgatewaypolicies"

// EgressGatewayPolicy says by which egress gateways the pods leave the cluster that name it, or
// whose namespace does, by the annotation egress.projectcalico.org/egressGatewayPolicy.
//
// +kubebuilder:resource:scope=Cluster,path=egressgatewaypolicies
type EgressGatewayPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec EgressGatewayPolicySpec `json:"spec,omitempty"`
}

// EgressGatewayPolicySpec has one rule for each destination.
type EgressGatewayPolicySpec struct {
	// Rules: the one with the longest prefix that has the destination decides. What is in none does
	// not leave the cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Rules []EgressGatewayRule `json:"rules,omitempty"`
}

// EgressGatewayRule says by which gateways packets to some destinations leave.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gatewayPreference) || self.gatewayPreference != 'PreferNodeLocal' || has(self.gateway)",message="gatewayPreference needs a gateway"
type EgressGatewayRule struct {
	// Destination is what the rule is about; absent = every address, of IPv4 and IPv6.
	// +optional
	Destination *EgressGatewayPolicyDestinationSpec `json:"destination,omitempty"`
	// Description is for readers.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
	// Gateway selects the gateways; absent = packets leave as those of pods without gateways do.
	// +optional
	Gateway *EgressSpec `json:"gateway,omitempty"`
	// GatewayPreference: PreferNodeLocal = the gateways on the client's node alone, where there are
	// any. None, the default, has no preference.
	// +optional
	// +kubebuilder:validation:Enum="";None;PreferNodeLocal
	GatewayPreference string `json:"gatewayPreference,omitempty"`
}

// EgressGatewayPolicyDestinationSpec is a destination.
type EgressGatewayPolicyDestinationSpec struct {
	// CIDR is a prefix of either family; absent = every address.
	// +optional
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:Pattern=`^$|^[0-9.]+(/[0-9]+)?$|^[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(/[0-9]+)?$`
	CIDR string `json:"cidr,omitempty"`
}

// EgressSpec selects gateways.
type EgressSpec struct {
	// NamespaceSelector selects the namespaces of the gateways by their labels; absent = the
	// client's own.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	// Selector selects the gateways by the labels of pods; absent = all in these namespaces.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Selector string `json:"selector,omitempty"`
	// MaxNextHops is how many of the gateways one client uses; 0, the default, is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxNextHops int `json:"maxNextHops,omitempty"`
}
