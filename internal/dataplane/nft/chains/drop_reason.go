// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/policy"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Dropped is a packet that the rules dropped.
type Dropped struct {
	Chain      string // that dropped it
	LastSet    string // that was looked up in last; "" = none was
	FromTunnel bool   // it came by the tunnel
	Astray     bool   // the route to its source does not lead back, and such are to be dropped
}

// Why is the reason for which it was dropped, with policy's rule.
func (d Dropped) Why() (reason.Reason, nodestate.RuleID) {
	if why, rule, ok := expr.DenyChain(d.Chain); ok {
		return why, rule
	}
	if strings.HasPrefix(d.Chain, grantedPrefix) {
		return reason.Spoofed, 0
	}
	switch d.Chain {
	case "from-network", sourceProven, OwnSourceChain:
		if d.FromTunnel {
			return reason.TunnelSource, 0
		}
		if d.Chain != OwnSourceChain && d.Astray {
			return reason.ReversePath, 0
		}
		return reason.Spoofed, 0
	case workloadChain, "translate", "admit", admitNewChain, blockSource, blockTunnel, frontSource, podSource, podTunnel, nodeSource, nodeInTunnel,
		nodeRequest, sourceForged, handedChain, handedOpen, admitHanded, admitBackChain:
		return reason.Spoofed, 0
	case "tunnel", ipipName:
		return reason.TunnelSource, 0
	case "choose", services.RangesChain:
		switch {
		case d.LastSet == services.MapLists || d.LastSet == services.MapRanged:
			return reason.NoLocalBackend, 0
		case d.Chain == services.RangesChain:
			return reason.SourceRange, 0
		}
		return reason.NoFlow, 0
	case "refused":
		return reason.NoBackend, 0
	case egress.Drop:
		return reason.NoGateway, 0
	case "no-endpoint", "forwarded", forwardedAny, unknownPodChain, sentChain, sentAny, sentHomeChain, sentOthersChain:
		return reason.NoEndpoint, 0
	case policy.TunnelPortChain, podTunnelChain:
		return reason.TunnelFromPod, 0
	case routingHeaderChain:
		return reason.Malformed, 0
	case podLinkChain:
		return reason.NoRoute, 0
	}
	return reason.NoFlow, 0
}
