// SPDX-License-Identifier: Apache-2.0

// Package wireguard encrypts what a node sends to other nodes through the VXLAN tunnel: the
// tunnel's packets are routed into a WireGuard device, whatever is in them and whichever data plane
// made them. Routing rules lead what nodes themselves exchange into the tunnel, where that is
// wanted. The device is the kernel's, or where the kernel has none a TUN device of wireguard-go,
// which runs in a process of its own (package process).
//
//	keys.go        this node's private keys, on its disk and nowhere else
//	guard.go       nftables: what must be encrypted neither leaves nor arrives in clear
//	routes.go      the routing rule of the tunnel's port, and a route to each peer
//	host_rules.go  the routing rules of what nodes exchange
//	device.go      the device with its key and port
//	peers.go       its peers, also while a node changes its key
//	rotate.go      another key for this node
//	manager.go     these made equal to a state, before and after a data plane
//
// Nothing goes in clear while any of this changes: the guard names a peer before a data plane sends
// anything to it, and until after it has stopped.
package wireguard
