// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

const (
	ethernet  = 14  // bytes of the header
	errorMost = 576 // bytes of an ICMP error (RFC 1812, section 4.3.2.3); ICMPv6 1280 (RFC 4443, section 2.4)
)

// icmpError says what a drop is answered with.
type icmpError struct {
	kind, code uint8
	mtu        uint16
	fromAsked  bool // from the address that was asked, not from the node's own
}

// errorFor returns the ICMP error for a reason, false when there is none.
func errorFor(r reason.Reason, six bool) (icmpError, bool) {
	if six {
		switch r {
		case reason.NoBackend:
			return icmpError{kind: 1, code: 4, fromAsked: true}, true
		case reason.TTL:
			return icmpError{kind: 3}, true
		case reason.NoEndpoint:
			return icmpError{kind: 1, code: 3}, true
		case reason.TooBig:
			return icmpError{kind: 2}, true
		}
		return icmpError{}, false
	}
	switch r {
	case reason.NoBackend:
		return icmpError{kind: 3, code: 3, fromAsked: true}, true // port unreachable
	case reason.TTL:
		return icmpError{kind: 11}, true // in transit
	case reason.NoEndpoint:
		return icmpError{kind: 3, code: 1}, true // host unreachable
	case reason.TooBig:
		return icmpError{kind: 3, code: 4}, true // fragmentation needed (RFC 1191)
	}
	return icmpError{}, false
}

// refuse ends a packet: it is answered where the reason is one that is answered, else dropped. The
// limit on answers is not part of the oracle.
func (n *Node) refuse(in In, d dropped) Result {
	e, ok := errorFor(d.reason, in.Packet.IP.Src.Is6())
	reset := (d.reason == reason.NoEndpoint || d.reason == reason.NoBackend || d.reset) && in.Packet.IP.Proto == packet.ProtoTCP && !in.Packet.Fragment()
	flags := in.Packet.TCPFlags()
	if reset && (flags&packet.RST != 0 || d.reset && flags&packet.SYN != 0) {
		return drop(in, d)
	}
	if d.reason == reason.NoBackend && flags&(packet.SYN|packet.ACK) != packet.SYN {
		reset = false // it opens nothing: its sender may think of it what it wants
	}
	if !ok && !reset || !n.mayAnswer(in) || reset && in.Packet.Kind != packet.TCP {
		return drop(in, d) // among others where a reset would be about a header that is none
	}
	src := n.self(in.Packet.IP.Src)
	e.mtu = uint16(d.mtu)
	if e.fromAsked {
		src = in.Packet.IP.Dst
	}
	p, err := report(in.Packet, e, src)
	if reset {
		p, err = resetOf(in.Packet), nil
	}
	if err != nil {
		return drop(in, d)
	}
	r := Result{Action: Answer, Packet: p, Reason: d.reason, Rule: d.rule}
	switch in.Hook {
	case FromTunnel:
		r.NextHop = in.Source
		if in.IPIP {
			r.IfIndex = in.IfIndex
		}
	case ToUplink:
		r.IfIndex = n.opts.HostIfIndex
	default:
		r.IfIndex = in.IfIndex
	}
	return r
}

// mayAnswer: no errors about errors, about what was sent to many, or to nobody in particular (RFC
// 1122, section 3.2.2); and only where there is a return path.
func (n *Node) mayAnswer(in In) bool {
	p := in.Packet
	switch {
	case in.Hook == ToWorkload, in.Hook == ToUplink && n.opts.HostIfIndex == 0, in.Hook == FromTunnel && n.opts.NoTunnel && !in.IPIP:
		return false
	case p.Kind == packet.Error, p.IP.Proto == uint8(icmpOf(p.IP.Src)) && !isQuery(p) && !isAnswer(p):
		return false
	}
	return p.DstMAC[0]&1 == 0 && somebody(p.IP.Src)
}

// somebody reports whether an address can be that of one host beyond this one.
func somebody(a netip.Addr) bool {
	if a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240) {
		return false
	}
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !(a.Is6() && (a.IsLinkLocalUnicast() || mapped96(a)))
}

// report is the ICMP error about p, with as much of p as fits.
func report(p *packet.Packet, e icmpError, src netip.Addr) (*packet.Packet, error) {
	frame, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	quote := frame[ethernet:]
	if p.IP.Src.Is6() {
		return report6(p, e, src, quote)
	}
	quote = quote[:min(len(quote), errorMost-28)]
	body := append([]byte{e.kind, e.code, 0, 0, 0, 0, uint8(e.mtu >> 8), uint8(e.mtu)}, quote...)
	binary.BigEndian.PutUint16(body[2:], checksum(body))
	out := &packet.Packet{DstMAC: p.SrcMAC, SrcMAC: p.DstMAC, Type: p.Type, Kind: packet.Other, Payload: body, IP: packet.IPv4{
		Src: src, Dst: p.IP.Src, TTL: 64, TOS: p.IP.TOS&0x1e | 0xc0, DF: true, Proto: packet.ProtoICMP}}
	if frame, err = out.Marshal(); err != nil {
		return nil, err
	}
	return packet.Unmarshal(frame)
}

// resetOf is what a TCP answers that knows of no connection (RFC 9293, section 3.10.7.1).
func resetOf(p *packet.Packet) *packet.Packet {
	r := &packet.Packet{DstMAC: p.SrcMAC, SrcMAC: p.DstMAC, Type: p.Type, Kind: packet.TCP, Flags: packet.RST,
		SrcPort: p.DstPort, DstPort: p.SrcPort, Seq: p.Ack,
		IP: packet.IPv4{Src: p.IP.Dst, Dst: p.IP.Src, TTL: 64, DF: p.IP.Src.Is4(), Proto: packet.ProtoTCP}}
	if p.Flags&packet.ACK == 0 {
		r.Flags, r.Seq, r.Ack = packet.RST|packet.ACK, 0, p.Seq+uint32(len(p.Payload))
		for _, f := range []uint8{packet.SYN, packet.FIN} {
			if p.Flags&f != 0 {
				r.Ack++
			}
		}
	}
	return r
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i&1))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// stray is what becomes of an ICMP error about no flow: it begins none. The node's own goes on; no
// pod sends or gets one.
func (n *Node) stray(in In) (Result, *dropped) {
	src, dst := in.Packet.IP.Src, in.Packet.IP.Dst
	k := n.kind(src)
	switch {
	case in.Hook == FromWorkload && !n.owns(in.IfIndex, src),
		(in.Hook == FromUplink || in.Hook == FromTunnel) && (k == nodestate.AddrHost || k == nodestate.AddrEndpoint):
		return Result{}, &dropped{reason: reason.Spoofed}
	case (in.Hook == FromUplink || in.Hook == FromTunnel) && dst.IsLoopback():
		return Result{}, &dropped{reason: reason.NoRoute}
	case n.strays(in):
		return Result{}, &dropped{reason: reason.ReversePath}
	case in.Hook == FromWorkload, k != nodestate.AddrHost && (in.Hook == ToWorkload || n.kind(dst) == nodestate.AddrEndpoint):
		return Result{}, &dropped{reason: reason.ErrorNoFlow}
	case in.Hook != ToUplink || in.IfIndex != n.opts.HostIfIndex:
		return Result{Action: Pass, Packet: in.Packet}, nil
	}
	w, ok, why := n.route(dst)
	if !ok {
		return Result{}, &dropped{reason: why}
	}
	return n.send(in, flowKey{}, &flow{src: src, dst: dst, path: w}, false)
}
