// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/programs"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// TestDifferential lets random packets meet random states, which change under way: programs and
// oracle must agree on every packet. It plays the same rounds each time, apart from what the
// programs themselves choose at random; WEIR_DIFFERENTIAL=<duration> plays new rounds for so long,
// WEIR_DIFFERENTIAL=<number> that many packets, and WEIR_SEED=<seed> one round, which a failure has
// named; WEIR_ROUND=<file> plays the least part of it that fails, which the failure has written.
func TestDifferential(t *testing.T) {
	r := newRunner(t)
	differ(t, r, bench{r.New, calc.Calc, r.Reset})
}

// TestDifferentialIPv6 does the same with IPv6 in the place of IPv4.
func TestDifferentialIPv6(t *testing.T) {
	r := newRunner(t)
	differ(t, r, bench{scenario.Mirror(r.New), calc.Calc, r.Reset})
}

func differ(t *testing.T, r *programs.Runner, b bench) {
	t.Helper()
	seen := map[string]int{}
	play := func(seed uint64) {
		var made *round
		err := timely(t, r, tooLong, func() (err error) {
			made, err = playRandom(b, seed, seen)
			return err
		})
		if err != nil {
			t.Fatalf("WEIR_SEED=%d: %v\n%s", seed, err, reduce(t.Name(), b, seed, made, err))
		}
	}
	if path := os.Getenv("WEIR_ROUND"); path != "" {
		made, err := readRound(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := timely(t, r, tooLong, func() error { return made.play(b) }); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text := os.Getenv("WEIR_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		play(seed)
		return
	}
	rounds := uint64(0)
	if text := os.Getenv("WEIR_DIFFERENTIAL"); text != "" {
		first, begin := uint64(time.Now().UnixNano()), time.Now()
		t.Logf("new rounds from seed %d", first)
		more, err := until(text, begin)
		if err != nil {
			t.Fatal(err)
		}
		for ; more(rounds * packetsPerRound); rounds++ {
			if rounds%50 == 49 {
				t.Logf("%d packets in %s", rounds*packetsPerRound, time.Since(begin).Round(time.Second))
			}
			play(first + rounds)
		}
		t.Logf("%d rounds of %d packets from seed %d, %.0f packets a second: %v", rounds, packetsPerRound, first,
			float64(rounds*packetsPerRound)/time.Since(begin).Seconds(), seen)
		return
	}
	last := uint64(fixedRounds)
	if testing.Short() {
		last = shortRounds
	}
	for ; rounds < last; rounds++ {
		play(1 + rounds)
	}
	t.Logf("%d rounds of %d packets: %v", rounds, packetsPerRound, seen)
}

// until reads how long new rounds are played: a duration, or a number of packets.
func until(text string, begin time.Time) (more func(packets uint64) bool, err error) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return func(packets uint64) bool { return packets < n }, nil
	}
	limit, err := time.ParseDuration(text)
	return func(uint64) bool { return time.Since(begin) < limit }, err
}

const (
	fixedRounds     = 43 // of IPv4, as many of IPv6, and as many of both
	packetsPerRound = 400
	remembered      = 24 // lines that a failure shows, unless its seed was given
	logBegins       = "\nafter:\n"
)

// Together the fixed rounds are at least 50,000 packets, each with the policies that it meets: this
// does not compile when they are not.
var _ [3*fixedRounds*packetsPerRound - 50_000]struct{}

// differential is one round.
type differential struct {
	*crowd
	machine *scenario.Machine
	carrier scenario.Carrier
	state   func(*model.Cluster) *nodestate.State
	made    *round
	log     []string
	out     []*packet.Packet // that went on, to be answered
	pieces  []*packet.Packet // fragments that were not sent yet
	jumps   int
	short   bool   // a short jump was made
	hands   *crowd // whether another data plane takes the place: all else is what it is without
	talks   *crowd // for those that are open
	open    []*connection
	seen    map[string]int
}

