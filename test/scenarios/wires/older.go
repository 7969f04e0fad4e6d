// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"net/netip"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
)

// The eBPF data plane looks at nothing that the node's own processes exchange before there are host
// endpoints, and takes the first packet after that for the beginning of a flow. Connection tracking
// knows who began (docs/design/nftables.md).

// exchange is a flow of either direction.
type exchange struct {
	low, high netip.AddrPort
	proto     uint8
}

func exchangeOf(p *packet.Packet) exchange {
	sport, dport := p.Ports()
	out := exchange{netip.AddrPortFrom(p.IP.Src, sport), netip.AddrPortFrom(p.IP.Dst, dport), p.IP.Proto}
	if out.low.Compare(out.high) > 0 {
		out.low, out.high = out.high, out.low
	}
	return out
}

// remember notes a packet that only connection tracking knows the flow of.
func (c *carrier) remember(p *packet.Packet) {
	if len(c.state.HostEndpoints) == 0 && p.Kind != packet.Frame && p.Kind != packet.TCP && c.ofTheNode(p) {
		c.older[exchangeOf(p)] = true
	}
}

func (c *carrier) ofTheNode(p *packet.Packet) bool {
	return c.state.Addrs[p.IP.Src].Kind == nodestate.AddrHost || c.state.Addrs[p.IP.Dst].Kind == nodestate.AddrHost
}

// knew: does the data plane evaluate a flow that it knew before there were host endpoints in the
// direction in which it began, and the oracle in the one in which it first saw it? Then one of them
// at least denies it as host endpoints do, or the data plane, which evaluated it already, says
// nothing.
func (c *carrier) knew(in sim.In, got []outcome, steps []step) bool {
	if !c.older[exchangeOf(in.Packet)] || len(got) > 1 {
		return false
	}
	denies := func(r uint32) bool { return r == uint32(reason.HostIngress) || r == uint32(reason.HostEgress) }
	reported := func(events []dataplane.Event) bool {
		for _, e := range events {
			if !e.Allowed && denies(e.Reason) {
				return true
			}
		}
		return false
	}
	last := steps[len(steps)-1].result
	return last.Action == sim.Drop && denies(uint32(last.Reason)) || len(got) == 0 && reported(c.events)
}
