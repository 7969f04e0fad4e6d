// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// ErrNoMirror says that a packet has no counterpart in IPv6.
var ErrNoMirror = errors.New("no such packet in IPv6")

// Mirror makes data planes that are given IPv6 where the world has IPv4: each state and packet is
// translated where it comes in, by a prefix of 96 bits before every address, and what comes out on
// the return path. So every scenario is one of IPv6 too, with the same expectations.
func Mirror(make NewCarrier) NewCarrier {
	return func(m *Machine) (Carrier, error) {
		t := *m
		t.Name += "/6"
		t.Addr = six(m.Addr)
		t.Subnets, t.Own, t.Aside = sixes(m.Subnets), sixAddrs(m.Own), sixes(m.Aside)
		c, err := make(&t)
		return &mirror{machine: &t, carrier: c, world: m}, err
	}
}

type mirror struct {
	machine *Machine
	carrier Carrier
	world   *Machine // that of the world
}

var mirrorPrefix = netip.MustParseAddr("fd00:6464::").As16()

// six returns the counterpart of an IPv4 address. The zero value stays.
func six(a netip.Addr) netip.Addr {
	switch {
	case !a.Is4():
		return a
	case a.IsUnspecified():
		return netip.IPv6Unspecified()
	case a.IsLoopback():
		return netip.IPv6Loopback()
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.MustParseAddr("ff05::1")
	}
	b, v := mirrorPrefix, a.As4()
	copy(b[12:], v[:])
	return netip.AddrFrom16(b)
}

// four undoes six.
func four(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

func sixPrefix(p netip.Prefix) netip.Prefix {
	b, v := mirrorPrefix, p.Addr().As4()
	copy(b[12:], v[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), p.Bits()+96)
}

func sixes(list []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, sixPrefix(p))
	}
	return out
}

// icmp types and codes by their counterparts.
type icmpKind struct{ kind, code uint8 }

func sixKind(k icmpKind) icmpKind {
	switch {
	case k == icmpKind{3, 4}:
		return icmpKind{2, 0} // too big
	case k.kind == 3 && k.code == 3:
		return icmpKind{1, 4} // port unreachable
	case k == icmpKind{3, 1}:
		return icmpKind{1, 3} // host, address unreachable
	case k.kind == 3:
		return icmpKind{1, k.code + 16} // no such codes: they are not looked at
	case k.kind == 11:
		return icmpKind{3, k.code}
	}
	return icmpKind{4, k.code}
}

func fourKind(k icmpKind) icmpKind {
	switch {
	case k.kind == 2:
		return icmpKind{3, 4}
	case k == icmpKind{1, 4}:
		return icmpKind{3, 3}
	case k == icmpKind{1, 3}:
		return icmpKind{3, 1}
	case k.kind == 1:
		return icmpKind{3, k.code - 16}
	case k.kind == 3:
		return icmpKind{11, k.code}
	}
	return icmpKind{12, k.code}
}

// header translates a header; template has what IPv6 lacks, for the opposite direction.
func header(h packet.IPv4, back bool, template packet.IPv4) (packet.IPv4, error) {
	if back {
		out := template
		out.Src, out.Dst, out.TTL, out.TOS, out.Proto = four(h.Src), four(h.Dst), h.TTL, h.TOS, h.Proto
		if out.Proto == packet.ProtoICMPv6 {
			out.Proto = packet.ProtoICMP
		}
		return out, nil
	}
	if h.SumError != 0 {
		return h, ErrNoMirror
	}
	out := packet.IPv4{Src: six(h.Src), Dst: six(h.Dst), TTL: h.TTL, TOS: h.TOS, Proto: h.Proto, MF: h.MF, Offset: h.Offset, Ext: extensions(h)}
	if h.MF || h.Offset != 0 {
		out.ID = h.ID
	}
	if out.Proto == packet.ProtoICMP {
		out.Proto = packet.ProtoICMPv6
	}
	return out, nil
}