// playRandom plays one round, returns what happened in it, and counts in seen what became of
// packets.
func playRandom(b bench, seed uint64, seen map[string]int) (made *round, err error) {
	d := &differential{crowd: newCrowd(seed), state: b.state, hands: &crowd{Rand: rand.New(rand.NewPCG(seed, 17))},
		talks: &crowd{Rand: rand.New(rand.NewPCG(seed, 19))}, seen: seen}
	d.machine, d.made = d.crowd.machine(), &round{mtus: d.crowd.mtus, own: d.crowd.own, aside: d.crowd.aside}
	defer func() {
		if resetErr := b.reset(); err == nil {
			err = resetErr
		}
		if err != nil {
			err = fmt.Errorf("%w%s  %s", err, logBegins, strings.Join(d.log, "\n  "))
		}
	}()
	d.machine.State = d.state(d.c)
	d.happens(event{cluster: snapshot(d.c)})
	if d.carrier, err = b.make(d.machine); err != nil {
		return d.made, err
	}
	if err := d.carrier.Apply(d.machine.State); err != nil {
		return d.made, err
	}
	for i := range packetsPerRound {
		if err := d.step(); err != nil {
			return d.made, fmt.Errorf("packet %d: %w", i, err)
		}
	}
	return d.made, nil
}

// happens notes an event.
func (d *differential) happens(e event) { d.made.events = append(d.made.events, e) }

func (d *differential) note(format string, args ...any) {
	d.log = append(d.log, fmt.Sprintf(format, args...))
	if len(d.log) > remembered && os.Getenv("WEIR_SEED") == "" {
		d.log = d.log[1:]
	}
}

func (d *differential) step() error {
	switch {
	case d.chance(5):
		d.change()
		d.c.Local.HandOver = d.hands.chance(12)
		d.machine.State = d.state(d.c)
		d.note("the cluster changes")
		d.happens(event{cluster: snapshot(d.c)})
		if err := d.carrier.Apply(d.machine.State); err != nil {
			return err
		}
	case d.chance(1) && d.jumps < 8:
		// Sums of these stay away from every time-out: the programs' clock is coarse.
		d.jumps++
		d.note("33 s pass")
		d.happens(event{seconds: 33})
		if err := d.carrier.Advance(33); err != nil {
			return err
		}
	}
	if !d.short && d.chance(2) {
		// Longer than a repeated SYN must wait, and shorter than every time-out, also after a long
		// jump.
		d.short = true
		d.note("8 s pass")
		d.happens(event{seconds: 8})
		if err := d.carrier.Advance(8); err != nil {
			return err
		}
	}
	in, talking := d.goOn()
	if !talking {
		in = d.arrival()
	}
	frame, err := in.Packet.Marshal()
	if err != nil {
		return err
	}
	if d.chance(6) {
		for range 1 + d.IntN(3) { // a byte of the headers, mostly
			frame[14+d.IntN(min(len(frame)-14, 60))] = uint8(d.IntN(256))
		}
	}
	if in.Packet, err = packet.Unmarshal(frame); err != nil { // what looks like a packet is one
		return err
	}
	d.note("%s if%d from %s: %s", in.Hook, in.IfIndex, in.Source, in.Packet)
	kept := in
	kept.Packet = in.Packet.Clone()
	d.happens(event{in: &kept})
	return d.receive(in)
}

func (d *differential) receive(in sim.In) error {
	res, err := d.carrier.Receive(in)
	if errors.Is(err, scenario.ErrNoMirror) {
		d.seen["no counterpart"]++
		return nil
	}
	if err != nil {
		return differs{err}
	}
	d.note("    %s: %s", res, res.Packet)
	d.listen(in, res)
	for _, again := range res.Again {
		d.seen["again"]++
		d.note("%s again: %s", again.Hook, again.Packet)
		if err := d.receive(again); err != nil {
			return err
		}
	}
	if res.Action == sim.Drop {
		d.seen[res.Reason.String()]++
	} else if res.Action == sim.Answer {
		d.seen["answered "+res.Reason.String()]++
		if d.chance(50) {
			d.out = append(d.out, res.Packet)
		}
	} else {
		d.seen[res.Action.String()]++
		d.out = append(d.out, res.Packet)
		if len(d.out) > 12 {
			d.out = d.out[1:]
		}
	}
	return nil
}

