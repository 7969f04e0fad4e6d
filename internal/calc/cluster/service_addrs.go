// SPDX-License-Identifier: Apache-2.0

package cluster

import "net/netip"

// ServiceAddr is an address of a Service that is in force on this node.
type ServiceAddr struct {
	Addr netip.Addr
	Kind ServiceKind
	// Local is externalTrafficPolicy Local; Here and Ready say that an endpoint is ready, on this
	// node and on any.
	Local, Here, Ready bool
}

// ServiceKind is what an address is for the Service.
type ServiceKind uint8

// The kinds of addresses.
const (
	ClusterIP ServiceKind = iota
	ExternalIP
	BalancerIP
)
