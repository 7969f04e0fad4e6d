package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// tunnelInterface stands for the tunnel's device, for which no host endpoint is by its name.
const tunnelInterface = -1

// passage says by which interfaces the original direction of a flow enters and leaves the node; 0 = it begins or ends here.
type passage struct{ in, out int }

// hosts reports whether the node has host endpoints.
func (n *Node) hosts() bool { return len(n.state.HostEndpoints) > 0 }

// passageOf returns the passage of a flow of which a packet goes this way.
func (n *Node) passageOf(in In, w way, reply bool) passage {
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
		if in.Hook == ToUplink && in.IfIndex != n.opts.HostIfIndex {
			p.out = in.IfIndex
		}
	}
	if reply {
		p.in, p.out = p.out, p.in
	}
	return p
}

// betweenNodes: is it an outer packet of the tunnel?
func (n *Node) betweenNodes(k flowKey) bool {
	a, b := n.kind(k.src), n.kind(k.dst)
	return k.proto == model.ProtocolUDP && k.dport == n.state.Settings.Tunnel.Port &&
		(a == nodestate.AddrNode && b == nodestate.AddrHost || a == nodestate.AddrHost && b == nodestate.AddrNode)
}

// portsOf are what policy looks at of a flow beside its addresses and its protocol.
func portsOf(src netip.Addr, proto model.Protocol, sport, dport uint16) nodestate.Ports {
	if proto == icmpOf(src) {
		return nodestate.Ports{Dst: message(sport, dport)}
	}
	return nodestate.Ports{Src: sport, Dst: dport}
}

// judgeArrival is what host endpoints say to what comes in by an uplink, before Services.
func (n *Node) judgeArrival(in In, k flowKey) *dropped {
	if in.Hook != FromUplink || !n.hosts() {
		return nil
	}
	e := n.about(k)
	if allow, rule := n.consult(&e.In, n.state.HostEndpointAt(in.IfIndex, k.src).PreDNAT, k, k.src); !allow {
		return &dropped{reason: reason.HostPreDNAT, rule: rule}
	}
	return nil
}

// consult asks one set of a host endpoint, and notes its answer. Rule 0 = there is no set.
func (n *Node) consult(end *HostEnd, iso nodestate.Isolation, k flowKey, peer netip.Addr) (allow bool, rule nodestate.RuleID) {
	if iso.Set == 0 {
		return true, 0
	}
	v := n.state.Decide(iso, peer, k.proto, portsOf(k.src, k.proto, k.sport, k.dport))
	*end = HostEnd{Judged: true, Rule: v.Rule}
	n.judged.Log = n.judged.Log || v.Log
	return v.Allow, v.Rule
}

// judgeHost is what host endpoints say to a flow. The rule is the one that allowed last, 0 when nothing judged.
func (n *Node) judgeHost(k flowKey, p passage) (nodestate.RuleID, *dropped) {
	if !n.hosts() && n.state.Settings.ToHost != model.ToHostDrop {
		return 0, nil
	}
	e := n.about(k)
	from, to := n.kind(k.src), n.kind(k.dst)
	if p == (passage{}) {
		return n.judgeToHost(k, from == nodestate.AddrEndpoint && to == nodestate.AddrHost)
	}
	last := nodestate.RuleID(0)
	if p.in != 0 {
		h := n.state.HostEndpointAt(p.in, k.src)
		iso := h.ForwardIngress
		if to == nodestate.AddrHost {
			iso = h.HostIngress
		}
		allow, rule := n.consult(&e.In, iso, k, k.src)
		if !allow {
			return rule, &dropped{reason: reason.HostIngress, rule: rule}
		}
		last = rule
	}
	if p.out != 0 {
		h := n.state.HostEndpointAt(p.out, k.src)
		iso := h.ForwardEgress
		if from == nodestate.AddrHost {
			iso = h.HostEgress
		}
		allow, rule := n.consult(&e.Out, iso, k, k.dst)
		if !allow {
			return rule, &dropped{reason: reason.HostEgress, rule: rule}
		}
		if rule != 0 {
			last = rule
		}
	}
	return last, nil
}

// judgeToHost is defaultEndpointToHostAction, for what a pod sends to its node.
func (n *Node) judgeToHost(k flowKey, is bool) (nodestate.RuleID, *dropped) {
	switch {
	case is && n.state.Settings.ToHost == model.ToHostDrop:
		return 0, &dropped{reason: reason.ToHost}
	case is && n.state.Settings.ToHost == model.ToHostReturn:
		allow, rule := n.consult(&n.judged.In, n.state.HostEndpointAt(0, k.src).HostIngress, k, k.src)
		if !allow {
			return rule, &dropped{reason: reason.HostIngress, rule: rule}
		}
		return rule, nil
	}
	return 0, nil
}

// judgeHostAtFirst judges a flow that begins. unseen: the packet passes without a flow, because it is of a connection that is older than
// the host endpoint, in whichever direction.
func (n *Node) judgeHostAtFirst(in In, k flowKey, fwd *flow, opening bool) (unseen bool, _ *dropped) {
	judged := flowKey{src: k.src, dst: fwd.dst, sport: k.sport, dport: fwd.dport, proto: k.proto}
	if fwd.handOn {
		judged.dst, judged.dport = fwd.backend.Addr, fwd.backend.Port
	}
	p := n.passageOf(in, fwd.way, false)
	rule, d := n.judgeHost(judged, p)
	if rule != 0 {
		fwd.rule = rule
	}
	if d == nil {
		return false, nil
	}
	d.rule = fwd.rule
	if p != (passage{}) && fwd.way.action == Pass && fwd.svc.Proto == 0 && connects(k.proto) && !opening {
		told := *n.judged
		back := flowKey{src: k.dst, dst: k.src, sport: k.dport, dport: k.sport, proto: k.proto}
		if _, no := n.judgeHost(back, passage{in: p.out, out: p.in}); no == nil {
			n.judged = nil // there is no flow to tell of
			return true, nil
		}
		*n.judged = told
	}
	return false, d
}

// judgeHostAgain judges the entry of a flow, for the packet at hand.
func (n *Node) judgeHostAgain(f *flow, in In, k flowKey) (nodestate.RuleID, *dropped) {
	judged := flowKey{src: k.src, dst: f.dst, sport: k.sport, dport: f.otherPort(k), proto: k.proto}
	if f.reply {
		judged = flowKey{src: f.dst, dst: k.src, sport: f.otherPort(k), dport: k.sport, proto: k.proto}
	}
	if f.handOn {
		judged.dst, judged.dport = f.backend.Addr, f.backend.Port
	}
	return n.judgeHost(judged, n.passageOf(in, f.way, f.reply))
}

// guarded: would this reach the host past its host endpoints?
func (n *Node) guarded(in In) bool {
	return n.hosts() && in.Packet.Kind != packet.Frame && (in.Hook == FromUplink || in.Hook == FromTunnel) &&
		n.kind(in.Packet.IP.Dst) == nodestate.AddrHost
}