// arrival is a random packet at a hook where it could turn up, or should not.
func (d *differential) arrival() sim.In {
	var p *packet.Packet
	switch {
	case len(d.out) > 0 && d.chance(45):
		p = d.answer(one(d.crowd, d.out...))
	case len(d.out) > 0 && d.chance(10):
		p = d.report(one(d.crowd, d.out...))
	}
	if p == nil && d.chance(20) {
		p = d.fragment()
	}
	if p == nil && d.chance(6) {
		p = &packet.Packet{Kind: packet.Frame, Type: packet.TypeARP}
		d.arp(p)
	}
	if p == nil && d.chance(60) {
		p = d.request()
	}
	if p == nil {
		p = d.packet()
	}
	in := sim.In{Packet: p, Hook: sim.FromUplink, IfIndex: scenario.Uplink, VNI: d.machine.State.Settings.Tunnel.VNI}
	ep, local := d.c.Local.Endpoints[p.IP.Src]
	to, toLocal := d.c.Local.Endpoints[p.IP.Dst]
	switch {
	case local && d.chance(95), d.chance(3):
		in.Hook, in.IfIndex = sim.FromWorkload, firstPod+d.IntN(len(localPods))
		if local && d.chance(97) {
			in.IfIndex = ep.IfIndex
		}
	case d.isOwn(p.IP.Src) && toLocal && d.chance(90), toLocal && d.chance(5):
		in.Hook, in.IfIndex, in.Marked = sim.ToWorkload, to.IfIndex, d.chance(3)
		in.Entered = d.entered(p.IP.Src)
	case d.isOwn(p.IP.Src) && !toLocal && d.chance(90), !local && !toLocal && d.chance(4): // the kernel's route to a local pod leads to to_workload
		in.Hook, in.IfIndex, in.Marked = sim.ToUplink, one(d.crowd, scenario.Uplink, scenario.HostDevice), d.chance(3)
		in.Entered = d.entered(p.IP.Src)
	case d.chance(35):
		in.Hook, in.IfIndex = sim.FromTunnel, scenario.TunnelDev
		in.Source = nodeAddrs[1+d.IntN(2)]
		if d.chance(3) {
			in.Source, in.VNI = one(d.crowd, outside...), one(d.crowd, in.VNI, 77)
		}
	}
	if len(d.aside) > 0 && in.IfIndex == scenario.Uplink {
		if other := map[sim.Hook]netip.Addr{sim.FromUplink: p.IP.Src, sim.ToUplink: p.IP.Dst}[in.Hook]; asideNet.Contains(other) != d.chance(5) {
			in.IfIndex = scenario.Uplink2
		}
	}
	if in.Hook == sim.FromUplink {
		p.SrcMAC = packet.MAC(macOf(one(d.crowd, nodeAddrs[1], nodeAddrs[2], outside[0], outside[1])))
	}
	return in
}

// entered is by which interface a packet came that the stack sends on, 0 = it begins in the node:
// mostly as its source would, at times by one that no program knows.
func (d *differential) entered(src netip.Addr) int {
	ep, local := d.c.Local.Endpoints[src]
	switch n := d.later.IntN(100); {
	case n < 8:
		return bridge
	case n < 12:
		return firstPod + d.later.IntN(len(localPods))
	case local && n < 60:
		return ep.IfIndex
	case d.isOwn(src) == (n < 17):
		return one(&crowd{Rand: d.later}, scenario.Uplink, scenario.Uplink, scenario.Uplink2, scenario.TunnelDev, scenario.HostDevice)
	}
	return 0
}

// isOwn: may the node's own processes send from there?
func (d *differential) isOwn(a netip.Addr) bool { return a == ownAddr || slices.Contains(d.own, a) }

