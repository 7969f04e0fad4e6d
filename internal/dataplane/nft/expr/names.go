// SPDX-License-Identifier: Apache-2.0

// Package expr is what the rules of all parts of the nftables data plane share: the names of sets
// and chains that more than one of them refers to, and the words of rules that depend on the
// family, the state or the node's devices. Expand puts these words in the place of names that begin
// with a dollar sign. The names are in the kernel, where an earlier run may have written them: they
// do not change.
package expr

// Sets and maps that more than one part refers to.
const (
	SetWorkloads  = "workloads"     // pods' interfaces
	MapGrants     = "source-grants" // pods' interfaces → which sources they may send with that are not their own
	SetFloating   = "floating"      // floating addresses
	SetFloatsHere = "floats-here"   // those of pods of this node
	MapFloating   = "floating-to"   // floating addresses → the pods' own
	SetGranted    = "granted"       // prefixes of such sources
	MapSenders    = "senders"       // addresses of this node → the chain that asks by which interface they come
	SetPods       = "pods"          // addresses of this node's pods
	SetOwn        = "own"           // the node's own addresses
	SetLocal      = "local-sources" // own and pods: nobody else's sources
	SetNodes      = "nodes"         // other nodes' addresses
	MapNodes      = "node-marks"    // other nodes' addresses → their mark
	MapLinks      = "link-marks"    // other nodes' MAC addresses → their mark
	SetPorted     = "node-port-addresses"
	SetBlocks     = "local-blocks"   // where only endpoints of this node live
	SetKnown      = "known"          // addresses that somebody has, here or elsewhere
	SetRouted     = "cluster"        // prefixes of pods, and the node's own addresses: what is not masqueraded
	SetPodRanges  = "pod-ranges"     // prefixes of pods
	SetGateways   = "egress-clients" // pods that leave the cluster by egress gateways, so not by this node
	SetOutgoing   = "nat-outgoing"   // pods whose source is translated when they leave the cluster
	MapPortals    = "portals"        // addresses of nodes that may be asked for ports → where they are looked up
	MapInside     = "portals-inside" // the same for pods and the node's own processes
	SetHairpin    = "hairpin"        // address . address of each pod
	SetKeepSource = "keep-source"    // nodes' addresses that pods reach with their own
	SetDirect     = "direct"         // lists whose answers to outside clients go directly to them
	SetOptOut     = "never-direct"   // clients to whom they do not
)
