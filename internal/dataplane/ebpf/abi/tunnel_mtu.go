// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
)

// ipv6Extra is what an IPv6 header is longer by than an IPv4 one, bytes. The outer header of a
// packet in the tunnel is of the family of the inner one.
const ipv6Extra = 20

// TunnelMTU is how long a packet of the family may be that fits into the tunnel, bytes; 0 = not
// known.
func TunnelMTU[A Address](c nodestate.Settings) uint32 {
	mtu := c.Tunnel.MTU
	if Carries[A](netip.IPv6Unspecified()) {
		mtu -= ipv6Extra
	}
	return uint32(max(mtu, 0))
}