func (d *differential) anyAddr() netip.Addr {
	if len(d.own) > 0 && d.chance(6) {
		return one(d.crowd, append(d.own[:len(d.own):len(d.own)], linkAll)...)
	}
	switch d.IntN(10) {
	case 0, 1, 2:
		return one(d.crowd, localPods...)
	case 3:
		return one(d.crowd, otherPods...)
	case 4:
		return one(d.crowd, nodeAddrs...)
	case 5:
		return ownAddr
	case 6, 7:
		return one(d.crowd, slices.Concat(clusterIP, otherVIPs, linkVIPs)...)
	case 8:
		return one(d.crowd, outside...)
	}
	if d.chance(30) {
		return one(d.crowd, nobody...)
	}
	return one(d.crowd, outside...)
}

func (d *differential) port() uint16 {
	return one[uint16](d.crowd, 80, 80, 53, 53, 29, 8080, 5353, 3929, 30000, 30001, 30002, 30003, 1000, 1001, 1002, 4789, 20000, 20001)
}

func (d *differential) flags() uint8 {
	return one[uint8](d.crowd, packet.SYN, packet.SYN, packet.SYN, packet.SYN, packet.ACK, packet.ACK|packet.PSH, packet.SYN|packet.ACK,
		packet.FIN|packet.ACK, packet.RST, packet.RST|packet.ACK, 0, packet.SYN|packet.RST, packet.SYN|packet.FIN)
}

func (d *differential) packet() *packet.Packet {
	p := &packet.Packet{Type: packet.TypeIPv4, IP: packet.IPv4{Src: d.anyAddr(), Dst: d.anyAddr(), TTL: 64}}
	if d.chance(4) {
		p.IP.TTL = uint8(d.IntN(3))
	}
	p.IP.ID, p.IP.DF = uint32(d.IntN(3)), d.chance(30)
	if d.chance(6) {
		p.IP.Options = d.options()
	}
	if d.chance(2) {
		p.IP.SumError = uint16(1 + d.IntN(100))
	}
	p.Payload = []byte("payload"[:d.IntN(8)])
	if d.chance(3) {
		p.Payload = d.large()
	}
	switch d.IntN(20) {
	case 0:
		p.Kind, p.IP.Proto, p.IP.MF, p.IP.Offset = packet.Other, one[uint8](d.crowd, 6, 17), d.chance(50), 8*uint16(1+d.IntN(2))
	case 1: // too short for their protocols, or of one that has no ports
		p.Kind, p.IP.Proto = packet.Other, one[uint8](d.crowd, 1, 6, 17, 132, 47)
	case 2:
		p.Kind, p.Type = packet.Frame, one[uint16](d.crowd, packet.TypeARP, packet.TypeIPv6, 0x88cc)
		p.Payload = make([]byte, 46)
		if p.Type == packet.TypeARP {
			d.arp(p)
		}
	case 3:
		p.Kind, p.Payload = packet.Frame, make([]byte, 24+d.IntN(30)) // IPv4 by its type, and not by its contents
		p.Payload[0] = one[uint8](d.crowd, 0x45, 0x44, 0x4f, 0x65)
		p.Payload[3] = uint8(d.IntN(80))
	case 4, 5:
		p.Kind, p.IP.Proto, p.ICMPType, p.ID = packet.Echo, packet.ProtoICMP, one[uint8](d.crowd, 8, 8, 8, 8, 0, 13, 14, 17), d.identifier()
		if d.chance(40) {
			p.Kind, p.Payload = packet.Other, d.message()
		}
	case 6, 7:
		d.sctp(p)
	case 8, 9, 10, 11:
		p.Kind, p.IP.Proto, p.SrcPort, p.DstPort, p.NoSum = packet.UDP, packet.ProtoUDP, d.port(), d.port(), d.chance(10)
	default:
		p.Kind, p.IP.Proto, p.SrcPort, p.DstPort, p.Flags, p.Window = packet.TCP, packet.ProtoTCP, d.port(), d.port(), d.flags(), 512
		if d.chance(20) {
			p.Options = one(d.crowd, []byte{2, 4, 5, 0xb4}, []byte{1, 2, 4, 5, 0xb4, 0, 0, 0}, []byte{3, 3, 7, 2, 4, 5, 0xb4, 0}, []byte{8, 1, 2, 4}, []byte{2, 4, 1, 0})
		}
	}
	if d.chance(2) && !p.NoSum && (p.Kind == packet.TCP || p.Kind == packet.UDP || p.Kind == packet.Echo) {
		p.SumError = uint16(1 + d.IntN(100))
	}
	return p
}

