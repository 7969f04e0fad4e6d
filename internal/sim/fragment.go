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

// fragmentKey names the fragments of one packet at one hook.
type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
	proto    uint8
	hook     Hook
	iif      int // FromWorkload
}

// firstFragment is what the first fragment of a packet said.
type firstFragment struct {
	proto        uint8
	sport, dport uint16
	end          int  // of it, bytes after the IP header, of IPv6 after the fragment header
	pass         bool // left to the stack without a flow
	at           time.Duration
}

// keptFragment came before its first.
type keptFragment struct {
	key fragmentKey
	in  In
	at  time.Duration
}

func fragmentKeyOf(in In) fragmentKey {
	h := &in.Packet.IP
	k := fragmentKey{src: h.Src, dst: h.Dst, id: h.ID, proto: h.Proto, hook: in.Hook}
	if h.Src.Is6() {
		k.proto = 0 // only the first fragment has it (RFC 8200, section 4.5)
	}
	if in.Hook == FromWorkload {
		k.iif = in.IfIndex
	}
	return k
}

// headLen is how much of a packet its first fragment must hold and no later one may write over.
func headLen(proto uint8) int {
	switch proto {
	case packet.ProtoTCP:
		return 20
	case packet.ProtoSCTP:
		return 12
	}
	return 8
}

// fragmentIsBad: would nobody send that in good faith?
func fragmentIsBad(p *packet.Packet) bool {
	_, before := p.IP.ExtLen()
	begin, n := int(p.IP.Offset), len(p.Payload)
	head := headLen(p.IP.Proto)
	switch {
	case n+before == 0, begin+before+n > 0xffff, p.IP.MF && n%8 != 0:
		return true
	case begin > 0:
		return begin < head && p.IP.Src.Is4()
	}
	switch p.IP.Proto {
	case packet.ProtoTCP:
		return n < head || int(p.Payload[12]>>4)*4 > n
	case uint8(icmpOf(p.IP.Src)):
		return n < head || packet.IsError(&p.IP, p.Payload[0])
	case packet.ProtoUDP, packet.ProtoSCTP:
		return n < head
	}
	return false
}

// fragment is what becomes of a fragment. bad: nothing is known of what it carries.
func (n *Node) fragment(in In, bad bool) Result {
	limit := n.state.Settings.Timeouts.Fragment
	if limit == 0 {
		return n.refuseFragment(in, reason.Fragment)
	}
	if bad || fragmentIsBad(in.Packet) {
		return n.refuseFragment(in, reason.FragmentBad)
	}
	k := fragmentKeyOf(in)
	if in.Packet.IP.Offset > 0 {
		return n.laterFragment(in, k)
	}
	r := n.whole(in)
	if r.Action == Drop || r.Action == Answer {
		return r
	}
	key := keyOf(in.Packet)
	f, _ := n.find(key)
	pass := f == nil || n.unseen
	if pass && (in.Hook == ToUplink || r.Action != Pass) {
		return r
	}
	_, before := in.Packet.IP.ExtLen()
	n.firsts[k] = firstFragment{proto: in.Packet.IP.Proto, sport: key.sport, dport: key.dport, end: before + len(in.Packet.Payload), pass: pass, at: n.opts.Now()}
	if in.Hook == ToUplink || in.Hook == ToWorkload {
		return r
	}
	r.Again = n.release(k)
	return r
}

// release takes out what waited for a first fragment.
func (n *Node) release(k fragmentKey) []In {
	var out []In
	var rest []keptFragment
	for _, f := range n.kept {
		switch {
		case f.key != k:
			rest = append(rest, f)
		case n.opts.Now()-f.at <= n.state.Settings.Timeouts.Fragment:
			f.in.Again = true
			out = append(out, f.in)
		}
	}
	n.kept = rest
	return out
}

