// SPDX-License-Identifier: Apache-2.0

package model

import "maps"

// EgressClient is what annotations of a pod or a namespace say of the gateways by which what it
// sends out of the cluster is to leave (egress.projectcalico.org/…). It is never changed once it is
// made.
type EgressClient struct {
	Selector string // of pods; the language of projectcalico.org/v3
	// Namespaces selects the namespaces of these by their labels; empty = the client's own.
	Namespaces string
	Policy     string // name of an EgressGatewayPolicy; there are none, so nothing leaves
}

// EgressGateway is a pod that says that it is one (AnnotationEgressGateway). It is never changed
// once it is made.
type EgressGateway struct {
	Ready  bool              // its condition Ready is True
	Labels map[string]string // of the pod: also where its other labels are not needed
}

// What says who leaves by whom.
const (
	AnnotationEgressSelector   = "egress.projectcalico.org/selector"
	AnnotationEgressNamespaces = "egress.projectcalico.org/namespaceSelector"
	AnnotationEgressPolicy     = "egress.projectcalico.org/egressGatewayPolicy"
	// AnnotationEgressGateway is "true" at pods that are gateways.
	AnnotationEgressGateway = "weir.dev/egress-gateway"
	// AnnotationEgressClients of a namespace selects the namespaces, by their labels, whose pods
	// may leave by the gateways in it. Without it none may, its own pods neither.
	AnnotationEgressClients = "weir.dev/egress-gateway-clients"
)

// EgressSupport says whose annotations count: egressIPSupport of FelixConfiguration.
type EgressSupport uint8

// The values of egressIPSupport.
const (
	EgressDisabled EgressSupport = iota
	EgressPerNamespace
	EgressPerNamespaceOrPerPod
)

// Equal reports whether two are the same; nil is none.
func (c *EgressClient) Equal(o *EgressClient) bool {
	if c == nil || o == nil {
		return c == o
	}
	return *c == *o
}

// Equal reports whether two are the same; nil is none.
func (g *EgressGateway) Equal(o *EgressGateway) bool {
	if g == nil || o == nil {
		return g == o
	}
	return g.Ready == o.Ready && maps.Equal(g.Labels, o.Labels)
}
