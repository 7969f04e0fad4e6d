// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// flowKey is a packet as it is seen where the data plane meets it.
type flowKey struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto        model.Protocol
}

// keyOf returns the key of p; for an ICMP error, of the quoted packet turned round.
func keyOf(p *packet.Packet) flowKey {
	if p.Kind == packet.Error {
		s, d := p.Quote.Ports()
		return flowKey{src: p.Quote.IP.Dst, dst: p.Quote.IP.Src, sport: d, dport: s, proto: model.Protocol(p.Quote.IP.Proto)}
	}
	s, d := p.Ports()
	return flowKey{src: p.IP.Src, dst: p.IP.Dst, sport: s, dport: d, proto: model.Protocol(p.IP.Proto)}
}

// path is where a flow's packets go.
type path struct {
	action  Action
	ifindex int
	next    netip.Addr
	mac     packet.MAC
	mtu     int // bytes of an IP packet; 0 = not known
}

// flow is an entry of one direction.
type flow struct {
	epoch        uint32
	seen         time.Duration
	src, dst     netip.Addr // after translation
	sport, dport uint16
	path         path
	iif          int
	origin       origin
	rule         nodestate.RuleID
	svc          nodestate.Frontend // id, zero when none
	backend      nodestate.Backend

	reply, rewrite, viaNode, handOn, dsr bool
	gateway                              bool // leaves the cluster by an egress gateway
	stack                                bool // left to the stack, translated, by the way of path
	granted                              bool // a pod sends it with a source that is not its own (nodestate.State.Sources)
	clamp                                bool // SYNs announce no larger segments than fit the tunnel
	replied, fin, closing                bool
	reset                                bool // closing by RST
	answered                             bool // half open: an answer was seen
	answeredAt                           time.Duration
	watched                              bool       // the return path follows the node that hands packets on
	from                                 netip.Addr // watched: that node, invalid = none
}

// partner is the key of the entry of the other direction.
func (f *flow) partner(proto model.Protocol) flowKey {
	return flowKey{src: f.dst, dst: f.src, sport: f.dport, dport: f.sport, proto: proto}
}

// otherPort is what f's entry of k adds to the source port of k for evaluation: the port after
// translation. Of an ICMP query both ports have the identifier in them, and give the type by their
// distance: they are taken as the packet has them.
func (f *flow) otherPort(k flowKey) uint16 {
	if k.proto == icmpOf(k.src) {
		return k.dport
	}
	return f.dport
}

// find looks for an entry, established ones first.
func (n *Node) find(k flowKey) (f *flow, half bool) {
	if f := n.flows[k]; f != nil {
		return f, false
	}
	return n.half[k], true
}

func (n *Node) expired(f *flow, proto model.Protocol) bool {
	t := n.state.Settings.Timeouts
	limit := t.Generic
	switch proto {
	case model.ProtocolTCP:
		switch {
		case f.reset:
			limit = t.TCPReset
		case f.closing:
			limit = t.TCPFins
		case f.replied:
			limit = t.TCPEstablished
		default:
			limit = t.TCPSynSent
		}
	case model.ProtocolSCTP:
		switch {
		case f.reset:
			limit = t.TCPReset
		case f.closing:
			limit = t.TCPFins
		case !f.replied:
			limit = t.TCPSynSent
		}
	case model.ProtocolUDP:
		limit = t.UDP
		if !f.replied && !f.answered && !f.handOn {
			limit /= 4 // nobody has answered
		}
	case model.ProtocolICMP, packet.ProtoICMPv6:
		limit = t.ICMP
	}
	return n.opts.Now()-f.seen > limit
}

// usable is the list of step 1; enters says that the packet comes in where the flow's do.
func (n *Node) usable(f *flow, enters bool, k flowKey, opening bool) bool {
	return !n.expired(f, k.proto) && enters && !(opening && f.closing)
}

// enters reports whether a packet comes in where its flow's packets do.
func enters(f *flow, in In) bool {
	if in.Hook == FromWorkload {
		return f.iif == in.IfIndex
	}
	return f.iif == 0
}

