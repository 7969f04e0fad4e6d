package sim

import (
	"bytes"
	"net/netip"

	"github.com/weir-net/weir/internal/packet"
)

// neighbour answers an ARP request (RFC 826) for an address that the node announces; ok is false for
// everything else. The answer is a frame back to who asked.
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