func (n *Node) laterFragment(in In, k fragmentKey) Result {
	first, ok := n.firsts[k]
	if !ok || n.opts.Now()-first.at > n.state.Settings.Timeouts.Fragment {
		return n.keep(in, k)
	}
	if first.pass {
		return Result{Action: Pass, Packet: in.Packet}
	}
	if int(in.Packet.IP.Offset) < first.end {
		return n.refuseFragment(in, reason.FragmentBad)
	}
	key := flowKey{src: k.src, dst: k.dst, sport: first.sport, dport: first.dport, proto: model.Protocol(first.proto)}
	f, _ := n.find(key)
	if f == nil || !n.usable(f, enters(f, in), key, false) {
		return n.refuseFragment(in, reason.FragmentNoFirst)
	}
	if !in.Again && !n.keepsSource(f, in, key) {
		return drop(in, dropped{reason: reason.Spoofed})
	}
	if f.epoch != n.epoch && !passes(in, f) {
		n.evaluated = nil
		was := f.epoch
		again, d := n.revalidate(f, in, key)
		if n.asksAlone(in) {
			f.epoch = was
		}
		if !again {
			n.reportEvent(in, d)
		}
		if d != nil {
			return drop(in, *d)
		}
		if again {
			return n.refuseFragment(in, reason.FragmentNoFirst)
		}
	}
	f.seen = n.opts.Now()
	r, d := n.send(in, key, f, false)
	if d != nil {
		return drop(in, *d)
	}
	return r
}

// keep lets a fragment wait for its first. How much is kept is not modelled: the programs' bounds
// are wider than any scenario.
func (n *Node) keep(in In, k fragmentKey) Result {
	switch in.Hook {
	case FromWorkload:
		if !n.owns(in.IfIndex, k.src) {
			return drop(in, dropped{reason: reason.Spoofed})
		}
	case FromUplink, FromTunnel:
		if s := n.kind(k.src); s == nodestate.AddrHost || s == nodestate.AddrEndpoint {
			return drop(in, dropped{reason: reason.Spoofed})
		}
		if _, ok := n.checkSource(in, flowKey{src: k.src, dst: k.dst}, claim{}); !in.Again && !ok {
			return drop(in, dropped{reason: reason.Spoofed})
		}
	default:
		return n.refuseFragment(in, reason.FragmentNoFirst)
	}
	if in.Again {
		return n.refuseFragment(in, reason.FragmentNoFirst)
	}
	n.kept = append(n.kept, keptFragment{key: k, in: in, at: n.opts.Now()})
	return Result{Action: Keep, Packet: in.Packet}
}

// refuseFragment drops a fragment where it could reach a pod.
func (n *Node) refuseFragment(in In, why reason.Reason) Result {
	toPod := in.Hook == ToWorkload || in.Hook == ToUplink && in.IfIndex == n.opts.HostIfIndex ||
		n.kind(in.Packet.IP.Dst) == nodestate.AddrEndpoint
	toHost := why != reason.FragmentNoFirst && (n.guarded(in) && n.kind(in.Packet.IP.Src) != nodestate.AddrNode || n.ledOn(in))
	if in.Hook == FromWorkload || toPod || toHost {
		return drop(in, dropped{reason: why})
	}
	return Result{Action: Pass, Packet: in.Packet}
}

// unmendable: the checksum of SCTP changes with the ports by as much as the whole packet's length
// says, which the first fragment does not know.
func unmendable(p *packet.Packet, f *flow) bool {
	sport, dport := p.Ports()
	return p.Fragment() && p.IP.Offset == 0 && p.IP.Proto == packet.ProtoSCTP && (sport != f.sport || dport != f.dport) &&
		[4]byte(p.Payload[8:12]) != [4]byte{}
}

// query says whether a packet, or the packet of a first fragment, is an ICMP query that another
// message answers, or such an answer.
func query(p *packet.Packet) (asks, answers bool) {
	kind, code := p.ICMPType, p.ICMPCode
	switch {
	case p.Fragment() && p.IP.Offset == 0 && p.IP.Proto == uint8(icmpOf(p.IP.Src)):
		kind, code = p.Payload[0], p.Payload[1]
	case p.Kind != packet.Echo:
		return false, false
	}
	asked, ok := packet.QueryType(&p.IP, kind, code)
	return ok && kind == asked, ok && kind != asked
}

func isQuery(p *packet.Packet) bool {
	asks, _ := query(p)
	return asks
}

func isAnswer(p *packet.Packet) bool {
	_, answers := query(p)
	return answers
}
