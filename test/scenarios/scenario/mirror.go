package scenario

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// ErrNoMirror says that a packet has no counterpart in IPv6.
var ErrNoMirror = errors.New("no such packet in IPv6")

// Mirror makes data planes that are given IPv6 where the world has IPv4: each state and packet is translated on the
// way in, by a prefix of 96 bits before every address, and what comes out on the way back. So every scenario
// is one of IPv6 too, with the same expectations.
func Mirror(make NewCarrier) NewCarrier {
	return func(m *Machine) (Carrier, error) {
		t := *m
		t.Name += "/6"
		t.Addr = six(m.Addr)
		t.Subnets = sixes(m.Subnets)
		c, err := make(&t)
		return &mirror{machine: &t, carrier: c}, err
	}
}

type mirror struct {
	machine *Machine
	carrier Carrier
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

func sixFrontend(f nodestate.Frontend) nodestate.Frontend {
	f.Addr = six(f.Addr)
	return f
}

func sixState(s *nodestate.State) *nodestate.State {
	out := nodestate.New()
	out.Settings = s.Settings
	out.Settings.Node, out.Settings.Node6, out.Settings.IPv6 = netip.Addr{}, six(s.Settings.Node), true
	out.Settings.DSROptOut = sixes(s.Settings.DSROptOut)
	if out.Settings.Tunnel.MTU > 0 { // what fits after the headers is the same
		out.Settings.Tunnel.MTU += 40
	}
	out.Settings.PoolRoutes = map[netip.Prefix]int{}
	for p, mtu := range s.Settings.PoolRoutes {
		out.Settings.PoolRoutes[sixPrefix(p)] = mtu
	}
	for a, v := range s.Addrs {
		v.Node = six(v.Node)
		out.Addrs[six(a)] = v
	}
	for p, r := range s.Routes {
		r.Node = six(r.Node)
		out.Routes[sixPrefix(p)] = r
	}
	for f, v := range s.Frontends.All() {
		v.ID = sixFrontend(v.ID)
		out.Frontends.Set(sixFrontend(f), v)
	}
	for id, list := range s.Backends.All() {
		list = slices.Clone(list)
		for i := range list {
			list[i].Addr = six(list[i].Addr)
		}
		out.Backends.Set(sixFrontend(id), list)
	}
	for id, list := range s.SourceRanges.All() {
		out.SourceRanges.Set(sixFrontend(id), sixes(list))
	}
	for a, c := range s.Peers.All() {
		out.Peers.Set(six(a), c)
	}
	for p, c := range s.PeerCIDRs {
		out.PeerCIDRs[sixPrefix(p)] = c
	}
	out.Policy, out.Rules = maps.Clone(s.Policy), s.Rules
	for cookie, client := range s.Clients {
		out.Clients[cookie] = nodestate.Client{IPv6: six(client.IPv4)}
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

// header translates a header; template has what IPv6 lacks, on the way back.
func header(h packet.IPv4, back bool, template packet.IPv4) (packet.IPv4, error) {
	if back {
		out := template
		out.Src, out.Dst, out.TTL, out.TOS, out.Proto = four(h.Src), four(h.Dst), h.TTL, h.TOS, h.Proto
		if out.Proto == packet.ProtoICMPv6 {
			out.Proto = packet.ProtoICMP
		}
		return out, nil
	}
	if h.MF || h.Offset != 0 || len(h.Options) > 0 || h.SumError != 0 {
		return h, ErrNoMirror
	}
	out := packet.IPv4{Src: six(h.Src), Dst: six(h.Dst), TTL: h.TTL, TOS: h.TOS, Proto: h.Proto}
	if out.Proto == packet.ProtoICMP {
		out.Proto = packet.ProtoICMPv6
	}
	return out, nil
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
		const timestamp = 13 // a query in ICMP, nothing in ICMPv6
		if (p.IP.Proto == packet.ProtoICMP || p.IP.Proto == packet.ProtoICMPv6) && (len(p.Payload) < 8 || p.Payload[0] != timestamp) {
			return nil, ErrNoMirror
		}
	case packet.Echo:
		q.ICMPType = echoType(p.ICMPType)
	case packet.Error:
		k := icmpKind{p.ICMPType, p.ICMPCode}
		if k = sixKind(k); back {
			k = fourKind(icmpKind{p.ICMPType, p.ICMPCode})
		}
		q.ICMPType, q.ICMPCode = k.kind, k.code
		inner := packet.IPv4{}
		if template.Quote != nil {
			inner = template.Quote.IP
		}
		if q.Quote.IP, err = header(p.Quote.IP, back, inner); err != nil {
			return nil, err
		}
		translateQuote(q.Quote, p.Quote, back)
	}
	return q, nil
}

func echoType(t uint8) uint8 {
	return map[uint8]uint8{0: 129, 8: 128, 128: 8, 129: 0}[t]
}

// translateQuote translates what follows the quoted header. An echo's checksum, which a data plane mends, stays as right
// as it was: in IPv6 it covers the addresses.
func translateQuote(to, from *packet.Quote, back bool) {
	if back {
		to.TotalLen -= 20
	} else {
		to.TotalLen += 20
	}
	if from.IP.Proto != packet.ProtoICMP && from.IP.Proto != packet.ProtoICMPv6 {
		return
	}
	before := binary.BigEndian.Uint16(to.L4)
	t, ok := map[uint8]uint8{0: 129, 8: 128, 128: 8, 129: 0}[to.L4[0]]
	if !ok {
		return
	}
	to.L4[0] = t
	after := binary.BigEndian.Uint16(to.L4)
	sum := onesAdd(onesAdd(^binary.BigEndian.Uint16(to.L4[2:]), ^before), after)
	if back {
		sum = onesAdd(sum, ^addrSum(from.IP))
	} else {
		sum = onesAdd(sum, addrSum(to.IP))
	}
	binary.BigEndian.PutUint16(to.L4[2:], ^sum)
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
	c.machine.State = sixState(s)
	return c.carrier.Apply(c.machine.State)
}

// Receive implements Carrier.
func (c *mirror) Receive(in sim.In) (sim.Result, error) {
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
	r.Packet, err = translate(r.Packet, true, template)
	return r, err
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
