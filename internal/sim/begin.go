// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// begin is step 2 and 3 for a packet without a usable flow. It returns the entry of the packet's
// direction, or nil when the packet passes without a flow.
func (n *Node) begin(in In, k flowKey, opening bool) (*flow, *dropped) {
	now := n.opts.Now()
	fwd := &flow{epoch: n.epoch, seen: now, src: k.src, dst: k.dst, sport: k.sport, dport: k.dport}
	rev := &flow{epoch: n.epoch, seen: now, reply: true, src: k.dst, dst: k.src, sport: k.dport, dport: k.sport}
	outside := in.Hook == FromUplink || in.Hook == FromTunnel
	a := n.state.Addrs[k.src]
	n.sender = k.src
	if in.Hook == FromWorkload {
		if !n.owns(in.IfIndex, k.src) {
			if n.sender = n.state.SendsAs(in.IfIndex, k.src); !n.sender.IsValid() {
				return nil, &dropped{reason: reason.Spoofed}
			}
			a = n.state.Addrs[n.sender]
			fwd.granted = true
		}
		if aboutListeners(in.Packet) {
			return nil, &dropped{reason: reason.NoRoute}
		}
		fwd.iif = in.IfIndex
	} else if outside && (a.Kind == nodestate.AddrHost || a.Kind == nodestate.AddrEndpoint) {
		return nil, &dropped{reason: reason.Spoofed}
	} else if !outside {
		var ok bool
		if fwd.origin, ok = n.checkEntered(in, k); !ok {
			return nil, &dropped{reason: reason.Spoofed}
		}
	}
	if n.forgesTunnel(in, k) {
		return nil, &dropped{reason: reason.TunnelSource}
	}
	if outside && k.dst.IsLoopback() {
		return nil, &dropped{reason: reason.NoRoute}
	}
	if n.strays(in) {
		return nil, &dropped{reason: reason.ReversePath}
	}

	if n.hosts() && n.betweenNodes(k) && in.Packet.Kind != packet.Error {
		return nil, nil
	}
	if d := n.evaluateArrival(in, k); d != nil {
		return nil, d
	}
	var lb balanced
	n.service = lb.id
	if !n.goesOn(in, k, opening) {
		var d *dropped
		lb, d = n.balance(in, k)
		n.service = lb.id
		if d != nil {
			return nil, d
		}
	}
	if lb.found {
		fwd.svc, fwd.backend, fwd.rule = lb.id, lb.backend, lb.rule
		if !lb.home.IsValid() {
			fwd.dst, fwd.dport = lb.backend.Addr, lb.backend.Port
		}
	}
	if lb.floats {
		fwd.dst = lb.backend.Addr
	}
	if n.leadsToTunnel(in, fwd) {
		return nil, &dropped{reason: reason.TunnelFromPod, rule: fwd.rule}
	}
	b := n.state.Addrs[fwd.dst]
	if n.state.Settings.Chained && in.Hook == ToWorkload && !n.owns(in.IfIndex, fwd.dst) {
		return nil, &dropped{reason: reason.NoEndpoint}
	}
	gateway := n.leavesByGateway(in, k.src, fwd.dst, lb.found)
	own := !lb.found && !gateway && (outside && b.Kind != nodestate.AddrEndpoint || in.Hook == ToUplink && in.IfIndex != n.opts.HostIfIndex)
	if outside && (!own || n.hosts() || in.Hook == FromTunnel || b.Kind != nodestate.AddrHost) {
		var ok bool
		if fwd.origin, ok = n.checkSource(in, k, claim{service: lb.found}); !ok {
			return nil, &dropped{reason: reason.Spoofed}
		}
	}
	if own && (!n.hosts() || n.alone && a.Kind != nodestate.AddrEndpoint) {
		return nil, nil
	}
	known := lb.maglev && lb.home.IsValid() // in the middle of a flow: the backend's node may know it
	if (connects(k.proto) && !opening || isAnswer(in.Packet)) && !known && (lb.found || lb.floats || isolated(a) || isolated(b)) {
		return nil, &dropped{reason: reason.NoFlow, rule: fwd.rule}
	}

	if lb.home.IsValid() {
		fwd.handOn, rev.handOn = true, true
		fwd.clamp = lb.tunnel
		w, ok := n.toNode(lb.home, handedOn(!lb.tunnel))
		if !ok {
			return nil, &dropped{reason: reason.NoRoute, rule: fwd.rule}
		}
		fwd.path = w
	} else if d := n.evaluateAndRoute(in, k, fwd, own, gateway); d != nil {
		return nil, d
	}
	snat := !gateway && !fwd.handOn && n.mustTranslateSource(in, a, fwd, lb.found, lb.floats)
	if snat {
		fwd.src = n.self(k.src)
	} else if gateway {
		snat = fwd.src != k.src
	} else if n.leavesToStack(in, fwd) {
		fwd.stack, rev.stack = true, true
	}
	if unseen, d := n.evaluateHostNew(in, k, fwd, rev, opening); d != nil || unseen {
		return nil, d
	}
	if own && lifeFlags(in.Packet)&packet.RST != 0 {
		n.evaluated = nil
		return nil, nil // nothing begins with it
	}
	repoint := lb.found && !fwd.handOn && n.untracked(in, fwd)
	if !n.pickPort(in, k, fwd, snat || repoint) {
		fwd.sport = k.sport
		if !repoint || !n.pickPort(in, k, fwd, false) {
			return nil, &dropped{reason: reason.NoPort, rule: fwd.rule}
		}
	}
	fwd.rewrite = fwd.src != k.src || fwd.dst != k.dst || fwd.sport != k.sport || fwd.dport != k.dport
	rev.rewrite = fwd.rewrite
	rev.clamp = lb.via.IsValid() && in.Hook == FromTunnel
	rev.rule, rev.svc, rev.backend = fwd.rule, fwd.svc, fwd.backend
	if b.Kind == nodestate.AddrEndpoint && !fwd.handOn {
		rev.iif = b.IfIndex
	}
	if own && n.stackRoutes(k.src) {
		rev.path.action = Pass
	} else if !n.returnPath(in, k, lb, fwd, rev) {
		return nil, &dropped{reason: n.whyNoReturnPath(k, lb.via), rule: fwd.rule}
	}
	if in.Hook == FromWorkload && n.spent(k.src) {
		return nil, &dropped{reason: reason.Share}
	}
	if lb.watch && outside && !fwd.handOn && !fwd.dsr && (fwd.path.action == Local || fwd.path.action == Pass) {
		fwd.watched, fwd.from = true, lb.via
	}
	n.enter(in.Hook == ToUplink && (lb.found || !n.hosts()), k, fwd, rev)
	return fwd, nil
}

