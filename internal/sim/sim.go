// SPDX-License-Identifier: Apache-2.0

// Package sim is the oracle: given the state of one node and a packet at one of its hooks, it says
// what becomes of the packet, in plain Go over the plain tables. It implements
// docs/design/datapath.md, as the eBPF programs do, and shares no code with them: where the two
// differ, one of them is wrong.
package sim

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// Hook is where a packet meets the data plane; docs/design/datapath.md lists them.
type Hook int

// The hooks. ToUplink is also that of the host device weir0.
const (
	FromWorkload Hook = iota
	ToWorkload
	FromUplink
	ToUplink
	FromTunnel
)

func (h Hook) String() string {
	return [...]string{"from_workload", "to_workload", "from_uplink", "to_uplink", "from_tunnel"}[h]
}

// Action is what is done with a packet.
type Action int

// The actions. All but Drop and Answer equal enum flow_action of the programs.
const (
	Pass   Action = iota // left to the kernel's stack
	Local                // to the pod behind IfIndex
	Neigh                // out of IfIndex, to the neighbour NextHop
	Tunnel               // encapsulated, to the node NextHop
	Drop
	Answer // dropped, and Packet, made by the node itself, goes back by the path that the packet came
	Keep   // waits for the first fragment of its packet
)

func (a Action) String() string {
	return [...]string{"pass", "local", "neigh", "tunnel", "drop", "answer", "keep"}[a]
}

// In is a packet at a hook.
type In struct {
	Hook    Hook
	IfIndex int // of the hook's interface
	Packet  *packet.Packet
	Marked  bool       // carries MARK_DONE: this node's programs sent it on already
	Source  netip.Addr // FromTunnel: outer source
	VNI     uint32     // FromTunnel
	IPIP    bool       // FromTunnel: by IP in IP, unpacked at the uplink IfIndex
	Again   bool       // a fragment that was kept, on its second pass
	Other   bool       // FromUplink: the frame is for another machine's MAC address, whatever it looks like here
	// Entered is, for ToWorkload and ToUplink, the interface by which the packet came into the
	// node. 0: it begins in the node.
	Entered int
}

// Result is what became of a packet.
type Result struct {
	Action  Action
	Packet  *packet.Packet // as it goes on; as it came when dropped
	IfIndex int            // Local, Neigh, Answer but for one through VXLAN; Tunnel by IP in IP: the uplink
	NextHop netip.Addr     // Neigh, Tunnel, Answer through the tunnel
	MAC     packet.MAC     // Local: of the pod
	Marked  bool           // Pass: carries MARK_DONE: the stack only has to fragment and route it
	Reason  reason.Reason  // Drop, Answer
	Rule    nodestate.RuleID
	Again   []In // fragments that waited for this first one: they come in again
	Events  []Event
}

// String writes everything but the packet.
func (r Result) String() string {
	s := r.Action.String()
	switch r.Action {
	case Local:
		s += fmt.Sprintf(" if%d", r.IfIndex)
	case Neigh:
		s += fmt.Sprintf(" if%d %s", r.IfIndex, r.NextHop)
	case Tunnel:
		s += " " + r.NextHop.String()
		if r.IfIndex != 0 {
			s += fmt.Sprintf(" ipip if%d", r.IfIndex)
		}
	case Drop:
		s += " " + r.Reason.String()
	case Answer:
		if r.NextHop.IsValid() {
			s += " " + r.NextHop.String()
		} else {
			s += fmt.Sprintf(" if%d", r.IfIndex)
		}
		s += " " + r.Reason.String()
	}
	if r.Marked {
		s += " marked"
	}
	if r.Rule != 0 {
		s += fmt.Sprintf(" rule=%d", r.Rule)
	}
	return s
}

// Hop is an answer of the kernel's routing.
type Hop struct {
	IfIndex int
	Gateway netip.Addr // invalid = on-link
	MTU     int        // of the route, bytes; 0 = not known
}

// Choice is a choice of a backend that is made at random.
type Choice struct {
	Service nodestate.Service
	Client  netip.Addr // invalid for a socket of an unknown pod
	From    []nodestate.Backend
}

// shape is step 0: what kind of packet this is.
type shape int