// extensions makes a chain of extension headers of IPv4's options, one of each byte; its place
// among them is where the fragment header is.
func extensions(h packet.IPv4) []packet.Ext {
	fragment := h.MF || h.Offset != 0
	mark := packet.Ext{Proto: packet.ProtoFragment}
	const most = 1200 // bytes, so that BPF_PROG_TEST_RUN takes the packet
	var out []packet.Ext
	at, size := len(h.Options), 0
	if at > 0 && fragment {
		at = int(h.Options[0]>>4) % (len(h.Options) + 1)
	}
	for i, o := range h.Options {
		if i == at {
			out = append(out, mark)
			if h.Offset != 0 {
				return out
			}
		}
		if e, ok := extension(o); ok && (e.Proto != packet.ProtoFragment || !fragment) && size < most {
			out, size = append(out, e), size+len(e.Data)
		}
	}
	if fragment && at == len(h.Options) {
		out = append(out, mark)
	}
	atomic := slices.IndexFunc(out, func(e packet.Ext) bool { return e.Proto == packet.ProtoFragment })
	for i := len(out) - 1; i > atomic && atomic >= 0; i-- {
		if out[i].Proto == packet.ProtoFragment {
			out = slices.Delete(out, i, i+1) // no text for a second one
		}
	}
	return out
}

// extension is the header for a byte of options; most bytes of real options are harmless ones.
func extension(o byte) (packet.Ext, bool) {
	switch o & 0xf {
	case 0, 4, 8:
		return packet.Ext{}, false
	case 1, 3, 7:
		return packet.Ext{Proto: packet.ProtoDestination, Data: []byte{1, 4, 0, 0, 0, 0}}, true
	case 2:
		return packet.Ext{Proto: packet.ProtoHopByHop, Data: []byte{5, 2, 0, 0, 0, 0}}, true
	case 5, 6:
		return packet.Ext{Proto: packet.ProtoFragment}, true // of what is no fragment
	case 9:
		return packet.Ext{Proto: packet.ProtoRouting, Data: []byte{2, 0, 0, 0, 0, 0}}, true
	case 10:
		return packet.Ext{Proto: packet.ProtoRouting, Data: []byte{o >> 6, o >> 4 & 1, 0, 0, 0, 0}}, true
	}
	return packet.Ext{Proto: packet.ProtoDestination, Data: make([]byte, 6+24*int(o>>4))}, true
}

// translate returns the counterpart of p: of IPv6, or back.
func translate(p *packet.Packet, back bool, template *packet.Packet) (*packet.Packet, error) {
	if p.Kind == packet.Frame {
		if p.Type == packet.TypeIPv4 {
			return nil, ErrNoMirror
		}
		return p.Clone(), nil
	}
	q := p.Clone()
	var err error
	if q.IP, err = header(p.IP, back, template.IP); err != nil {
		return nil, err
	}
	q.Type = packet.TypeIPv6
	if back {
		q.Type = packet.TypeIPv4
	}
	switch p.Kind {
	case packet.Other:
		const timestamp, answer, reserved = 13, 14, 255 // in ICMPv6 messages as any other, which with a code they are in ICMP too
		icmp := p.IP.Proto == packet.ProtoICMP || p.IP.Proto == packet.ProtoICMPv6
		switch {
		case !icmp || p.IP.Offset != 0:
		case p.Fragment() && queryOfFour(p.IP, p.Payload):
			return nil, ErrNoMirror
		case p.Fragment():
			translateICMP(q.Payload, p.IP, q.IP)
		case len(p.Payload) >= 8 && echoType(p.Payload[0]) != 0: // with a code that no echo has
			translateICMP(q.Payload, p.IP, q.IP)
		case len(p.Payload) < 8 || p.Payload[0] != timestamp && p.Payload[0] != answer && p.Payload[0] != reserved:
			return nil, ErrNoMirror
		}
	case packet.Echo:
		if queryOfFour(p.IP, []byte{p.ICMPType, 0}) {
			return nil, ErrNoMirror
		}
		q.ICMPType = echoType(p.ICMPType)
	case packet.Error:
		k := icmpKind{p.ICMPType, p.ICMPCode}
		if k = sixKind(k); back {
			k = fourKind(icmpKind{p.ICMPType, p.ICMPCode})
		}
		q.ICMPType, q.ICMPCode = k.kind, k.code
		if queryOfFour(p.Quote.IP, p.Quote.L4) {
			return nil, ErrNoMirror
		}
		inner := packet.IPv4{}
		if template.Quote != nil {
			inner = template.Quote.IP
		}
		if q.Quote.IP, err = header(p.Quote.IP, back, inner); err != nil {
			return nil, err
		}
		translateQuote(q.Quote, p.Quote)
	}
	return q, nil
}