// goesOn: is the packet, which no flow has, of a connection of the host's own that is open? By
// weir0 goes what began with a Service.
func (n *Node) goesOn(in In, k flowKey, opening bool) bool {
	return in.Hook == ToUplink && in.IfIndex != n.opts.HostIfIndex && connects(k.proto) && !opening && n.kind(k.src) == nodestate.AddrHost
}

func isolated(a nodestate.Addr) bool {
	return a.Kind == nodestate.AddrEndpoint && (a.Ingress.Set != 0 || a.Egress.Set != 0)
}

// evaluateAndRoute is step 3 for a flow that is not handed on.
func (n *Node) evaluateAndRoute(in In, k flowKey, fwd *flow, own, gateway bool) *dropped {
	rule, d := n.evaluate(k.src, fwd.dst, k.proto, k.sport, fwd.dport)
	if d != nil {
		return d
	}
	if rule != 0 {
		fwd.rule = rule
	}
	if in.Hook == ToWorkload || own {
		return nil // Pass
	}
	if gateway {
		return n.leadToGateway(in, k, fwd)
	}
	w, ok, why := n.route(fwd.dst)
	if !ok {
		return &dropped{reason: why}
	}
	fwd.path = w
	return nil
}

// mustTranslateSource: does the packet leave with the node's address?
func (n *Node) mustTranslateSource(in In, a nodestate.Addr, fwd *flow, service, floats bool) bool {
	if (service || floats) && in.Hook == FromWorkload && fwd.dst == in.Packet.IP.Src {
		return true // a pod refuses packets from its own address
	}
	if !n.leavesPods(in, fwd) {
		return false
	}
	switch in.Hook {
	case FromWorkload:
		_, inRoute := n.state.RouteTo(fwd.dst)
		b := n.state.Addrs[fwd.dst]
		return a.NATOutgoing && !fwd.granted && b.Kind != nodestate.AddrPod && !b.KeepSource && !inRoute
	case FromUplink, FromTunnel:
		return service // the backend lives on no node, and must answer to us
	}
	return false
}

// leavesToStack: does another CNI plugin's network carry the flow out of the node?
func (n *Node) leavesToStack(in In, fwd *flow) bool {
	_, inRoute := n.state.RouteTo(fwd.dst)
	return n.state.Settings.Chained && in.Hook == FromWorkload && !fwd.handOn && fwd.path.action == Neigh && n.kind(fwd.dst) != nodestate.AddrPod && !inRoute
}

// untracked: may a direct connection between the same ends exist, of which there is no flow? Those
// of the host's own to other hosts, and those from outside to the host's own ports have none.
func (n *Node) untracked(in In, fwd *flow) bool {
	switch in.Hook {
	case FromUplink, FromTunnel:
		return fwd.path.action == Pass
	case ToUplink:
		_, inRoute := n.state.RouteTo(fwd.dst)
		return n.leavesPods(in, fwd) && n.kind(fwd.dst) != nodestate.AddrPod && !inRoute
	}
	return false
}

