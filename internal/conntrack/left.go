// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"time"
)

// NodeRoute is how packets of one direction of a connection go to another node, whatever the
// kernel's routes say. nftables has it in the connection's mark.
type NodeRoute struct {
	Node    netip.Addr // an address by which the node is known
	Tunnel  bool       // through the tunnel, whatever link there is
	HandsOn bool       // what comes in the original direction goes there as it is; else the answers go
	Came    bool       // the connection was handed on to this node through the tunnel
	Routes  bool       // no node: answers go as the kernel's routes say, whatever routing rules of others do
	Gateway bool       // the connection leaves the cluster by an egress gateway: of the node, through the tunnel, or without Tunnel by one of this node
}

// Left is what a data plane that makes room knows in addition to what connection tracking does.
type Left struct {
	// Route is what the mark of a connection says; ok is false where it says nothing of another
	// node. nil = no mark does.
	Route func(mark uint32, six bool) (r NodeRoute, ok bool)
	// Untracked are connections that connection tracking does not follow: TCP of which this node
	// sees the original direction alone.
	Untracked []Entry
	Affinity  []Affinity
	Told      []Told
}

// Told is an address that DNS told a pod of a name that a pattern of policy matches.
type Told struct {
	IfIndex int // of the pod's interface
	Addr    netip.Addr
	Name    uint64        // the pattern (nodestate.NameID)
	Left    time.Duration // that it counts
}

// Affinity is which backend a client of a Service stays with.
type Affinity struct {
	Service netip.AddrPort // by which the Service's port is named, its cluster IP and port; of what is left, any of its frontends
	Proto   uint8
	Client  netip.Addr
	Backend netip.AddrPort
	Age     time.Duration // since the client's last flow began
}
