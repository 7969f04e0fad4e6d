// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"

	"github.com/weir-net/weir/internal/packet"
)

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
