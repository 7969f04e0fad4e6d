// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"net/netip"

	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// encapsulated is the path of what goes to another node in IP in IP.
func (m *Machine) encapsulated(r sim.Result) (leg, *packet.Packet, error) {
	outer, err := packet.IPIP(r.Packet, m.Like(r.NextHop), r.NextHop)
	if err != nil {
		return nil, nil, err
	}
	return m.wire(m.NextHop(r.NextHop)), outer, nil
}

// decapsulate is the tunnel from one node to another's address.
func (w *World) decapsulate(from *Machine, to netip.Addr) leg {
	for _, m := range w.machines {
		if m.Like(to) == to {
			return m.enter(sim.In{Hook: sim.FromTunnel, IfIndex: TunnelDev, Source: from.Like(to)})
		}
	}
	return func(j *Journey, _ *packet.Packet) (leg, *packet.Packet, error) {
		return j.end("lost tunnel: no node is " + to.String())
	}
}
