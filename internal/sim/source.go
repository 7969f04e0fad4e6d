// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// originKind says how the packets of an entry come from outside.
type originKind uint8

const (
	originUnknown  originKind = iota // the next packet is checked against the tables
	originAnywhere                   // the source is outside of the cluster
	originLink                       // from a MAC address
	originTunnel                     // from an outer address
	originRouter                     // by an uplink, from whichever MAC address
	originStack                      // of this node's own stack
)

// origin is where the packets of an entry come from, but for those of this node's pods (flow.iif).
type origin struct {
	kind    originKind
	mac     packet.MAC
	outer   netip.Addr
	entered int // originStack: In.Entered
}

func fromOutside(in In) bool { return in.Hook == FromUplink || in.Hook == FromTunnel }

// fits reports whether a packet that no pod sent here comes as its flow's packets come.
func (o origin) fits(in In) bool {
	switch {
	case !fromOutside(in):
		return o.kind == originStack && o.entered == in.Entered
	case o.kind == originAnywhere:
		return true
	case in.Hook == FromTunnel:
		return o.kind == originTunnel && o.outer == in.Source
	}
	return o.kind == originRouter || o.kind == originLink && o.mac == in.Packet.SrcMAC
}

// forgesTunnel reports whether a packet of the tunnel bears a node's address and was sent by
// another machine on the link.
func (n *Node) forgesTunnel(in In, k flowKey) bool {
	a := n.state.Addrs[k.src]
	return in.Hook == FromUplink && in.Packet.Kind != packet.Error && k.proto == model.ProtocolUDP && k.dport == n.state.Settings.Tunnel.Port &&
		n.kind(k.dst) == nodestate.AddrHost && a.Kind == nodestate.AddrNode && a.SameLink && a.MAC != [6]byte{} && packet.MAC(a.MAC) != in.Packet.SrcMAC
}

// claim is what an entry says of who may send its packets: the Service, its backend, and whether
// they are answers.
type claim struct {
	service, reply, handOn bool
	led                    bool // a program leads the flow elsewhere, not to the stack
	backend                netip.Addr
}

// claim of the entry.
func (f *flow) claim() claim {
	return claim{service: f.svc.Proto != 0, reply: f.reply, handOn: f.handOn, led: f.path.action != Pass, backend: f.backend.Addr}
}

// owner is whose packets those of a flow must be.
type owner struct {
	node             netip.Addr // invalid: nobody's who is reached by an uplink or the tunnel
	sameLink, tunnel bool
	outside          bool // of somebody outside of the cluster
	itself           bool // of the node itself, not of its pods
	handed           bool // handed on by the node, or an answer to what was handed on to it
}

func (n *Node) ownerOf(k flowKey, c claim) owner {
	answer, who := c.handOn && c.reply, k.src
	if answer {
		who = c.backend
	}
	a, known := n.state.Addrs[who]
	of := func(a nodestate.Addr) owner { return owner{node: a.Node, sameLink: a.SameLink, tunnel: a.Tunnel} }
	switch {
	case a.Kind == nodestate.AddrHost || a.Kind == nodestate.AddrEndpoint:
		return owner{}
	case known && (answer || a.Kind == nodestate.AddrPod):
		o := of(a)
		o.handed = answer
		return o
	case !known:
		if r, ok := n.state.RouteTo(who); ok {
			return owner{node: r.Node, sameLink: r.SameLink, tunnel: r.Tunnel, handed: answer}
		}
		if answer {
			return owner{}
		}
	}
	if b := n.state.Addrs[k.dst]; c.service && !c.reply && b.Kind == nodestate.AddrNode {
		o := of(b)
		o.handed = true
		return o
	}
	if !known {
		return owner{outside: true}
	}
	o := of(a)
	o.itself = true
	return o
}

// checkSource reports whether a packet from outside may come from there by the tables, and how the
// flow's packets come then.
func (n *Node) checkSource(in In, k flowKey, c claim) (origin, bool) {
	o := n.ownerOf(k, c)
	anywhere := origin{kind: originAnywhere}
	if o.outside {
		return anywhere, true
	}
	if !o.node.IsValid() {
		return origin{}, false
	}
	request := o.itself && c.service && !c.reply // a node's own, which another node may hand on
	if in.Hook == FromTunnel {
		if in.Source != o.node {
			return anywhere, request
		}
		return origin{kind: originTunnel, outer: o.node}, true
	}
	toHost := !c.service && !c.led && n.kind(k.dst) == nodestate.AddrHost
	if o.itself && toHost {
		return anywhere, true
	}
	router := origin{kind: originRouter}
	if !o.sameLink {
		return router, !o.handed && (!o.tunnel || toHost)
	}
	node := n.state.Addrs[o.node]
	switch {
	case node.Kind != nodestate.AddrNode, node.MAC == [6]byte{}, o.itself && k.src != o.node:
		return router, true
	case packet.MAC(node.MAC) != in.Packet.SrcMAC:
		_, known := n.links[in.Packet.SrcMAC]
		return anywhere, request && known
	}
	return origin{kind: originLink, mac: in.Packet.SrcMAC}, true
}

// checkEntered reports whether what the stack sends on may have come into the node by the interface
// by which it did, and how the flow's packets come then. What came by weir0, the tunnel or an
// uplink was looked at there. An address of the node itself may come by any other: its own
// masquerading puts it there.
func (n *Node) checkEntered(in In, k flowKey) (origin, bool) {
	from := origin{kind: originStack, entered: in.Entered}
	_, uplink := n.opts.Uplinks[in.Entered]
	if uplink || in.Entered == 0 || in.Entered == n.opts.HostIfIndex || in.Entered == n.opts.TunnelIfIndex {
		return from, true
	}
	a, known := n.state.Addrs[k.src]
	node, learned := a.Node, a.Learned
	switch {
	case a.Kind == nodestate.AddrEndpoint:
		return from, a.IfIndex == in.Entered
	case known && a.Kind != nodestate.AddrPod:
		return from, true
	case !known:
		r, ok := n.state.RouteTo(k.src)
		if !ok {
			return from, true
		}
		if node, learned = r.Node, r.Learned; !node.IsValid() {
			return origin{}, false
		}
	}
	if w, ok := n.fib(k.src); learned && ok {
		return from, w.ifindex == in.Entered
	}
	hop, ok := n.opts.FIB(node)
	return from, ok && hop.IfIndex == in.Entered
}

// keepsSource checks where a packet of an open flow comes from; a change of the tables, or of the
// path that it comes, lets the tables decide again.
func (n *Node) keepsSource(f *flow, in In, k flowKey) bool {
	if in.Hook == FromWorkload || f.epoch == n.epoch && f.origin.fits(in) {
		return true
	}
	var from origin
	var ok bool
	if fromOutside(in) {
		from, ok = n.checkSource(in, k, f.claim())
	} else {
		from, ok = n.checkEntered(in, k)
	}
	if ok {
		f.origin = from
	}
	return ok
}

// moved reports whether the source of a packet of an open flow has come to the pod of this node
// that sends it, or gone to another node, since the flow was evaluated.
func (n *Node) moved(f *flow, in In, k flowKey) bool {
	if f.epoch == n.epoch {
		return false
	}
	if fromOutside(in) {
		return n.kind(k.src) == nodestate.AddrPod
	}
	return in.Hook == FromWorkload && f.iif == 0 && n.owns(in.IfIndex, k.src)
}