// queryOfFour reports whether an ICMP message is a query that ICMPv6 has no counterpart of, or its
// answer.
func queryOfFour(h packet.IPv4, l4 []byte) bool {
	if h.Proto != packet.ProtoICMP || len(l4) < 2 {
		return false
	}
	query, ok := packet.QueryType(&h, l4[0], l4[1])
	return ok && query != 8
}

func echoType(t uint8) uint8 {
	return map[uint8]uint8{0: 129, 8: 128, 128: 8, 129: 0}[t]
}

// translateQuote translates what follows the quoted header.
func translateQuote(to, from *packet.Quote) {
	length := func(h packet.IPv4) int {
		ext, _ := h.ExtLen()
		if h.Src.Is6() {
			return 40 + ext
		}
		return 20 + len(h.Options)
	}
	to.TotalLen += uint16(length(to.IP) - length(from.IP))
	if from.IP.Offset == 0 && (from.IP.Proto == packet.ProtoICMP || from.IP.Proto == packet.ProtoICMPv6) {
		translateICMP(to.L4, from.IP, to.IP)
	}
}

// translateICMP translates the beginning of an ICMP message that is not parsed. An echo's checksum,
// which a data plane updates, stays as right as it was: in IPv6 it covers the addresses.
func translateICMP(l4 []byte, from, to packet.IPv4) {
	if len(l4) < 8 {
		return
	}
	before := binary.BigEndian.Uint16(l4)
	switch l4[0] {
	case 0, 8, 128, 129:
		l4[0] = echoType(l4[0])
	default:
		return
	}
	after := binary.BigEndian.Uint16(l4)
	sum := onesAdd(onesAdd(^binary.BigEndian.Uint16(l4[2:]), ^before), after)
	if from.Src.Is6() {
		sum = onesAdd(sum, ^addrSum(from))
	} else {
		sum = onesAdd(sum, addrSum(to))
	}
	binary.BigEndian.PutUint16(l4[2:], ^sum)
}

func addrSum(h packet.IPv4) uint16 {
	sum := uint16(0)
	b := append(h.Src.AsSlice(), h.Dst.AsSlice()...)
	for i := 0; i < len(b); i += 2 {
		sum = onesAdd(sum, binary.BigEndian.Uint16(b[i:]))
	}
	return sum
}

func onesAdd(a, b uint16) uint16 {
	t := uint32(a) + uint32(b)
	return uint16(t>>16 + t&0xffff)
}

// Apply implements Carrier.
func (c *mirror) Apply(s *nodestate.State) error {
	c.machine.State, c.machine.Own = sixState(s), sixAddrs(c.world.Own)
	return c.carrier.Apply(c.machine.State)
}

// Receive implements Carrier.
func (c *mirror) Receive(in sim.In) (sim.Result, error) {
	if in.Packet.Kind == packet.Frame && in.Packet.Type == packet.TypeARP {
		return c.ask(in)
	}
	p, err := translate(in.Packet, false, in.Packet)
	if err != nil {
		return sim.Result{}, fmt.Errorf("%w: %s", err, in.Packet)
	}
	there := in
	there.Packet, there.Source = p, six(in.Source)
	r, err := c.carrier.Receive(there)
	if err != nil {
		return r, err
	}
	r.NextHop = four(r.NextHop)
	template := in.Packet
	if r.Action == sim.Answer {
		template = answerTemplate(in.Packet, r.Packet)
	}
	if r.Packet, err = translate(r.Packet, true, template); err != nil {
		return r, err
	}
	for i := range r.Again {
		if r.Again[i], err = c.back(r.Again[i]); err != nil {
			return r, err
		}
	}
	return r, nil
}

// back translates a fragment that comes in again. Only one that came by here does; what its options
// were is no longer known.
func (c *mirror) back(in sim.In) (sim.In, error) {
	h := in.Packet.IP
	p, err := translate(in.Packet, true, &packet.Packet{IP: packet.IPv4{ID: h.ID, MF: h.MF, Offset: h.Offset}})
	in.Packet, in.Source = p, four(in.Source)
	return in, err
}

