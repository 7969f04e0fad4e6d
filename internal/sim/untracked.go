// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// alone is a packet as policy evaluates it by itself: an ICMP message, an error too, by its own
// type and code.
func alone(p *packet.Packet) flowKey {
	k := flowKey{src: p.IP.Src, dst: p.IP.Dst, proto: model.Protocol(p.IP.Proto)}
	if k.proto != icmpOf(k.src) {
		k.sport, k.dport = p.Ports()
		return k
	}
	if p.Kind == packet.Other || p.Fragment() {
		k.dport = uint16(p.Payload[0])<<8 | uint16(p.Payload[1])
	} else {
		k.dport = uint16(p.ICMPType)<<8 | uint16(p.ICMPCode)
	}
	return k
}

// evaluateUntracked is what host endpoints say by itself of a packet that comes in by an uplink.
// n.alone: they allow it.
func (n *Node) evaluateUntracked(in In) *dropped {
	if in.Hook != FromUplink {
		return nil
	}
	return n.untrackedVerdict(in, n.state.HostEndpointAt(in.IfIndex, in.Packet.IP.Src).UntrackedIngress, alone(in.Packet), true)
}

// asksAlone: is policy asked about what comes by itself? Then what is no whole packet of a flow
// does not make it one that was evaluated.
func (n *Node) asksAlone(in In) bool { return in.Hook == FromUplink && n.state.EvaluatesUntracked() }

// untrackedVerdict asks a set about a packet by itself.
func (n *Node) untrackedVerdict(in In, iso nodestate.Isolation, k flowKey, arrives bool) *dropped {
	n.alone = false
	if iso.Set == 0 || n.betweenNodes(k) {
		return nil
	}
	peer, why := k.dst, reason.UntrackedEgress
	if arrives {
		peer, why = k.src, reason.UntrackedIngress
	}
	ports := nodestate.Ports{Src: k.sport, Dst: k.dport}
	v := n.state.Decide(iso, peer, k.proto, ports)
	if v.Allow {
		n.alone = !v.Undecided
		return nil
	}
	e := Event{Src: k.src, Dst: k.dst, Sport: k.sport, Dport: k.dport, Proto: k.proto, Hook: in.Hook, IfIndex: in.IfIndex, Log: v.Log, Reason: why}
	end := &e.Out
	if arrives {
		end = &e.In
	}
	*end = HostEnd{Evaluated: true, Rule: v.Rule}
	n.events = append(n.events, e)
	return &dropped{reason: why, rule: v.Rule}
}

// plain: does the flow carry nothing but what the stack exchanges by itself?
func (n *Node) plain(f *flow, k flowKey) bool {
	return f.path.action == Pass && !f.rewrite && !f.handOn && f.svc.Proto == 0 &&
		n.kind(k.src) != nodestate.AddrEndpoint && n.kind(k.dst) != nodestate.AddrEndpoint
}

// evaluateLeaving is what host endpoints say by itself of a packet that begins in the node and
// leaves by an uplink.
func (n *Node) evaluateLeaving(in In, ifindex int, p *packet.Packet) *dropped {
	in.Hook, in.IfIndex = ToUplink, ifindex
	return n.untrackedVerdict(in, n.state.HostEndpointAt(ifindex, p.IP.Src).UntrackedEgress, alone(p), false)
}

// goesAlone reports whether a packet at to_uplink, of an uplink, is one that is evaluated by
// itself: one that begins in the node.
func (n *Node) goesAlone(in In) bool {
	_, uplink := n.opts.Uplinks[in.IfIndex]
	return uplink && in.Entered == 0 && n.readable(in.Packet)
}

// readable: is it a packet, or the first fragment of one, that has its protocol and ports?
func (n *Node) readable(p *packet.Packet) bool {
	switch n.shapeOf(p, ToUplink) {
	case shapeOK:
		return true
	case shapeFragment:
		head := map[uint8]int{packet.ProtoTCP: 20, packet.ProtoUDP: 8, packet.ProtoSCTP: 12, uint8(icmpOf(p.IP.Src)): 8}[p.IP.Proto]
		isError := p.IP.Proto == uint8(icmpOf(p.IP.Src)) && len(p.Payload) > 0 && packet.IsError(&p.IP, p.Payload[0])
		return p.IP.Offset == 0 && len(p.Payload) >= head && !isError
	}
	return false
}

// leave is what begins in the node and meets an uplink because the programs send it there, to a
// neighbour.
func (n *Node) leave(in In, r Result) Result {
	out := In{Hook: ToUplink, IfIndex: r.IfIndex, Packet: r.Packet}
	if in.Hook != ToUplink || in.Entered != 0 || r.Action != Neigh || !n.goesAlone(out) {
		return r
	}
	if d := n.evaluateLeaving(in, r.IfIndex, r.Packet); d != nil {
		dropped := drop(in, *d)
		dropped.Again = r.Again
		return dropped
	}
	return r
}
