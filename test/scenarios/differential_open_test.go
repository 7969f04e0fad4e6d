// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"net/netip"

	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// connection is one that goes on as its ends mean it to, while all around it changes: so what is
// open meets policy, backends and ways that came after it.
type connection struct {
	client, server sim.In // a packet of each end, where the node gets it
	said           int    // packets after the first
}

// connectionsKept bounds the connections of a round that go on.
const connectionsKept = 4

// listen notes a connection that a packet opened, with where the node gets what is answered.
func (d *differential) listen(in sim.In, res sim.Result) {
	p, q := in.Packet, res.Packet
	opens := p.Kind == packet.UDP || p.Kind == packet.TCP && p.Flags == packet.SYN
	if !opens || q == nil || q.Kind != p.Kind || !d.talks.chance(40) {
		return
	}
	back := sim.In{Hook: sim.FromUplink, IfIndex: scenario.Uplink, VNI: d.machine.State.Settings.Tunnel.VNI}
	switch res.Action {
	case sim.Local:
		back.Hook, back.IfIndex = sim.FromWorkload, res.IfIndex
	case sim.Neigh:
		back.IfIndex = res.IfIndex
	case sim.Tunnel:
		back.Hook, back.IfIndex, back.Source = sim.FromTunnel, scenario.TunnelDev, res.NextHop
	case sim.Pass:
		switch in.Hook {
		case sim.ToWorkload:
			back.Hook, back.IfIndex = sim.FromWorkload, in.IfIndex
		case sim.ToUplink:
			if in.IfIndex != scenario.HostDevice { // nothing comes in by that one
				back.IfIndex = in.IfIndex
			}
		default:
			back.Hook = sim.ToUplink
		}
	default:
		return
	}
	a := q.Clone()
	a.IP.TTL, a.SrcMAC, a.DstMAC = 64, packet.MAC{}, packet.MAC{}
	a.IP.Src, a.IP.Dst, a.SrcPort, a.DstPort = q.IP.Dst, q.IP.Src, q.DstPort, q.SrcPort
	if back.Hook == sim.FromUplink {
		a.SrcMAC = macOfAny(res.NextHop, a.IP.Src)
	}
	back.Packet = a
	client := in
	client.Packet = p.Clone()
	if d.open = append(d.open, &connection{client: client, server: back}); len(d.open) > connectionsKept {
		d.open = d.open[1:]
	}
}

// macOfAny is the MAC address of the first of these that is an address of IPv4.
func macOfAny(of ...netip.Addr) packet.MAC {
	for _, a := range of {
		if a.Is4() {
			return packet.MAC(macOf(a))
		}
	}
	return packet.MAC{}
}

// goOn is the next packet of a connection that is open.
func (d *differential) goOn() (sim.In, bool) {
	if len(d.open) == 0 || !d.talks.chance(15) {
		return sim.In{}, false
	}
	t := one(d.talks, d.open...)
	in := t.client
	if t.said == 0 || t.said > 1 && d.talks.chance(50) {
		in = t.server
	}
	in.Packet = in.Packet.Clone()
	if in.Packet.Kind == packet.TCP {
		in.Packet.Flags = one[uint8](d.talks, packet.ACK, packet.ACK|packet.PSH)
		switch {
		case t.said == 0:
			in.Packet.Flags = packet.SYN | packet.ACK
		case t.said > 3 && d.talks.chance(10):
			in.Packet.Flags = one[uint8](d.talks, packet.FIN|packet.ACK, packet.RST, packet.RST|packet.ACK)
		}
	}
	if t.said > 0 && d.talks.chance(10) {
		in.Packet.Payload, in.Packet.IP.DF = make([]byte, one(d.talks, 1280, 1300, 1450, 1500)-50+d.talks.IntN(60)), d.talks.chance(60)
	}
	t.said++
	return in, true
}