// end lets a flow that has ended be no more: another one of the same addresses and ports begins,
// which the other data plane has.
func (n *Node) end(f *flow, k flowKey) {
	for _, table := range []map[flowKey]*flow{n.flows, n.half} {
		forget(table, f, k)
	}
}

// forget removes a flow, f, with the key k, from a table. The key of the other direction may have
// gone to another flow since.
func forget(table map[flowKey]*flow, f *flow, k flowKey) {
	if o := f.partner(k.proto); table[o] != nil && table[o].partner(k.proto) == k {
		delete(table, o)
	}
	delete(table, k)
}

// revalidate evaluates a flow of an older epoch. again: it begins anew.
func (n *Node) revalidate(f *flow, in In, k flowKey) (again bool, _ *dropped) {
	if f.svc.Proto != 0 && f.svc.Proto != model.ProtocolTCP && !n.live(f.svc, f.backend) {
		return true, nil
	}
	if f.svc.Proto == 0 && !f.reply && !f.gateway && k.proto != model.ProtocolTCP && f.dst != k.dst && n.state.Floating[k.dst] != f.dst {
		return true, nil
	}
	if n.gatewayDiffers(f, in, k) {
		return true, nil
	}
	n.again, n.service = true, f.svc
	n.sender = k.src
	if f.reply {
		n.sender = f.dst
	} else if f.granted {
		if n.sender = n.state.SendsAs(in.IfIndex, k.src); !n.sender.IsValid() {
			return false, &dropped{reason: reason.Spoofed}
		}
	}
	if !f.reply {
		if n.leadsToTunnel(in, f) {
			return false, &dropped{reason: reason.TunnelFromPod, rule: f.rule}
		}
		if d := n.evaluateArrival(in, k); d != nil {
			return false, d
		}
	}
	rule := nodestate.RuleID(0)
	if !f.handOn {
		var d *dropped
		if f.reply {
			rule, d = n.evaluate(f.dst, k.src, k.proto, f.otherPort(k), k.sport)
		} else {
			rule, d = n.evaluate(k.src, f.dst, k.proto, k.sport, f.otherPort(k))
		}
		if d != nil {
			return false, d
		}
	}
	if !f.viaNode && !f.handOn && !f.dsr && f.path.action != Pass && in.Hook != ToWorkload {
		w, ok, why := n.route(f.dst)
		if !ok {
			return false, &dropped{reason: why}
		}
		f.path = w
		f.watched = f.watched && (w.action == Local || w.action == Pass)
	} else if f.path.action == Tunnel && f.path.ifindex != 0 && n.state.Addrs[f.path.next].NoIPIP {
		f.path, _ = n.toNode(f.path.next, byVXLAN)
	}
	hostRule, d := n.evaluateHostAgain(f, in, k)
	if d != nil {
		return false, d
	}
	if hostRule != 0 {
		rule = hostRule
	}
	if rule != 0 {
		f.rule = rule
	}
	f.epoch = n.epoch
	return false, nil
}

// touch notes what a packet shows of its flow: that it lives, that it is answered, that it ends.
func (n *Node) touch(f *flow, k flowKey, in In, half bool) {
	p := in.Packet
	f.seen = n.opts.Now()
	flags := lifeFlags(p)
	if f.watched {
		n.redirectReplies(f, k, in)
	}
	over := false
	switch {
	case !half:
	case f.dsr && connects(k.proto):
		over = n.trackHandshake(f, k, in, flags)
	case f.answered:
		over = flags&packet.SYN == 0
	case !f.reply:
		over = f.handOn && connects(k.proto) && flags&packet.SYN == 0
	default:
		f.answered = true
		if other := n.half[f.partner(k.proto)]; other != nil {
			other.answered = true
		}
	}
	if half && over {
		n.establish(f, k)
	}
	if !half && f.reply && !f.replied {
		f.replied = true
		if other := n.flows[f.partner(k.proto)]; other != nil {
			other.replied = true
		}
	}
	if flags&(packet.FIN|packet.RST) == 0 || f.closing {
		return
	}
	other := n.flows[f.partner(k.proto)]
	if other == nil && half {
		other = n.half[f.partner(k.proto)]
	}
	f.fin = true
	reset := flags&packet.RST != 0
	unheard := f.handOn && !f.reply && !f.answered // the other end's FIN does not come by here
	if reset || other != nil && other.fin || unheard {
		f.closing, f.reset = true, reset
		if other != nil {
			other.closing, other.reset = true, reset
		}
	}
}