const (
	shapeOK shape = iota
	shapeARP
	shapeForeign
	shapeMalformed
	shapeBadFragment
	shapeFragment
	shapeCast
	shapeLink // of IPv6: neighbour discovery, reports of listeners
)

func (n *Node) shapeOf(p *packet.Packet, h Hook) shape {
	if p.Type == packet.TypeIPv6 && !n.state.Settings.IPv6 {
		return shapeForeign
	}
	if p.Kind == packet.Frame {
		switch p.Type {
		case packet.TypeARP:
			return shapeARP
		case packet.TypeIPv4, packet.TypeIPv6:
			return shapeMalformed
		}
		return shapeForeign
	}
	if s := linkOf(p, h); s != shapeOK {
		return s
	}
	if p.IP.Dst.IsMulticast() || p.IP.Dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return shapeCast
	}
	hidden, fragment := chainOf(&p.IP)
	switch {
	case hidden && fragment:
		return shapeBadFragment
	case hidden:
		return shapeMalformed
	case fragment:
		return shapeFragment
	}
	if p.Kind == packet.Error {
		if hidden, _ := chainOf(&p.Quote.IP); hidden || p.Quote.IP.Offset != 0 {
			return shapeMalformed
		}
	}
	if p.Kind == packet.Other {
		n := len(p.Payload)
		switch p.IP.Proto {
		case packet.ProtoTCP:
			if n < 20 {
				return shapeMalformed
			}
		case packet.ProtoUDP:
			if n < 8 {
				return shapeMalformed
			}
		case packet.ProtoSCTP:
			if n < 12 {
				return shapeMalformed
			}
		case packet.ProtoICMP:
			// an error that parsed would be one
			if p.IP.Src.Is4() && (n < 8 || packet.IsError(&p.IP, p.Payload[0])) {
				return shapeMalformed
			}
		case packet.ProtoICMPv6:
			if p.IP.Src.Is6() && (n < 8 || packet.IsError(&p.IP, p.Payload[0])) {
				return shapeMalformed
			}
		}
	}
	return shapeOK
}

// Receive says what becomes of a packet, and remembers what a node remembers. in.Packet stays as it
// is.
func (n *Node) Receive(in In) Result {
	n.events = nil
	n.alone, n.unseen = false, false
	r := n.leave(in, n.receive(in))
	r.Events, n.events = n.events, nil
	return r
}

func (n *Node) receive(in In) Result {
	if in.Hook == ToUplink && n.goesAlone(in) {
		if d := n.evaluateLeaving(in, in.IfIndex, in.Packet); d != nil {
			return drop(in, *d)
		}
	}
	if in.Marked && (in.Hook == ToWorkload || in.Hook == ToUplink) {
		return Result{Action: Pass, Packet: in.Packet}
	}
	if in.Hook == FromUplink && n.elsewhere(in) {
		return Result{Action: Pass, Packet: in.Packet}
	}
	if in.Hook == FromTunnel && isTagged(in.Packet) {
		return drop(in, dropped{reason: reason.VLAN})
	}
	if in.Hook == FromTunnel && !in.Again && !in.IPIP {
		a, ok := n.state.Addrs[in.Source]
		six := in.Packet.Type == packet.TypeIPv6 && n.state.Settings.IPv6
		if !ok || in.Source.Is6() != six || a.Kind != nodestate.AddrNode || in.VNI != n.state.Settings.Tunnel.VNI {
			return drop(in, dropped{reason: reason.TunnelSource})
		}
	}
	switch s := n.shapeOf(in.Packet, in.Hook); s {
	case shapeOK:
		if n.unpacks(in) {
			return n.unpack(in)
		}
		return n.whole(in)
	case shapeFragment, shapeBadFragment:
		return n.fragment(in, s == shapeBadFragment)
	default:
		return n.odd(in, s)
	}
}

// whole is what becomes of a packet that a flow can be made of.
func (n *Node) whole(in In) Result {
	r, d := n.process(in)
	if d != nil {
		return n.refuse(in, *d)
	}
	return r
}

func drop(in In, d dropped) Result {
	return Result{Action: Drop, Packet: in.Packet, Reason: d.reason, Rule: d.rule}
}

