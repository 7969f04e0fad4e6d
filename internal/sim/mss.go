// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"

	"github.com/weir-net/weir/internal/packet"
)

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
