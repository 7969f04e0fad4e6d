// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
)

// EgressClient is what annotations of a pod or a namespace say of the gateways by which what it
// sends out of the cluster is to leave (egress.projectcalico.org/…). It is never changed once it is
// made.
type EgressClient struct {
	Selector string // of pods; the language of projectcalico.org/v3
	// Namespaces selects the namespaces of these by their labels; empty = the client's own.
	Namespaces string
	// Policy is the name of an EgressGatewayPolicy, which then says it in the place of the others.
	Policy string
}

// EgressPolicy is an EgressGatewayPolicy of projectcalico.org/v3: by which gateways the pods that
// name it leave the cluster, by where to. The rule with the longest prefix decides; where none has
// the destination, nothing leaves. It is never changed once it is made.
type EgressPolicy struct {
	Name  string
	Rules []EgressRule // each with another CIDR; none = the policy cannot be read
}

// EgressRule says by which gateways packets to some destinations leave.
type EgressRule struct {
	CIDR   netip.Prefix
	Direct bool // without gateways, as other pods' packets do; then nothing of the following is set
	// Selector and Namespaces select the gateways, as those of EgressClient.
	Selector, Namespaces string
	Most                 uint32 // how many of them one client uses; 0 = no limit
	PreferLocal          bool   // those on the client's node alone, where there are any
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