// identifier is one of an ICMP query: those of which one is the other and a type away, and around 0
// and 65535.
func (d *differential) identifier() uint16 {
	return one[uint16](d.crowd, 7, 7, 15, 0, 65528, 65535, 20000)
}

// message is an ICMP message that is neither an echo nor an error: also one that is a query but for
// its code, or the answer to one.
func (d *differential) message() []byte {
	m := []byte{one[byte](d.crowd, 13, 13, 14, 8, 0, 255), byte(1 + d.IntN(2)), 1, 2, 3, 4, 5, 6}
	if m[0] == 255 {
		m[1] = 255
	}
	return m
}

// options are harmless ones, or any bytes: of these the mirror makes chains of extension headers.
func (d *differential) options() []byte {
	if d.chance(40) {
		return []byte{1, 1, 1, 0}
	}
	o := make([]byte, 4*one(d.crowd, 1, 1, 1, 2, 2, 3))
	for i := range o {
		o[i] = byte(d.IntN(256))
		if d.chance(60) {
			o[i] = one[byte](d.crowd, 0, 0, 1, 2, 5)
		}
	}
	return o
}

func (d *differential) chunk() uint8 {
	return one[uint8](d.crowd, packet.ChunkInit, packet.ChunkInit, packet.ChunkInit, packet.ChunkInitAck, packet.ChunkData, packet.ChunkData,
		packet.ChunkAbort, packet.ChunkShutdown, packet.ChunkShutdownAck, packet.ChunkShutdownComplete, packet.ChunkCookieEcho, 77)
}

func (d *differential) sctp(p *packet.Packet) {
	p.Kind, p.IP.Proto, p.SrcPort, p.DstPort, p.Chunk, p.NoSum = packet.SCTP, packet.ProtoSCTP, d.port(), d.port(), d.chunk(), d.chance(10)
	p.Payload = make([]byte, d.IntN(3*d.IntN(400)+3))
	for i := range p.Payload {
		p.Payload[i] = uint8(d.IntN(256))
	}
	if d.chance(5) && !p.NoSum {
		p.CRCError = 1 << d.IntN(32)
	}
}

// large is data for a packet about as large as the MTU of some path.
func (d *differential) large() []byte {
	return make([]byte, one(d.crowd, 1280, 1300, 1450, 1500)-50+d.IntN(60))
}

// request is the beginning of something sensible: a pod, the node or a client asks a service, a
// node port or a pod.
func (d *differential) request() *packet.Packet {
	p := &packet.Packet{Type: packet.TypeIPv4, Kind: packet.TCP, Flags: packet.SYN, IP: packet.IPv4{Proto: packet.ProtoTCP, TTL: 64}}
	port := uint16(80)
	switch d.IntN(5) {
	case 0, 1:
		p.Kind, p.Flags, p.IP.Proto, port = packet.UDP, 0, packet.ProtoUDP, 53
	case 2:
		p.Flags, port = 0, 29
		d.sctp(p)
		p.Chunk = packet.ChunkInit
	}
	p.IP.Src = one(d.crowd, one(d.crowd, localPods...), one(d.crowd, localPods...), ownAddr, one(d.crowd, otherPods...), one(d.crowd, outside...), one(d.crowd, outside...))
	p.SrcPort = 1000 + uint16(d.IntN(4))
	if d.chance(10) {
		p.IP.Options = d.options()
	}
	if d.chance(12) {
		p.Payload, p.IP.DF = d.large(), d.chance(60)
	}
	switch d.IntN(4) {
	case 0:
		p.IP.Dst, p.DstPort = one(d.crowd, clusterIP...), port
	case 1:
		p.IP.Dst, p.DstPort = one(d.crowd, nodeAddrs...), 30000+uint16(d.IntN(4))
	case 2:
		p.IP.Dst, p.DstPort = one(d.crowd, otherVIPs...), port
	default:
		p.IP.Dst, p.DstPort = one(d.crowd, one(d.crowd, localPods...), one(d.crowd, otherPods...), one(d.crowd, outside...)), d.port()
	}
	return p
}

