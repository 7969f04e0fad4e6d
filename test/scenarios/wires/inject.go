// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// inject sends a packet. Call it inside.
func (c *carrier) inject(in sim.In) error {
	p := in.Packet.Clone()
	if p.Kind == packet.Frame {
		if err := c.ask(p); err != nil {
			return err
		}
	}
	if in.Marked || in.Again {
		return fmt.Errorf("%w: met this node before", errCannot)
	}
	set := func(m *packet.MAC, to net.HardwareAddr) {
		if *m == (packet.MAC{}) && len(to) == 6 {
			*m = packet.MAC(to)
		}
	}
	switch in.Hook {
	case sim.ToWorkload, sim.ToUplink:
		if c.state.Addrs[p.IP.Src].Kind != nodestate.AddrHost {
			return fmt.Errorf("%w: not the node's own", errCannot)
		}
		b, err := p.Marshal()
		if err != nil {
			return err
		}
		// What the kernel refuses to send does not come out.
		_ = speak(b[14:], p.IP.Dst)
		return nil
	case sim.FromWorkload:
		set(&p.DstMAC, c.links[in.IfIndex])
		set(&p.SrcMAC, c.podMAC(in.IfIndex))
	case sim.FromUplink:
		set(&p.DstMAC, c.machine.MAC[:])
		set(&p.SrcMAC, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	case sim.FromTunnel:
		return c.injectTunnel(in, p)
	}
	b, err := p.Marshal()
	if err != nil {
		return err
	}
	return c.place.port.send(c.place.farOf[in.IfIndex], b)
}

// ask prepares an ARP request. What asks for the node's own addresses is its stack's matter; so are
// probes, from nobody, and what somebody announces (docs/design/nftables.md).
func (c *carrier) ask(p *packet.Packet) error {
	b := p.Payload
	if p.Type != packet.TypeARP || len(b) < 28 {
		return fmt.Errorf("%w: not IP", errCannot)
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	if sender.IsUnspecified() || sender == target || c.state.Addrs[target].Kind == nodestate.AddrHost {
		return fmt.Errorf("%w: ARP of the stack's own", errCannot)
	}
	c.who[[6]byte(b[8:14])] = sender
	return nil
}

func (c *carrier) injectTunnel(in sim.In, p *packet.Packet) error {
	self := c.machine.Like(in.Source)
	if c.tunnel == 0 || !self.IsValid() {
		return nil // nobody listens
	}
	p.SrcMAC, p.DstMAC = packet.MAC{2, 0, 0, 0, 0, 2}, packet.MAC(c.links[c.tunnel])
	b, err := p.Marshal()
	if err != nil {
		return err
	}
	t := c.state.Settings.Tunnel
	outer := vxlan(c.machine.MAC, c.macOf(in.Source), in.Source, self, t.Port, in.VNI, b)
	return c.place.port.send(c.place.farOf[scenario.Uplink], outer)
}

func (c *carrier) podMAC(ifindex int) net.HardwareAddr {
	for _, a := range c.state.Addrs {
		if a.Kind == nodestate.AddrEndpoint && a.IfIndex == ifindex {
			return a.MAC[:]
		}
	}
	return net.HardwareAddr{2, 0, 0, 0, 0, 3}
}

// macOf is the MAC address of whoever has an address on one of the node's links.
func (c *carrier) macOf(a netip.Addr) [6]byte {
	if known := c.state.Addrs[a]; known.MAC != [6]byte{} {
		return known.MAC
	}
	b := a.As16()
	mac := [6]byte{2, 0xfe, b[12], b[13], b[14], b[15]}
	if a.Is6() {
		mac[1] = 0xf6
	}
	return mac
}
