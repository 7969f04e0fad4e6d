// SPDX-License-Identifier: Apache-2.0

// Package hostdev makes the devices that the eBPF data plane needs on a node: weir0, by which host
// processes reach pools, with its peer, and the VXLAN device of the tunnel; their routes; and what
// IPv6 needs of them and of uplinks (forwarding, router advertisements). A device or route of one
// of these names or prefixes that is not Weir's is left alone, and is an error.
package hostdev