// fragment is a part of a packet, in any order, sometimes twice or never.
func (d *differential) fragment() *packet.Packet {
	if len(d.pieces) == 0 {
		d.cut()
	}
	if len(d.pieces) == 0 {
		return nil
	}
	i := d.IntN(len(d.pieces))
	p := d.pieces[i].Clone()
	if d.chance(85) {
		d.pieces = append(d.pieces[:i], d.pieces[i+1:]...)
	}
	return p
}

// cut makes the fragments of a packet.
func (d *differential) cut() {
	p := d.request()
	switch {
	case len(d.out) > 0 && d.chance(40):
		p = d.answer(one(d.crowd, d.out...))
	case d.chance(20):
		p = d.packet()
	}
	if p == nil || p.Kind == packet.Frame || p.Fragment() {
		return
	}
	p.Payload, p.IP.ID, p.IP.Options = make([]byte, 20+d.IntN(60)), uint32(d.IntN(4)), nil
	frame, err := p.Marshal()
	if err != nil {
		return
	}
	l4 := frame[34:]
	if d.chance(30) {
		p.IP.Options = d.options()
	}
	for at := 0; at < len(l4); {
		size := one(d.crowd, 8, 16, 24, 24, 32, 48, len(l4))
		size = min(size, len(l4)-at)
		q := &packet.Packet{Type: packet.TypeIPv4, Kind: packet.Other, IP: p.IP, Payload: append([]byte{}, l4[at:at+size]...)}
		q.IP.Offset, q.IP.MF, q.IP.DF = uint16(at), at+size < len(l4), false
		if at%8 == 0 && (q.IP.MF || q.IP.Offset != 0) {
			d.pieces = append(d.pieces, q)
		}
		if at += size; d.chance(3) && at >= 8 {
			at -= 8 // overlaps
		}
	}
}

// answer is what the receiver might send, or what the sender might send next.
func (d *differential) answer(p *packet.Packet) *packet.Packet {
	a := p.Clone()
	a.IP.TTL, a.SrcMAC, a.DstMAC = 64, packet.MAC{}, packet.MAC{}
	if a.Kind == packet.Error || a.Kind == packet.Frame {
		return nil
	}
	if a.Kind == packet.TCP {
		a.Flags = one(d.crowd, d.flags(), packet.ACK, packet.SYN|packet.ACK)
	}
	if a.Kind == packet.SCTP {
		a.Chunk = d.chunk()
	}
	if d.chance(25) {
		return a
	}
	a.IP.Src, a.IP.Dst, a.SrcPort, a.DstPort = p.IP.Dst, p.IP.Src, p.DstPort, p.SrcPort
	if a.Kind == packet.Echo {
		a.ICMPType = packet.AnswerType(a.ICMPType)
	}
	return a
}

// report is an ICMP error about a packet, by somebody on its path or by its receiver.
func (d *differential) report(p *packet.Packet) *packet.Packet {
	q := p.Clone()
	q.SrcMAC, q.DstMAC = packet.MAC{}, packet.MAC{}
	if q.Kind == packet.Frame || q.Kind == packet.Error {
		return nil
	}
	from := one(d.crowd, p.IP.Dst, p.IP.Dst, d.anyAddr())
	e, err := packet.Parse(fmt.Sprintf("icmp %s > %s error type=%d code=%d rest=%d ttl=%d [%s]", from, p.IP.Src,
		one(d.crowd, 3, 11, 12), d.IntN(5), d.IntN(2000), one(d.crowd, 64, 1), q))
	if err != nil {
		return nil // nothing that can be quoted
	}
	return e
}
