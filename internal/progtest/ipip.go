// SPDX-License-Identifier: Apache-2.0

package progtest

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// FromIPIP is the program that the one of uplinks calls for what comes by IP in IP.
const FromIPIP = "weir_from_ipip"

// unpacked reports whether a packet came in IP in IP by an uplink, and p is what was in it.
func unpacked(in sim.In, p *packet.Packet) bool {
	return in.Hook == sim.FromUplink && in.Packet.Kind == packet.Other && in.Packet.IP.Proto == packet.ProtoIPIP && p.IP.Proto != packet.ProtoIPIP
}

// unwrap is what is in the packet that a program sends to a node by IP in IP. It checks that the
// outer header is as it should be.
func unwrap(outer *packet.Packet, to netip.Addr) (*packet.Packet, error) {
	inner, err := packet.Unwrap(outer)
	if err != nil {
		return nil, err
	}
	want, err := packet.IPIP(inner, outer.IP.Src, to)
	if err != nil {
		return nil, err
	}
	if got := outer.String(); got != want.String() {
		return nil, fmt.Errorf("the outer packet is %s, want %s", got, want)
	}
	return inner, nil
}