// odd deals with what no flow can be made of.
func (n *Node) odd(in In, s shape) Result {
	if in.Hook == FromWorkload {
		switch s {
		case shapeARP, shapeLink:
			if a := senderOf(in.Packet); a.IsValid() && !a.IsUnspecified() && !n.owns(in.IfIndex, a) {
				return drop(in, dropped{reason: reason.Spoofed})
			}
			return Result{Action: Pass, Packet: in.Packet}
		case shapeForeign:
			return drop(in, dropped{reason: foreignReason(in.Packet)})
		case shapeCast:
			return drop(in, dropped{reason: reason.NoRoute})
		}
		return drop(in, dropped{reason: reason.Malformed})
	}
	toPod := in.Hook == ToWorkload || in.Packet.Kind != packet.Frame && n.kind(in.Packet.IP.Dst) == nodestate.AddrEndpoint
	if s == shapeMalformed && (toPod || n.guarded(in) || n.ledOn(in)) {
		return drop(in, dropped{reason: reason.Malformed})
	}
	outside := in.Hook == FromUplink || in.Hook == FromTunnel
	if (s == shapeLink || s == shapeCast) && outside && toPod {
		return drop(in, dropped{reason: reason.NoRoute})
	}
	answer := map[shape]func(In) (Result, bool){shapeARP: n.neighbour, shapeLink: n.solicited}[s]
	if answer != nil {
		if r, ok := answer(in); ok {
			return r
		}
	}
	return Result{Action: Pass, Packet: in.Packet}
}

// kind returns whose an address is, 0 when it is nobody's that the node knows.
func (n *Node) kind(a netip.Addr) nodestate.AddrKind { return n.state.Addrs[a].Kind }

// process is steps 1 to 4 for a packet that a flow can be made of.
func (n *Node) process(in In) (Result, *dropped) {
	p := in.Packet
	isError := p.Kind == packet.Error
	key := keyOf(p)
	n.evaluated, n.again, n.service = nil, false, nodestate.Frontend{}
	if d := n.evaluateUntracked(in); d != nil {
		return Result{}, d
	}
	if in.Hook == FromWorkload && !isError && n.tunnels(key.proto, key.dst, key.dport) {
		return Result{}, &dropped{reason: reason.TunnelFromPod}
	}
	f, half := n.find(key)
	if (f == nil || half) && n.foreign(in, key) {
		return Result{Action: Pass, Packet: p}, nil
	}
	opening := !isError && connects(key.proto) && lifeFlags(p)&(packet.SYN|packet.ACK) == packet.SYN
	if f != nil && !n.usable(f, enters(f, in) || !isError && n.moved(f, in, key), key, opening) {
		if n.state.Settings.HandOver && opening && f.closing && !f.reset && enters(f, in) {
			n.end(f, key)
		}
		f = nil
	}
	if f != nil && isError && n.spoofs(in, key) {
		return Result{}, &dropped{reason: reason.Spoofed}
	}
	if f != nil && !isError && !n.keepsSource(f, in, key) {
		return Result{}, &dropped{reason: reason.Spoofed}
	}
	if f != nil && !enters(f, in) { // its source has moved
		if f.iif = 0; in.Hook == FromWorkload {
			f.iif, f.origin = in.IfIndex, origin{}
		}
	}
	if f != nil && f.epoch != n.epoch && !passes(in, f) {
		if n.alone && n.plain(f, key) {
			n.unseen = true
			return Result{Action: Pass, Packet: p}, nil
		}
		was := f.epoch
		again, d := n.revalidate(f, in, key)
		if isError && n.asksAlone(in) {
			f.epoch = was
		}
		if !again {
			n.reportEvent(in, d)
		}
		if d != nil {
			d.reset = (f.replied || f.answered) && denies(d.reason) && d.reason != reason.UntrackedIngress && d.reason != reason.UntrackedEgress
			return Result{}, d
		}
		if again {
			f = nil
		}
	}
	if f == nil {
		if n.state.Settings.HandOver {
			return Result{Action: Pass, Packet: p}, nil
		}
		if isError {
			return n.stray(in)
		}
		f, d := n.begin(in, key, opening)
		n.reportEvent(in, d)
		if d != nil {
			return Result{}, d
		}
		if f == nil {
			return Result{Action: Pass, Packet: p}, nil
		}
		return n.send(in, key, f, false)
	}
	if !isError {
		n.touch(f, key, in, half)
	}
	return n.send(in, key, f, isError)
}

