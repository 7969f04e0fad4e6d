// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// DefaultASN is the AS number of nodes for which nobody names one.
const DefaultASN = 64512

// BGPConfig is a BGPConfiguration: "default" is of all nodes, "node.<name>" of one.
type BGPConfig struct {
	Name         string
	ASN          uint32 // 0 = DefaultASN
	MeshDisabled bool
	MeshPassword SecretKey
	MeshRestart  uint32 // seconds of graceful restart of the mesh's sessions, 0 = the default
	ListenPort   uint16 // 0 = not said
	BindMode     string // None, NodeIP, or empty
	// ClusterIPs, ExternalIPs and BalancerIPs are ranges of Services' addresses that nodes
	// advertise; those of load balancers one by one with BalancersSingly.
	ClusterIPs, ExternalIPs, BalancerIPs []netip.Prefix
	BalancersSingly                      bool
	// Communities are names of values aa:nn or aa:nn:mm, Tagged what advertised routes get.
	Communities map[string]string
	Tagged      []BGPTag
}

// BGPTag says which communities routes within a prefix get: values, or names of them.
type BGPTag struct {
	CIDR        netip.Prefix
	Communities []string
}

// BGPPeer is a BGPPeer: on which nodes it is, and with whom they have sessions by it.
type BGPPeer struct {
	Name         string
	Node         string
	NodeSelector string
	Addr         netip.Addr // peerIP; invalid with a PeerSelector
	Port         uint16     // of peerIP; 0 = not said
	ASN          uint32
	LocalASN     uint32 // 0 = the node's
	PeerSelector string
	Password     SecretKey
	Restart      uint32 // seconds, 0 = the default
	LongLived    uint32 // seconds of long-lived graceful restart (RFC 9494), 0 = off
	Keepalive    uint32 // seconds, 0 = the default
	TTLHops      uint8  // ttlSecurity; 0 = off
	AllowedAS    uint8  // numAllowedLocalASNumbers
	AnySource    bool   // sourceAddress None
	Manual       bool   // reversePeering Manual
	BFD          bool   // failureDetectionMode BFDIfDirectlyConnected
	NextHop      string // of what is sent to it: Self, Keep, or empty
	// Via is a router by which the node reaches it (reachableBy); invalid = as the kernel routes.
	Via netip.Addr
	// Filters are names of BGPFilters, in order.
	Filters []string
}

// BGPFilter is a BGPFilter: what its rules say of a route counts before the node's own policy, the
// first rule that matches decides.
type BGPFilter struct {
	Name             string
	Export4, Import4 []BGPRule
	Export6, Import6 []BGPRule
}

// Priorities of routes: of several routes to one prefix the one with the least is used. Within an
// AS they travel as the local preference (RFC 4271, section 5.1.5), which is MaxBGPPriority less
// the priority.
const (
	MaxBGPPriority     = 1<<31 - 1
	DefaultBGPPriority = 1024 // of routes for which nobody says another one
)

// BGPRule is a rule of a BGPFilter. Conditions that are not said hold.
type BGPRule struct {
	Accept bool
	// CIDR: the prefix is within it and between MinBits and MaxBits long; with Not it is not.
	CIDR             netip.Prefix
	Not              bool
	MinBits, MaxBits uint8
	Remote           bool     // source RemotePeers
	PeerType         string   // eBGP, iBGP, or empty
	Community        string   // aa:nn or aa:nn:mm
	ASPath           []uint32 // the path begins so
	Priority         uint32   // the route has this one; 0 = any
	Add              []string // communities that an accepted route gets
	Prepend          []uint32 // what an accepted route's path gets in front, in this order
	SetPriority      uint32   // the priority that an accepted route gets; 0 = it keeps its own
}

// SecretKey is a key of a Secret in Weir's namespace. The zero value is none.
type SecretKey struct{ Name, Key string }

// BGPInUse reports whether anybody configured BGP: no session is there otherwise.
func (c *Cluster) BGPInUse() bool { return len(c.BGPPeers) > 0 || c.BGPConfigs["default"] != nil }