// leavesPods: does the packet leave the node by the link, or for another node itself, which may be
// reached through the tunnel?
func (n *Node) leavesPods(in In, fwd *flow) bool {
	return fwd.path.action == Neigh || fwd.path.action == Tunnel && !fromOutside(in) && n.kind(fwd.dst) == nodestate.AddrNode
}

// pickPort makes the reply key unique by the source port. must: a port of the range is taken in any
// case.
func (n *Node) pickPort(in In, k flowKey, fwd *flow, must bool) bool {
	if !must && n.replyFree(k, fwd) {
		return true
	}
	if !hasPorts(k.proto) && !isQuery(in.Packet) {
		return must && n.replyFree(k, fwd)
	}
	first, last := n.state.Settings.SNATFirst, n.state.Settings.SNATLast
	if last < first {
		return false
	}
	var pod netip.Addr
	if (in.Hook == FromWorkload || fwd.gateway) && !n.opts.Undivided {
		pod = k.src
	}
	own := -1
	outside := !n.opts.Undivided && !pod.IsValid() && (in.Hook == FromUplink || in.Hook == FromTunnel)
	for _, port := range n.portsFor(first, last, pod, outside) {
		n.setPort(k, fwd, port)
		if n.replyFree(k, fwd) {
			return true
		}
		if f := n.half[fwd.partner(k.proto)]; own < 0 && pod.IsValid() && f != nil && n.flows[fwd.partner(k.proto)] == nil && f.reply && f.dst == pod {
			own = int(port)
		}
	}
	if own < 0 {
		return false
	}
	n.setPort(k, fwd, uint16(own))
	r := fwd.partner(k.proto)
	delete(n.half, n.half[r].partner(k.proto))
	delete(n.half, r)
	return true
}

// setPort gives a flow a source port; an ICMP query has the identifier in both ports.
func (n *Node) setPort(k flowKey, fwd *flow, port uint16) {
	fwd.sport = port
	if !hasPorts(k.proto) {
		fwd.dport = port + k.dport - k.sport
	}
}

// replyFree: does no other live flow own the reply's key?
func (n *Node) replyFree(k flowKey, fwd *flow) bool {
	f, _ := n.find(fwd.partner(k.proto))
	if f == nil || n.expired(f, k.proto) || f.closing {
		return true
	}
	return f.partner(k.proto) == k
}

// stackRoutes: does the host's stack route there by itself, and not to weir0?
func (n *Node) stackRoutes(dst netip.Addr) bool {
	_, inRoute := n.state.RouteTo(dst)
	return !inRoute && n.kind(dst) != nodestate.AddrPod
}

// returnPath finds the path of the replies, from the address that was asked to the one that asked.
func (n *Node) returnPath(in In, k flowKey, lb balanced, fwd, rev *flow) bool {
	ok, via := true, lb.via
	switch {
	case in.Hook == ToWorkload || in.Hook == ToUplink:
		rev.path = path{action: Pass}
	case lb.dsr && !n.refusesDSR(k.src) && !n.failedDSR(k):
		fwd.dsr, rev.dsr = true, true
		rev.path, ok = n.fib(k.src)
	case via.IsValid():
		rev.viaNode = true
		rev.path, ok = n.toNode(via, handedOn(n.state.Addrs[via].SameLink))
	case in.Hook == FromTunnel && n.kind(k.src) == nodestate.AddrNode:
		rev.viaNode = true
		rev.path, ok = n.toNode(in.Source, byTunnel)
	default:
		rev.path, ok, _ = n.route(k.src)
	}
	return ok
}

func (n *Node) whyNoReturnPath(k flowKey, via netip.Addr) reason.Reason {
	if via.IsValid() {
		return reason.NoRoute
	}
	_, _, why := n.route(k.src)
	return why
}

// enter writes both entries, and forgets what an ended flow of the same packets left. proven: they
// need not prove that they are answered, as what the node itself asks of Services.
func (n *Node) enter(proven bool, k flowKey, fwd, rev *flow) {
	if old := n.flows[k]; old != nil {
		forget(n.flows, old, k)
	}
	r := fwd.partner(k.proto)
	if proven {
		n.flows[r], n.flows[k] = rev, fwd
		return
	}
	delete(n.flows, r)
	n.half[r], n.half[k] = rev, fwd
}

// aboutListeners reports whether a packet is about groups that somebody listens to: IGMP, and what
// ICMPv6 has of it.
func aboutListeners(p *packet.Packet) bool {
	if p.IP.Src.Is4() {
		return p.IP.Proto == protoIGMP
	}
	if p.Kind != packet.Other || p.IP.Proto != packet.ProtoICMPv6 || p.IP.Offset != 0 || len(p.Payload) == 0 {
		return false
	}
	t := p.Payload[0]
	return t >= 130 && t <= 132 || t == 143
}

const protoIGMP = 2
