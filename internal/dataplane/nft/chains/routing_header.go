// SPDX-License-Identifier: Apache-2.0

package chains

import "github.com/weir-net/weir/internal/dataplane/nft/table"

// routingHeaderChain drops what is for the node and has a routing header that leads on to somebody
// else, or a packet behind it: where somebody set seg6_enabled, the kernel would send it on, or
// unpack it (RFC 8754, section 4.3.1), as part of a flow that was evaluated as one of the node's.
const routingHeaderChain = "routing-header"

// hasRoutingHeader leads what has such a header there, before a flow is known to be open.
func hasRoutingHeader(f table.Family) []string {
	if !f.Six {
		return nil
	}
	return []string{"exthdr rt exists jump " + routingHeaderChain}
}

// routingHeaderRules read the first routing header alone: another header behind it could be one
// more.
func routingHeaderRules() []string {
	return []string{
		`iifname "lo" return`, // what the node sends to itself
		"rt type 0 drop",
		"rt seg-left > 0 drop",
		"rt nexthdr { 0, 4, 41, 43, 60 } drop",
	}
}
