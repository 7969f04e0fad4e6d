// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// tunnelInterface represents the tunnel's device, for which no host endpoint is by its name.
const tunnelInterface = -1

// passage says by which interfaces the original direction of a flow enters and leaves the node, 0 =
// by none that is known; and which of its ends are the node itself.
type passage struct {
	in, out          int
	ownFrom, ownDest bool
}

// reversed is the passage of the other direction.
func (p passage) reversed() passage {
	return passage{in: p.out, out: p.in, ownFrom: p.ownDest, ownDest: p.ownFrom}
}

// inside: it passes no interface.
func (p passage) inside() bool { return p.in == 0 && p.out == 0 }

// hosts reports whether the node has host endpoints.
func (n *Node) hosts() bool { return len(n.state.HostEndpoints) > 0 }

// passageOf returns the passage of the flow k, in its original direction, of which a packet goes
// this way.
func (n *Node) passageOf(in In, w path, reply bool, k flowKey) passage {
	var p passage
	switch in.Hook {
	case FromUplink:
		p.in = in.IfIndex
	case FromTunnel:
		p.in = tunnelInterface
	}
	switch w.action {
	case Neigh:
		p.out = w.ifindex
	case Tunnel:
		p.out = tunnelInterface
	case Pass:
		if reply && w.ifindex != 0 {
			p.out = w.ifindex
		} else if in.Hook == ToUplink && in.IfIndex != n.opts.HostIfIndex {
			p.out = in.IfIndex
		}
	}
	if reply {
		p = p.reversed()
	}
	return n.ends(p, k)
}

// ends completes a passage: whether an end is the node, and by which uplink the stack sends on what
// it carries. Where no table knows an address, and the kernel's routes do not lead on, the node
// keeps what is for it.
func (n *Node) ends(p passage, k flowKey) passage {
	from, to := n.kind(k.src), n.kind(k.dst)
	p.ownFrom, p.ownDest = from == nodestate.AddrHost, to == nodestate.AddrHost
	if from != nodestate.AddrHost && from != nodestate.AddrEndpoint && p.in == 0 && p.out != 0 {
		_, ok := n.opts.FIB(k.src)
		p.ownFrom = !ok
	}
	if to != nodestate.AddrHost && to != nodestate.AddrEndpoint && p.in != 0 && p.out == 0 {
		hop, ok := n.opts.FIB(k.dst)
		p.ownDest = !ok
		if _, uplink := n.opts.Uplinks[hop.IfIndex]; ok && uplink {
			p.out = hop.IfIndex
		}
	}
	return p
}

// passes: is the packet of a flow that the stack sends on by another uplink, where it leaves? It
// was evaluated where it came in.
func passes(in In, f *flow) bool {
	return in.Hook == ToUplink && f.path.action == Pass && f.path.ifindex != 0
}

// betweenNodes: is it an outer packet of the tunnel?
func (n *Node) betweenNodes(k flowKey) bool {
	a, b := n.kind(k.src), n.kind(k.dst)
	tunnel := k.proto == model.ProtocolUDP && k.dport == n.state.Settings.Tunnel.Port || k.proto == protoIPv4 && k.src.Is4() && n.state.Settings.IPIP.Accept
	return tunnel &&
		(a == nodestate.AddrNode && b == nodestate.AddrHost || a == nodestate.AddrHost && b == nodestate.AddrNode)
}

// portsOf are what policy looks at of a flow in addition to its addresses and its protocol.
func portsOf(src netip.Addr, proto model.Protocol, sport, dport uint16) nodestate.Ports {
	if proto == icmpOf(src) {
		return nodestate.Ports{Dst: message(sport, dport)}
	}
	return nodestate.Ports{Src: sport, Dst: dport}
}

// evaluateArrival is what host endpoints say to what comes in by an uplink, before Services.
func (n *Node) evaluateArrival(in In, k flowKey) *dropped {
	if in.Hook != FromUplink || !n.hosts() || n.alone && in.Packet.Kind != packet.Error {
		return nil
	}
	e := n.about(k)
	if allow, rule := n.consult(&e.In, in.IfIndex, func(h nodestate.HostEndpoint) nodestate.Isolation { return h.PreDNAT }, k, k.src); !allow {
		return &dropped{reason: reason.HostPreDNAT, rule: rule}
	}
	return nil
}

// consult asks one set of the host endpoint of an interface, and notes its answer and that of the
// one that staged policies would put in its place. Rule 0 = there is no set.
func (n *Node) consult(end *HostEnd, ifindex int, set func(nodestate.HostEndpoint) nodestate.Isolation, k flowKey, peer netip.Addr) (allow bool, rule nodestate.RuleID) {
	ports := portsOf(k.src, k.proto, k.sport, k.dport)
	iso := set(n.state.HostEndpointAt(ifindex, k.src))
	if staged, ok := n.state.HostStagedAt(ifindex, k.src); ok && (iso.Set != 0 || set(staged).Set != 0) {
		end.Evaluated, end.Staged = true, true
		if would := set(staged); would.Set != 0 && !end.StagedDenied {
			v := n.state.Decide(would, peer, k.proto, ports)
			end.StagedDenied, end.StagedRule = !v.Allow, v.Rule
		}
	}
	if iso.Set == 0 {
		return true, 0
	}
	v := n.state.Decide(iso, peer, k.proto, ports)
	end.Evaluated, end.Rule = true, v.Rule
	n.evaluated.Log = n.evaluated.Log || v.Log
	return v.Allow, v.Rule
}

