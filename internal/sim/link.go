// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// EtherTypes of VLAN tags (IEEE 802.1Q).
const (
	typeVLAN        = 0x8100
	typeServiceVLAN = 0x88a8
)

// isTagged reports whether a frame has a VLAN tag. Tags that the kernel has taken off are not
// modelled: frames with such never get here.
func isTagged(p *packet.Packet) bool {
	return p.Kind == packet.Frame && (p.Type == typeVLAN || p.Type == typeServiceVLAN)
}

// elsewhere reports whether a frame at an uplink is for another machine's MAC address.
func (n *Node) elsewhere(in In) bool {
	own, ok := n.opts.Uplinks[in.IfIndex]
	to := in.Packet.DstMAC
	return in.Other || ok && to != (packet.MAC{}) && to[0]&1 == 0 && to != own
}

// foreignReason says why a pod's frame that is of no family of the node is dropped.
func foreignReason(p *packet.Packet) reason.Reason {
	switch {
	case isTagged(p):
		return reason.VLAN
	case isDiscovery(p):
		return reason.FamilyLink
	}
	return reason.Family
}

// isDiscovery reports whether a frame of IPv6, which the node does not carry, is neighbour
// discovery or a report of multicast listeners, which have a hop-by-hop header before them.
func isDiscovery(p *packet.Packet) bool {
	frame, err := p.Marshal()
	if err != nil || p.Type != packet.TypeIPv6 || len(frame) < 14+40 {
		return false
	}
	const hopByHop = 0
	next, rest := frame[14+6], frame[14+40:]
	if next == hopByHop {
		if len(rest) < 2 || len(rest) < (int(rest[1])+1)*8 {
			return false
		}
		next, rest = rest[0], rest[(int(rest[1])+1)*8:]
	}
	if next != packet.ProtoICMPv6 || len(rest) == 0 {
		return false
	}
	t := rest[0]
	return t >= 130 && t <= 137 || t == 143
}

// strays reports whether a packet that would begin something comes in by an uplink that its source
// is not reached by (RFC 3704, section 2.2).
func (n *Node) strays(in In) bool {
	if in.Hook != FromUplink || !n.state.Settings.RPFStrict {
		return false
	}
	to, learned := n.behind(in.Packet)
	if !to.IsValid() {
		return true
	}
	if w, ok := n.fib(in.Packet.IP.Src); learned && ok {
		return w.ifindex != in.IfIndex
	}
	hop, ok := n.opts.FIB(to)
	return !ok || hop.IfIndex != in.IfIndex
}

// behind is by whose route a packet's source is reached: its own, or that of the node where a pod
// lives or that handed the packet on. Invalid: no uplink leads there. learned: routers may know the
// way to the source itself.
func (n *Node) behind(p *packet.Packet) (to netip.Addr, learned bool) {
	src := p.IP.Src
	if node := n.links[p.SrcMAC].Of(src); node.IsValid() {
		return node, false
	}
	if a, ok := n.state.Addrs[src]; ok {
		if a.Kind == nodestate.AddrPod {
			return a.Node, a.Learned
		}
		return src, false
	}
	if r, ok := n.state.RouteTo(src); ok {
		return r.Node, r.Learned
	}
	return src, false
}

// fit says how a packet goes with the MTU of its path.
type fit int

const (
	whole    fit = iota // as it is
	inPieces            // the host's stack fragments it
	tooBig              // not at all
)

// fits compares a packet, as it came, with the path of its flow.
func (n *Node) fits(in In, f *flow) fit {
	frame, err := in.Packet.Marshal()
	switch {
	case err != nil, f.path.mtu == 0, len(frame)-ethernet <= f.path.mtu:
		return whole
	case in.Packet.Kind == packet.Error:
		return whole // nobody could be informed
	case in.Hook == ToUplink || in.Packet.IP.DF || in.Packet.IP.Src.Is6(),
		f.path.action == Tunnel && f.path.ifindex != 0: // IP in IP: nobody puts its pieces together
		return tooBig
	case f.path.action == Tunnel || f.viaNode || f.handOn || n.opts.HostIfIndex == 0:
		return whole // what is around it is fragmented
	}
	return inPieces
}

// clampMSS lowers the maximum segment size that a SYN announces (RFC 9293, section 3.7.1) to what
// fits into an IP packet of mtu bytes; 0 = not known. Options that do not parse end the search.
func clampMSS(p *packet.Packet, mtu int) {
	const end, nop, mss = 0, 1, 2
	headers := 40 + longer(p.IP.Src)
	if mtu <= headers || mtu > 0xffff {
		return
	}
	limit := uint16(mtu - headers)
	for o := p.Options; len(o) >= 4; {
		switch {
		case o[0] == end:
			return
		case o[0] == nop:
			o = o[1:]
		case o[0] == mss:
			if o[1] == 4 && binary.BigEndian.Uint16(o[2:]) > limit {
				binary.BigEndian.PutUint16(o[2:], limit)
			}
			return
		case o[1] < 2 || int(o[1]) > len(o):
			return
		default:
			o = o[o[1]:]
		}
	}
}
