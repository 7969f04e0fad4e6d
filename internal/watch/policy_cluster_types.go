// SPDX-License-Identifier: Apache-2.0

package watch

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