// connects: does the protocol open its connections?
func connects(proto model.Protocol) bool {
	return proto == model.ProtocolTCP || proto == model.ProtocolSCTP
}

// hasPorts: are the protocol's ports those of Services?
func hasPorts(proto model.Protocol) bool { return proto == model.ProtocolUDP || connects(proto) }

// lifeFlags are the TCP flags of a segment; for SCTP, those that say what its first chunk says.
func lifeFlags(p *packet.Packet) uint8 {
	switch {
	case p.Kind == packet.Error:
	case p.IP.Proto == packet.ProtoTCP:
		return p.TCPFlags()
	case p.IP.Proto == packet.ProtoSCTP:
		switch chunk, ok := p.FirstChunk(); {
		case !ok:
			return 0
		case chunk == packet.ChunkInit:
			return packet.SYN
		case chunk == packet.ChunkInitAck:
			return packet.SYN | packet.ACK
		case chunk == packet.ChunkShutdown, chunk == packet.ChunkShutdownAck:
			return packet.FIN | packet.ACK
		case chunk == packet.ChunkAbort, chunk == packet.ChunkShutdownComplete:
			return packet.RST | packet.ACK
		}
		return packet.ACK
	}
	return 0
}

// establish moves both entries to the established ones.
func (n *Node) establish(f *flow, k flowKey) {
	o := f.partner(k.proto)
	n.countEstablished(f, k, n.half[o])
	if other := n.half[o]; other != nil {
		other.replied = true
		n.flows[o] = other
		delete(n.half, o)
	}
	f.replied = true
	n.flows[k] = f
	delete(n.half, k)
}

// evaluate is the evaluation of step 3, with the egress policy of n.sender. The rule is the one
// that allowed last, 0 when no policy applied.
func (n *Node) evaluate(src, dst netip.Addr, proto model.Protocol, sport, dport uint16) (nodestate.RuleID, *dropped) {
	e := n.about(flowKey{src: src, dst: dst, sport: sport, dport: dport, proto: proto})
	if src == dst {
		return 0, nil
	}
	ports := nodestate.Ports{Src: sport, Dst: dport}
	if proto == icmpOf(src) {
		ports = nodestate.Ports{Dst: message(sport, dport)}
	}
	a, b := n.state.Addrs[n.sender], n.state.Addrs[dst]
	e.Egress.Local, e.Ingress.Local = a.Kind == nodestate.AddrEndpoint, b.Kind == nodestate.AddrEndpoint
	n.stage(e, ports)
	rule := nodestate.RuleID(0)
	if a.Kind == nodestate.AddrEndpoint && a.Egress.Set != 0 {
		v, _ := n.state.DecideNamed(a.Egress, n.told[told{a.IfIndex, dst}], dst, proto, ports)
		e.Egress.Rule, e.Log = v.Rule, e.Log || v.Log
		if !v.Allow {
			return v.Rule, &dropped{reason: reason.PolicyEgress, rule: v.Rule}
		}
		rule = v.Rule
	}
	if b.Kind == nodestate.AddrEndpoint && b.Ingress.Set != 0 && a.Kind != nodestate.AddrHost {
		v := n.state.Decide(b.Ingress, src, proto, ports)
		e.Ingress.Rule, e.Log = v.Rule, e.Log || v.Log
		if !v.Allow {
			return v.Rule, &dropped{reason: reason.PolicyIngress, rule: v.Rule}
		}
		rule = v.Rule
	}
	return rule, nil
}

// message is the type * 256 + the code of the ICMP messages of a flow, by the distance of what
// represents their ports: that of a query is its type, that of an answer the opposite, and of a
// message of one way packet.OneWay.
func message(sport, dport uint16) uint16 {
	switch beyond, before := dport-sport, sport-dport; {
	case beyond == packet.OneWay:
		return sport
	case beyond <= 0xff:
		return beyond << 8
	default:
		return uint16(packet.AnswerType(uint8(before))) << 8
	}
}