// ask turns an ARP request into a neighbour solicitation, and its answer back. The length of the
// tail says how much is wrong with it.
func (c *mirror) ask(in sim.In) (sim.Result, error) {
	b := in.Packet.Payload
	if len(b) < 28 || string(b[:8]) != "\x00\x01\x08\x00\x06\x04\x00\x01" {
		return sim.Result{}, fmt.Errorf("%w: %s", ErrNoMirror, in.Packet)
	}
	tail := len(b) - 28
	from, target := netip.AddrFrom4([4]byte(b[14:18])), six(netip.AddrFrom4([4]byte(b[24:28])))
	t := target.As16()
	q := packet.Packet{DstMAC: in.Packet.DstMAC, SrcMAC: in.Packet.SrcMAC, Type: packet.TypeIPv6, Kind: packet.Other,
		IP:      packet.IPv4{Src: six(from), Dst: target, TTL: 255, Proto: packet.ProtoICMPv6},
		Payload: append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, t[:]...)}
	if q.DstMAC[0]&1 != 0 {
		q.DstMAC = packet.MAC{0x33, 0x33, 0xff, t[13], t[14], t[15]}
	}
	if q.DstMAC[0]&1 != 0 || from.IsUnspecified() && tail != 1 {
		q.IP.Dst = netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]})
	}
	if !from.IsUnspecified() && tail != 2 || tail == 3 { // the sender's MAC address, mostly
		q.Payload = append(append(q.Payload, 1, 1), b[8:14]...)
	}
	switch tail {
	case 4:
		q.Payload = append(q.Payload, 14, 0, 0, 0, 0, 0, 0, 0) // an option of no length
	case 5:
		q.Payload = append(q.Payload, 14, 2, 0, 0, 0, 0, 0, 0) // of more than there is
	case 6:
		q.Payload = append(q.Payload, 14, 1, 0, 0, 0, 0, 0, 0)
	case 7:
		q.IP.TTL = 254
	case 8:
		q.Payload[1] = 1
	case 9:
		q.IP.Dst = netip.MustParseAddr("ff02::1")
	case 10:
		q.IP.Ext = []packet.Ext{{Proto: packet.ProtoDestination, Data: []byte{1, 4, 0, 0, 0, 0}}}
	case 11:
		q.Payload = append(q.Payload, make([]byte, 4)...)
	case 12:
		q.Payload = append(append(q.Payload, 14, 8), make([]byte, 62)...)
	}
	sum := addrSum(q.IP)
	for i := 0; i < len(q.Payload); i += 2 {
		sum = onesAdd(sum, binary.BigEndian.Uint16(q.Payload[i:]))
	}
	sum = onesAdd(sum, uint16(len(q.Payload)+packet.ProtoICMPv6))
	if tail == 13 {
		sum ^= 0x100
	}
	binary.BigEndian.PutUint16(q.Payload[2:], ^sum)
	there := in
	there.Packet = &q
	r, err := c.carrier.Receive(there)
	if err != nil || r.Action != sim.Answer {
		r.Packet = in.Packet.Clone()
		return r, err
	}
	na := r.Packet.Payload
	if len(na) != 32 || na[0] != 136 || na[24] != 2 {
		return r, fmt.Errorf("answered by %s", r.Packet)
	}
	r.Packet = &packet.Packet{DstMAC: in.Packet.SrcMAC, SrcMAC: r.Packet.SrcMAC, Type: packet.TypeARP, Payload: slices.Concat(
		[]byte("\x00\x01\x08\x00\x06\x04\x00\x02"), na[26:32], na[20:24], b[8:18], b[28:])}
	return r, nil
}

// answerTemplate has what an answer in IPv4 says beyond one in IPv6.
func answerTemplate(asked, answer *packet.Packet) *packet.Packet {
	answer.IP.TOS = asked.IP.TOS&0x1e | 0xc0
	t := &packet.Packet{IP: packet.IPv4{DF: true}}
	if answer.Quote != nil {
		t.Quote = &packet.Quote{IP: asked.IP}
		const most = 576 - 20 - 8 - 20
		answer.Quote.L4 = answer.Quote.L4[:min(len(answer.Quote.L4), most)]
	}
	return t
}

// Connect implements Carrier.
func (c *mirror) Connect(s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	return ask(c.carrier.Connect, s, dst)
}

// Send implements Carrier.
func (c *mirror) Send(s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	return ask(c.carrier.Send, s, dst)
}

func ask(by func(sim.Socket, netip.AddrPort) (netip.AddrPort, error), s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error) {
	to, err := by(s, netip.AddrPortFrom(six(dst.Addr()), dst.Port()))
	if to.Addr() == netip.IPv6Loopback() {
		return dst, err
	}
	return netip.AddrPortFrom(four(to.Addr()), to.Port()), err
}

// Advance implements Carrier.
func (c *mirror) Advance(seconds int) error { return c.carrier.Advance(seconds) }
