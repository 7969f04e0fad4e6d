// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
)

// HostEndpoint is a HostEndpoint of projectcalico.org: an interface of a node, or all of them,
// whose traffic policy evaluates.
type HostEndpoint struct {
	Name   string
	Labels map[string]string
	Node   string
	// Interface is a name, or AllInterfaces; empty = the one that has an address of ExpectedIPs.
	Interface   string
	ExpectedIPs []netip.Addr
	Profiles    []string
	Ports       []PodPort // by name; HostPort and HostIP mean nothing here
	// DSCP is what packets of the node's own processes bear that leave the cluster by the
	// interface, plus 1; 0 = what they are given.
	DSCP uint8
}

// The label by which Calico's controllers, and Weir's, mark the host endpoints that they make.
const (
	HostEndpointCreatedBy = "projectcalico.org/created-by"
	HostEndpointCreator   = "calico-kube-controllers"
)

// Automatic reports whether the controller made the host endpoint.
func (h *HostEndpoint) Automatic() bool {
	return h.Labels[HostEndpointCreatedBy] == HostEndpointCreator
}

// AllInterfaces is a host endpoint's interface name that represents those that have no host
// endpoint of their own.
const AllInterfaces = "*"

// ProfileDefaultAllow is the profile that is there without an object, and allows what it is asked
// about.
const ProfileDefaultAllow = "projectcalico-default-allow"

// AddrsIn returns the addresses by which others know the endpoint: those expected, else those of
// its node when it is of all interfaces.
func (h *HostEndpoint) AddrsIn(c *Cluster) []netip.Addr {
	if len(h.ExpectedIPs) > 0 || h.Interface != AllInterfaces {
		return h.ExpectedIPs
	}
	if n := c.Nodes[h.Node]; n != nil {
		return n.Addrs
	}
	return nil
}

// LocalInterface is an interface of this machine that is no pod's.
type LocalInterface struct {
	Name    string
	IfIndex int
	Addrs   []netip.Addr
	MAC     [6]byte // zero where it has none
}

// Failsafe is a port that host endpoints leave open, whatever policy says.
type Failsafe struct {
	Protocol Protocol
	Port     uint16
	Net      netip.Prefix // of the other end; invalid = everybody
}

// ToHostAction says what becomes of what pods send to their own node, once their policy allowed it.
type ToHostAction string

// The values of defaultEndpointToHostAction. ToHostReturn leaves it to the host endpoint of all
// interfaces.
const (
	ToHostAccept ToHostAction = "ACCEPT"
	ToHostDrop   ToHostAction = "DROP"
	ToHostReturn ToHostAction = "RETURN"
)

// DefaultFailsafes returns the ports that are open by default: SSH, DHCP, BGP, etcd, the
// fan-out's (and Typha's), the controller's, and API servers'; DNS. Without the controller's the
// API server would take its APIService for unavailable, and deletions of namespaces would wait.
func DefaultFailsafes() (inbound, outbound []Failsafe) {
	tcp := func(ports ...uint16) (out []Failsafe) {
		for _, p := range ports {
			out = append(out, Failsafe{Protocol: ProtocolTCP, Port: p})
		}
		return out
	}
	udp := func(p uint16) Failsafe { return Failsafe{Protocol: ProtocolUDP, Port: p} }
	common := tcp(179, 2379, 2380, FanOutPort, ControllerPort, 6443, 6666, 6667)
	inbound = append(slices.Concat(tcp(22), common), udp(68))
	return inbound, append(slices.Clone(common), udp(53), udp(67))
}
