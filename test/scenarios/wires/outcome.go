// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// outcome is what a whole node did with a packet. The oracle's is that of all hooks that the packet
// met there.
type outcome struct {
	// where is pod <interface>, uplink <next hop>, tunnel <node>, host, or nothing.
	where  string
	packet *packet.Packet
	// answer: the packet is one of the node's own, in the place of what came. Kernels word it as
	// they like; what it is about counts.
	answer bool
	// silent: the node may also answer: it is not the data plane that lost the packet.
	silent bool
}

const nothing = "nothing"

func (o outcome) String() string {
	if o.where == nothing {
		return nothing
	}
	return fmt.Sprintf("%s: %s", o.where, o.packet)
}

// step is one hook of the oracle on a packet's path through a node.
type step struct {
	in     sim.In
	result sim.Result
}

// through sends a packet through a node of the oracle, from hook to hook.
func through(m *scenario.Machine, node *sim.Node, in sim.In) ([]step, outcome) {
	var steps []step
	for {
		r := node.Receive(in)
		steps = append(steps, step{in, r})
		switch r.Action {
		case sim.Drop, sim.Keep:
			return steps, outcome{where: nothing}
		case sim.Answer:
			return steps, outcome{where: back(in), packet: r.Packet, answer: true}
		case sim.Local:
			return steps, outcome{where: atPod(r.IfIndex), packet: r.Packet}
		case sim.Neigh:
			return steps, outcome{where: atUplink(r.NextHop), packet: r.Packet}
		case sim.Tunnel:
			return steps, outcome{where: atTunnel(r.NextHop), packet: r.Packet}
		}
		switch in.Hook {
		case sim.ToWorkload:
			return steps, outcome{where: atPod(in.IfIndex), packet: r.Packet}
		case sim.ToUplink:
			if in.IfIndex == scenario.HostDevice {
				return steps, outcome{where: nothing, silent: true}
			}
			return steps, outcome{where: atUplink(m.NextHop(r.Packet.IP.Dst)), packet: r.Packet}
		}
		next, end := m.Stack(r.Packet, in.IfIndex, r.Marked)
		switch {
		case strings.HasPrefix(end, "node:"):
			return steps, outcome{where: host, packet: r.Packet}
		case end != "":
			return steps, outcome{where: nothing, silent: true}
		}
		in = next
	}
}

const host = "host"

func atPod(ifindex int) string        { return fmt.Sprintf("pod if%d", ifindex) }
func atUplink(next netip.Addr) string { return "uplink " + next.String() }
func atTunnel(node netip.Addr) string { return "tunnel " + node.String() }

// back is where an answer to a packet goes. The kernel finds the path by its routes.
func back(in sim.In) string {
	switch in.Hook {
	case sim.FromWorkload:
		return atPod(in.IfIndex)
	case sim.FromTunnel:
		return atTunnel(in.Source)
	case sim.FromUplink:
		return "uplink *"
	}
	return host
}

// differs says how what came out of a node differs from what the oracle says; "" when it does not.
func differs(in sim.In, got []outcome, want outcome) string {
	if len(got) > 1 {
		return fmt.Sprintf("%d packets came out", len(got))
	}
	o := outcome{where: nothing}
	if len(got) == 1 {
		o = got[0]
	}
	if in.Packet.Kind == packet.Frame && want.where == host { // the stack's, which says nothing
		want.where = nothing
	}
	switch {
	case want.silent && o.where != nothing && o.packet.Kind == packet.Error:
		return ""
	case o.where == nothing && want.where == nothing:
		return ""
	case o.where == nothing || want.where == nothing,
		o.where != want.where && !(want.where == "uplink *" && strings.HasPrefix(o.where, "uplink ")):
		return "it went elsewhere"
	}
	a, b := shape(in, o.packet), shape(in, want.packet)
	if want.answer {
		a, b = gist(o.packet), gist(want.packet)
	}
	if a != b {
		return fmt.Sprintf("another packet: %s instead of %s", a, b)
	}
	return ""
}

// shape is a packet without what links and the sender's kernel fill in.
func shape(in sim.In, p *packet.Packet) string {
	p = p.Clone()
	p.SrcMAC, p.DstMAC = packet.MAC{}, packet.MAC{}
	if (in.Hook == sim.ToUplink || in.Hook == sim.ToWorkload) && in.Packet.IP.ID == 0 {
		p.IP.ID = 0
	}
	return p.String()
}

// gist is what a node's own answer says to whom.
func gist(p *packet.Packet) string {
	switch p.Kind {
	case packet.Frame:
		return fmt.Sprintf("%s > %s %x", p.SrcMAC, p.DstMAC, p.Payload[:min(28, len(p.Payload))])
	case packet.TCP:
		return fmt.Sprintf("tcp %s %d > %s %d flags %x", p.IP.Src, p.SrcPort, p.IP.Dst, p.DstPort, p.Flags)
	case packet.Error:
		return fmt.Sprintf("icmp > %s error %d %d about %s > %s %x", p.IP.Dst, p.ICMPType, p.ICMPCode, p.Quote.IP.Src, p.Quote.IP.Dst,
			slices.Clip(p.Quote.L4[:min(4, len(p.Quote.L4))]))
	}
	return p.String()
}

// knewBefore: did a host endpoint deny a packet of a TCP connection, and the data plane inform its
// sender, where the oracle knows of no connection? There are some that only connection tracking
// knew before there were host endpoints.
func knewBefore(in sim.In, got []outcome, steps []step) bool {
	last, p := steps[len(steps)-1].result, in.Packet
	switch last.Reason {
	case reason.HostIngress, reason.HostEgress, reason.HostPreDNAT, reason.ToHost:
	default:
		return false
	}
	if last.Action != sim.Drop || len(got) != 1 || p.Kind != packet.TCP || p.Flags&(packet.SYN|packet.RST) != 0 {
		return false
	}
	r := got[0].packet
	return r.Kind == packet.TCP && r.Flags == packet.RST && r.IP.Src == p.IP.Dst && r.IP.Dst == p.IP.Src && r.SrcPort == p.DstPort && r.DstPort == p.SrcPort && r.Seq == p.Ack
}
