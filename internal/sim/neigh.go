// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/packet"
)

// neighbour answers an ARP request (RFC 826) for an address that the node announces; ok is false
// for everything else. The answer is a frame back to who asked.
func (n *Node) neighbour(in In) (Result, bool) {
	own, ok := n.opts.Uplinks[in.IfIndex]
	b := in.Packet.Payload
	if in.Hook != FromUplink || !ok || len(b) < 28 || in.Packet.Type != packet.TypeARP {
		return Result{}, false
	}
	const request = "\x00\x01\x08\x00\x06\x04\x00\x01" // Ethernet, IPv4, their lengths, the operation
	if string(b[:8]) != request || in.Packet.SrcMAC[0]&1 != 0 || b[8]&1 != 0 {
		return Result{}, false
	}
	sender, senderIP, target := b[8:14], b[14:18], b[24:28]
	if bytes.Equal(senderIP, target) {
		return Result{}, false
	}
	if in.Packet.DstMAC[0]&1 == 0 && in.Packet.DstMAC != own {
		return Result{}, false
	}
	addr, _ := netip.AddrFromSlice(target)
	if _, ours := n.state.Announced[addr]; !ours {
		return Result{}, false
	}
	p := in.Packet.Clone()
	p.DstMAC, p.SrcMAC = in.Packet.SrcMAC, own
	p.Payload = bytes.Join([][]byte{[]byte("\x00\x01\x08\x00\x06\x04\x00\x02"), own[:], target, sender, senderIP, b[28:]}, nil)
	return Result{Action: Answer, Packet: p, IfIndex: in.IfIndex}, true
}

// solicited answers a neighbour solicitation (RFC 4861, sections 7.1.1 and 7.2.4) for an address
// that the node announces; ok is false for everything else.
func (n *Node) solicited(in In) (Result, bool) {
	const head, most = 24, 24 + 64
	own, ok := n.opts.Uplinks[in.IfIndex]
	p, b := in.Packet, in.Packet.Payload
	if in.Hook != FromUplink || !ok || len(p.IP.Ext) > 0 || len(b) < head || len(b) > most || len(b)%8 != 0 || b[0] != 135 || b[1] != 0 {
		return Result{}, false
	}
	nobody := p.IP.Src.IsUnspecified()
	for o := b[head:]; len(o) > 0; o = o[8*int(o[1]):] {
		if o[1] == 0 || 8*int(o[1]) > len(o) || o[0] == 1 && nobody {
			return Result{}, false
		}
	}
	target := netip.AddrFrom16([16]byte(b[8:24]))
	group := [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[21], 14: b[22], 15: b[23]}
	toGroup := p.IP.Dst == netip.AddrFrom16(group)
	_, ours := n.state.Announced[target]
	switch {
	case !ours, p.SrcMAC[0]&1 != 0, p.DstMAC[0]&1 == 0 && p.DstMAC != own, p.IP.Src == target, p.IP.Src.IsMulticast(),
		!toGroup && (nobody || p.IP.Dst != target), sumICMP6(p.IP.Src, p.IP.Dst, b) != 0:
		return Result{}, false
	}
	to, mac, flags := p.IP.Src, p.SrcMAC, byte(0x60) // solicited, override
	if nobody {
		to, mac, flags = netip.MustParseAddr("ff02::1"), packet.MAC{0x33, 0x33, 0, 0, 0, 1}, 0x20
	}
	answer := bytes.Join([][]byte{{136, 0, 0, 0, flags, 0, 0, 0}, target.AsSlice(), {2, 1}, own[:]}, nil)
	binary.BigEndian.PutUint16(answer[2:], sumICMP6(target, to, answer))
	return Result{Action: Answer, IfIndex: in.IfIndex, Packet: &packet.Packet{DstMAC: mac, SrcMAC: own, Type: p.Type, Kind: packet.Other,
		Payload: answer, IP: packet.IPv4{Src: target, Dst: to, TTL: 255, Proto: packet.ProtoICMPv6}}}, true
}

// senderOf is the address that a frame about a link says to come from, which the kernel enters as a
// neighbour; none where it names none, or one that nobody can recognize as the sender's.
func senderOf(p *packet.Packet) netip.Addr {
	if p.Type != packet.TypeARP {
		if p.IP.Src.IsLinkLocalUnicast() || p.IP.Src.IsMulticast() {
			return netip.Addr{}
		}
		return p.IP.Src
	}
	if len(p.Payload) < 28 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(p.Payload[14:18]))
}