// evaluateHost is what host endpoints say to a flow. The rule is the one that allowed last, 0 when
// no policy applied.
func (n *Node) evaluateHost(k flowKey, p passage) (nodestate.RuleID, *dropped) {
	if !n.hosts() && n.state.Settings.ToHost != model.ToHostDrop {
		return 0, nil
	}
	e := n.about(k)
	if p.inside() {
		return n.evaluateToHost(k, n.kind(k.src) == nodestate.AddrEndpoint && n.kind(k.dst) == nodestate.AddrHost)
	}
	last := nodestate.RuleID(0)
	if p.in != 0 {
		allow, rule := n.consult(&e.In, p.in, func(h nodestate.HostEndpoint) nodestate.Isolation {
			if p.ownDest {
				return h.HostIngress
			}
			return h.ForwardIngress
		}, k, k.src)
		if !allow {
			return rule, &dropped{reason: reason.HostIngress, rule: rule}
		}
		last = rule
	}
	if p.out != 0 {
		allow, rule := n.consult(&e.Out, p.out, func(h nodestate.HostEndpoint) nodestate.Isolation {
			if p.ownFrom {
				return h.HostEgress
			}
			return h.ForwardEgress
		}, k, k.dst)
		if !allow {
			return rule, &dropped{reason: reason.HostEgress, rule: rule}
		}
		if rule != 0 {
			last = rule
		}
	}
	return last, nil
}

// evaluateToHost is defaultEndpointToHostAction, for what a pod sends to its node.
func (n *Node) evaluateToHost(k flowKey, is bool) (nodestate.RuleID, *dropped) {
	switch {
	case is && n.state.Settings.ToHost == model.ToHostDrop:
		return 0, &dropped{reason: reason.ToHost}
	case is && n.state.Settings.ToHost == model.ToHostReturn:
		allow, rule := n.consult(&n.evaluated.In, 0, func(h nodestate.HostEndpoint) nodestate.Isolation { return h.HostIngress }, k, k.src)
		if !allow {
			return rule, &dropped{reason: reason.HostIngress, rule: rule}
		}
		return rule, nil
	}
	return 0, nil
}

// evaluateHostNew evaluates a flow that begins. unseen: the packet passes without a flow, because
// it is of a connection that is older than the host endpoint, in whichever direction.
func (n *Node) evaluateHostNew(in In, k flowKey, fwd, rev *flow, opening bool) (unseen bool, _ *dropped) {
	evaluated := flowKey{src: k.src, dst: fwd.dst, sport: k.sport, dport: fwd.dport, proto: k.proto}
	if fwd.handOn {
		evaluated.dst, evaluated.dport = fwd.backend.Addr, fwd.backend.Port
	}
	p := n.passageOf(in, fwd.path, false, evaluated)
	if n.hosts() && p.in != 0 && p.out != 0 && fwd.path.action == Pass {
		fwd.path.ifindex, rev.path.ifindex = p.out, p.in
	}
	rule, d := n.evaluateHost(evaluated, p)
	if rule != 0 {
		fwd.rule = rule
	}
	if d == nil {
		return false, nil
	}
	if !p.inside() && fwd.path.action == Pass && fwd.svc.Proto == 0 && connects(k.proto) && !opening {
		saved := *n.evaluated
		back := flowKey{src: k.dst, dst: k.src, sport: k.dport, dport: k.sport, proto: k.proto}
		if _, no := n.evaluateHost(back, p.reversed()); no == nil {
			n.evaluated = nil // there is no flow to report
			return true, nil
		}
		*n.evaluated = saved
	}
	return false, d
}

// evaluateHostAgain evaluates the entry of a flow, for the packet at hand.
func (n *Node) evaluateHostAgain(f *flow, in In, k flowKey) (nodestate.RuleID, *dropped) {
	evaluated := flowKey{src: k.src, dst: f.dst, sport: k.sport, dport: f.otherPort(k), proto: k.proto}
	if f.reply {
		evaluated = flowKey{src: f.dst, dst: k.src, sport: f.otherPort(k), dport: k.sport, proto: k.proto}
	}
	if f.handOn {
		evaluated.dst, evaluated.dport = f.backend.Addr, f.backend.Port
	}
	p := n.passageOf(in, f.path, f.reply, evaluated)
	if n.hosts() && !f.reply && p.in != 0 && f.path.action == Pass {
		f.path.ifindex = p.out
	}
	return n.evaluateHost(evaluated, p)
}

// guarded: would this reach the host past its host endpoints?
func (n *Node) guarded(in In) bool { return n.hosts() && n.reached(in) }

// ledOn: may the host's stack lead this on, by a routing header or by unpacking what is behind one,
// past what is asked of its source?
func (n *Node) ledOn(in In) bool {
	hidden, _ := chainOf(&in.Packet.IP)
	return hidden && n.reached(in)
}

// reached: does this come from outside, and is it for the host?
func (n *Node) reached(in In) bool {
	if in.Packet.Kind == packet.Frame || in.Hook != FromUplink && in.Hook != FromTunnel {
		return false
	}
	if n.kind(in.Packet.IP.Dst) == nodestate.AddrHost {
		return true
	}
	_, ok := n.opts.FIB(in.Packet.IP.Dst)
	onLink := func(a netip.Addr) bool { return a.Is6() && (a.IsLinkLocalUnicast() || a.IsMulticast()) }
	return !ok || onLink(in.Packet.IP.Src) || onLink(in.Packet.IP.Dst)
}
