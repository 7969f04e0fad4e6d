// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
)

// IPIP is p, of IPv4, in an outer header without options (RFC 2003), as Linux' devices make it: TTL
// 64, DF, and of the type of service what is about congestion (RFC 3168), without that there was
// any.
func IPIP(p *Packet, src, dst netip.Addr) (*Packet, error) {
	const ecn, congested, capable = 3, 3, 2
	frame, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	tos := frame[ethLen+1] & ecn
	if tos == congested {
		tos = capable
	}
	return &Packet{DstMAC: p.DstMAC, SrcMAC: p.SrcMAC, Type: TypeIPv4, Kind: Other, Payload: frame[ethLen:],
		IP: IPv4{Src: src, Dst: dst, TTL: 64, TOS: tos, DF: true, Proto: ProtoIPIP}}, nil
}

// Unwrap is what is in a packet of IP in IP.
func Unwrap(p *Packet) (*Packet, error) {
	if p.Kind != Other || p.Type != TypeIPv4 || p.IP.Proto != ProtoIPIP || p.Fragment() {
		return nil, fmt.Errorf("no IP in IP: %s", p)
	}
	frame, err := (&Packet{DstMAC: p.DstMAC, SrcMAC: p.SrcMAC, Type: TypeIPv4, Kind: Frame, Payload: p.Payload}).Marshal()
	if err != nil {
		return nil, err
	}
	return Unmarshal(frame)
}
