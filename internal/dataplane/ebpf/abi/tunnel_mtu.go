// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"math"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
)

// ipv6Extra is what an IPv6 header is longer by than an IPv4 one, bytes. The outer header of a
// packet in the tunnel is of the family of the inner one.
const ipv6Extra = 20

// TunnelMTU is how long a packet of the family may be that fits into the tunnel, bytes; 0 = not
// known.
func TunnelMTU[A Address](c nodestate.Settings) uint16 {
	mtu := c.Tunnel.MTU
	if Carries[A](netip.IPv6Unspecified()) {
		mtu -= ipv6Extra
	}
	return uint16(min(max(mtu, 0), math.MaxUint16))
}

// IPIPMTU is the same of IP in IP, which is of IPv4 alone.
func IPIPMTU[A Address](c nodestate.Settings) uint16 {
	if Carries[A](netip.IPv6Unspecified()) || !c.IPIP.Accept {
		return 0
	}
	return uint16(min(max(c.IPIP.MTU, 0), math.MaxUint16))
}