// spoofs reports whether an ICMP error about a flow cannot come from where it says.
func (n *Node) spoofs(in In, key flowKey) bool {
	src := in.Packet.IP.Src
	switch in.Hook {
	case FromWorkload:
		return !n.owns(in.IfIndex, src)
	case FromUplink, FromTunnel:
		return src != key.src && (n.kind(src) == nodestate.AddrHost || n.kind(src) == nodestate.AddrEndpoint)
	}
	return false
}

// owns reports whether addr is that of the pod behind an interface.
func (n *Node) owns(ifindex int, addr netip.Addr) bool {
	a, ok := n.state.Addrs[addr]
	return ok && a.Kind == nodestate.AddrEndpoint && a.IfIndex == ifindex
}

// send is step 4.
func (n *Node) send(in In, key flowKey, f *flow, isError bool) (Result, *dropped) {
	p := in.Packet.Clone()
	routed := f.path.action != Pass && in.Hook != ToUplink && in.Hook != ToWorkload
	if routed && p.IP.TTL <= 1 {
		return Result{}, &dropped{reason: reason.TTL}
	}
	size := whole
	if f.path.action != Pass && in.Hook != ToWorkload {
		size = n.fits(in, f)
	}
	if size == tooBig {
		return Result{}, &dropped{reason: reason.TooBig, mtu: f.path.mtu}
	}
	if f.clamp && !isError && p.Kind == packet.TCP && p.Flags&packet.SYN != 0 {
		clampMSS(p, n.segmentMTU(p.IP.Src))
	}
	switch {
	case isError:
		p.Quote.Rewrite(f.dst, f.src, f.dport, f.sport)
		if p.IP.Src == key.src {
			p.IP.Src = f.src
		}
		p.IP.Dst = f.dst
	case f.rewrite && unmendable(in.Packet, f):
		return Result{}, &dropped{reason: reason.FragmentBad}
	case f.rewrite:
		p.Rewrite(f.src, f.dst, f.sport, f.dport)
	}
	if in.Hook == ToWorkload {
		return Result{Action: Pass, Packet: p, Rule: f.rule}, nil
	}
	r := Result{Action: f.path.action, Packet: p, Rule: f.rule}
	if r.Action == Pass {
		return r, nil
	}
	if f.stack && in.Hook != ToUplink {
		return Result{Action: Pass, Packet: p, Rule: f.rule, Marked: true}, nil
	}
	if size == inPieces {
		return Result{Action: Pass, Packet: p, Rule: f.rule, Marked: true}, nil
	}
	if routed {
		p.IP.TTL--
	}
	switch r.Action {
	case Local:
		r.IfIndex, r.MAC = f.path.ifindex, f.path.mac
		p.DstMAC, p.SrcMAC = f.path.mac, packet.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	case Neigh:
		r.IfIndex, r.NextHop = f.path.ifindex, f.path.next
	case Tunnel:
		if n.opts.NoTunnel && f.path.ifindex == 0 {
			return Result{}, &dropped{reason: reason.NoRoute}
		}
		r.IfIndex, r.NextHop = f.path.ifindex, f.path.next
	}
	return r, nil
}

// Same reports whether both nodes remember the same, so that they do the same with all that comes.
func (n *Node) Same(o *Node) bool {
	return n.epoch == o.epoch && reflect.DeepEqual(n.flows, o.flows) && reflect.DeepEqual(n.half, o.half) && maps.Equal(n.affinity, o.affinity) &&
		maps.Equal(n.tries, o.tries) && maps.Equal(n.fallen, o.fallen) && maps.Equal(n.sockets, o.sockets) && reflect.DeepEqual(n.chosen, o.chosen) &&
		reflect.DeepEqual(n.firsts, o.firsts) && reflect.DeepEqual(n.kept, o.kept)
}
