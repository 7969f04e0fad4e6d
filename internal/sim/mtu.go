// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/weir-net/weir/internal/packet"

// fit says how a packet goes with the MTU of its way.
type fit int

const (
	whole    fit = iota // as it is
	inPieces            // the host's stack fragments it
	tooBig              // not at all
)

// fits compares a packet, as it came, with the way of its flow.
func (n *Node) fits(in In, f *flow) fit {
	frame, err := in.Packet.Marshal()
	switch {
	case err != nil, f.way.mtu == 0, len(frame)-ethernet <= f.way.mtu:
		return whole
	case in.Packet.Kind == packet.Error:
		return whole // nobody could be told
	case in.Hook == ToUplink || in.Packet.IP.DF || in.Packet.IP.Src.Is6():
		return tooBig
	case f.way.action == Tunnel || f.viaNode || f.handOn || n.opts.HostIfIndex == 0:
		return whole // what is around it is fragmented
	}
	return inPieces
}
