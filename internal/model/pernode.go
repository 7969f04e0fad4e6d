// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
)

// PerNode are the networks of which Amazon's egress-cni gives pods addresses, on each node the same
// ones.
var PerNode = []netip.Prefix{netip.MustParsePrefix("169.254.172.0/22"), netip.MustParsePrefix("fd00::ac:0/118")}

// IsPerNode reports whether an address is a pod's on its own node alone.
func IsPerNode(a netip.Addr) bool {
	return slices.ContainsFunc(PerNode, func(p netip.Prefix) bool { return p.Contains(a) })
}
