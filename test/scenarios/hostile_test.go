// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/programs"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// Hostile frames: cut, padded, with lengths that lie, options and chains of headers of any kind,
// and fragments that overlap. Programs and oracle agree on each of them, and what policy denies
// goes nowhere, whatever it looks like.
func TestHostileFrames(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			r := newRunner(t)
			seen := map[string]int{}
			for seed := range uint64(hostileRounds) {
				err := timely(t, r, 10*time.Minute, func() error {
					h := newHostile(seed, six)
					defer func() { seen = h.count(seen) }()
					return h.play(r)
				})
				if err != nil {
					t.Fatalf("round %d: %v", seed, err)
				}
				if err := r.Reset(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%v", seen)
			for _, what := range []string{"local", "pass", "keep", "drop MALFORMED", "drop FRAGMENT_BAD", "drop POLICY_INGRESS", "drop POLICY_EGRESS", "drop SPOOFED", "drop ERROR_NO_FLOW", "drop NO_ROUTE", "answer NONE"} {
				if seen[what] == 0 && (six || what != "answer NONE" && what != "drop NO_ROUTE") {
					t.Errorf("no frame came to %s: these are not the frames that this test is about", what)
				}
			}
		})
	}
}

const (
	hostileRounds = 24
	hostileFrames = 250 // of a round
	hostileWaits  = 56  // fragments of a round, fewer than a ring keeps

	// Interfaces of the pods.
	openIf   = 1201 // talks with everybody
	closedIf = 1202 // whom nobody may reach; it never begins anything here
	muteIf   = 1203 // that may reach nobody; nobody begins anything with it here
)

// hostile is a node with these pods, and who sends to them. The last two bytes of the addresses
// differ each, so that no changed byte makes one of another.
type hostile struct {
	*rand.Rand
	six                     bool
	own, node, outside, vip netip.Addr
	open, closed, mute      netip.Addr
	state                   *nodestate.State
	machine                 *scenario.Machine
	carrier                 programs.Frames
	fragments               int
	seen                    map[string]int
}

func newHostile(seed uint64, six bool) *hostile {
	h := &hostile{Rand: rand.New(rand.NewPCG(seed, 11)), six: six, seen: map[string]int{}}
	at := func(four, sixth string) netip.Addr {
		if six {
			return netip.MustParseAddr(sixth)
		}
		return netip.MustParseAddr(four)
	}
	h.own, h.node = at("172.31.1.10", "fd01::1:10"), at("172.31.1.11", "fd01::1:1b")
	h.outside, h.vip = at("172.31.1.99", "fd01::1:99"), at("172.31.1.241", "fd01::1:f1")
	h.open, h.closed, h.mute = at("10.0.1.17", "fd00::1:17"), at("10.0.2.130", "fd00::2:82"), at("10.0.4.77", "fd00::4:4d")
	h.machine = &scenario.Machine{Name: "hostile", Addr: h.own, MAC: packet.MAC{2, 0, 0, 0, 0, 10}, MTUs: map[int]int{}}
	subnet, err := h.own.Prefix(h.own.BitLen() - 8)
	if err != nil {
		panic(err)
	}
	h.machine.Subnets = []netip.Prefix{subnet}

	s := nodestate.New()
	hour := time.Hour
	s.Settings = nodestate.Settings{SNATFirst: 20000, SNATLast: 20099, IPv6: true, Tunnel: nodestate.Tunnel{Port: 4789, VNI: 4096, MTU: 1450},
		Timeouts: model.Timeouts{TCPSynSent: hour, TCPEstablished: hour, TCPFins: hour, TCPReset: hour, UDP: hour, ICMP: hour, Generic: hour, Fragment: hour},
		DSRTimes: model.DSRTimes{Patience: time.Minute, Tries: hour, Retry: hour}}
	if six {
		s.Settings.Node6 = h.own
	} else {
		s.Settings.Node = h.own
	}
	s.Addrs[h.own] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	s.Addrs[h.node] = nodestate.Addr{Kind: nodestate.AddrNode, Node: h.node, SameLink: true, MAC: [6]byte{2, 0, 0, 0, 0, 11}}
	pod := func(a netip.Addr, ifindex int) nodestate.Addr {
		return nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: ifindex, MAC: [6]byte{2, 0, 0, 0, 1, byte(ifindex)}}
	}
	s.Addrs[h.open] = pod(h.open, openIf)
	closed, mute := pod(h.closed, closedIf), pod(h.mute, muteIf)
	closed.Ingress, mute.Egress = nodestate.Isolation{Set: 5, Rule: 50}, nodestate.Isolation{Set: 6, Rule: 60}
	s.Addrs[h.closed], s.Addrs[h.mute] = closed, mute
	for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
		id := nodestate.Frontend{Addr: h.vip, Port: 80, Proto: proto}
		s.Frontends.Set(id, nodestate.Service{ID: id, Rule: 70, External: true})
		s.Backends.Set(id, []nodestate.Backend{{Addr: h.closed, Port: 8080, Local: true}, {Addr: h.open, Port: 8080, Local: true}})
	}
	s.Announced[h.vip] = true
	h.state, h.machine.State = s, s
	return h
}

func (h *hostile) count(into map[string]int) map[string]int {
	for what, n := range h.seen {
		into[what] += n
	}
	return into
}

func (h *hostile) play(r *programs.Runner) error {
	c, err := r.New(h.machine)
	if err != nil {
		return err
	}
	h.carrier = c.(programs.Frames)
	if err := c.Apply(h.state); err != nil {
		return err
	}
	for i := range hostileFrames {
		if err := h.step(); err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
	}
	return nil
}

func (h *hostile) chance(percent int) bool { return h.IntN(100) < percent }

func (h *hostile) step() error {
	in := sim.In{Hook: sim.FromUplink, IfIndex: scenario.Uplink, VNI: h.state.Settings.Tunnel.VNI}
	src := h.outside
	switch h.IntN(10) {
	case 0, 1, 2:
		in.Hook, in.IfIndex, src = sim.FromWorkload, openIf, h.open
	case 3, 4, 5:
		in.Hook, in.IfIndex, src = sim.FromWorkload, muteIf, h.mute
	case 6:
		in.Hook, in.IfIndex, in.Source = sim.FromTunnel, scenario.TunnelDev, h.node
	}
	if h.chance(12) { // of somebody else: this node, its pods, what it announces
		src = []netip.Addr{h.own, h.open, h.closed, h.mute, h.vip, h.node}[h.IntN(6)]
	}
	frame := h.frame(src)
	res, err := h.receive(in, frame)
	if err != nil {
		return err
	}
	if err := h.check(in, frame, res); err != nil || res.Action != sim.Pass || h.addr(frame, true) != h.closed {
		return err
	}
	// The stack forwards it, unless the source is of another link (RFC 4291, section 2.5.6).
	if h.six && onLink(h.addr(frame, false)) {
		return nil
	}
	at := map[bool]int{false: 8, true: 7}[h.six]
	if frame[14+at] < 2 {
		return nil
	}
	frame[14+at]--
	to := sim.In{Hook: sim.ToWorkload, IfIndex: closedIf, Entered: in.IfIndex}
	res, err = h.receive(to, frame)
	if err == nil && res.Action != sim.Drop {
		err = fmt.Errorf("passed to the pod that nobody may reach: %s: %x", res, frame)
	}
	return err
}

// receive also lets in again what waited for the frame.
func (h *hostile) receive(in sim.In, frame []byte) (sim.Result, error) {
	var err error
	if in.Packet, err = packet.Unmarshal(frame); err != nil {
		return sim.Result{}, err
	}
	res, err := h.carrier.ReceiveFrame(in, frame)
	if err != nil {
		return res, fmt.Errorf("%w\n  %x", err, frame)
	}
	what := res.Action.String()
	if res.Action == sim.Drop || res.Action == sim.Answer {
		what += " " + res.Reason.String()
	}
	h.seen[what]++
	for _, again := range res.Again {
		h.seen["again"]++
		bytes, err := again.Packet.Marshal()
		if err != nil {
			return res, err
		}
		r, err := h.receive(again, bytes)
		if err == nil {
			err = h.check(again, bytes, r)
		}
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// check reports what must not be, whatever the oracle says.
func (h *hostile) check(in sim.In, frame []byte, r sim.Result) error {
	sent := r.Action == sim.Local || r.Action == sim.Neigh || r.Action == sim.Tunnel
	src, dst := h.addr(frame, false), h.addr(frame, true)
	switch {
	case r.Action == sim.Local && r.IfIndex == closedIf:
		return fmt.Errorf("reached the pod that nobody may reach: %s: %x", r, frame)
	case in.Hook != sim.FromWorkload && sent && slices.Contains([]netip.Addr{h.own, h.open, h.closed, h.mute}, src):
		return fmt.Errorf("came from outside with a source of this node, and went on: %s: %x", r, frame)
	case in.Hook != sim.FromWorkload:
	case sent && in.IfIndex == muteIf:
		return fmt.Errorf("left the pod that may reach nobody: %s: %x", r, frame)
	case sent && src != h.open:
		return fmt.Errorf("left a pod with the source of another: %s: %x", r, frame)
	case r.Action == sim.Pass && in.IfIndex == muteIf && !(h.six && (onLink(src) || onLink(dst))):
		return fmt.Errorf("left to the stack by the pod that may reach nobody: %s: %x", r, frame)
	}
	return nil
}

// onLink reports whether IPv6 leads the address nowhere but to its link.
func onLink(a netip.Addr) bool { return a.IsMulticast() || a.IsLinkLocalUnicast() }

// addr reads an address where it lies, whatever else the frame says.
func (h *hostile) addr(frame []byte, dst bool) netip.Addr {
	at, n := 14+12, 4
	if h.six {
		at, n = 14+8, 16
	}
	if dst {
		at += n
	}
	if len(frame) < at+n {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(frame[at : at+n])
	return a
}

// frame is a packet from src that was tampered with.
func (h *hostile) frame(src netip.Addr) []byte {
	for {
		p, err := packet.Parse(h.text(src))
		if err != nil {
			panic(err)
		}
		p.DstMAC, p.SrcMAC = h.machine.MAC, packet.MAC{2, 0, 0, 0, 0, 99}
		frame, err := p.Marshal()
		if err != nil {
			panic(err)
		}
		if p.Kind == packet.Other && p.IP.Proto == packet.ProtoICMPv6 && h.six {
			binary.BigEndian.PutUint16(frame[54+2:], ^sumICMPv6(p))
		}
		for range h.IntN(4) {
			frame = h.tamper(frame)
		}
		// BPF_PROG_TEST_RUN takes no frame that is cut inside the header.
		q, err := packet.Unmarshal(frame)
		if len(frame) < map[bool]int{false: 34, true: 54}[h.six] || err != nil {
			continue
		}
		if q.Kind != packet.Frame && q.Fragment() {
			if h.fragments++; h.fragments > hostileWaits {
				continue
			}
		}
		return frame
	}
}

// sumICMPv6 is the sum that the checksum of a message without one has to make up for (RFC 4443,
// section 2.3).
func sumICMPv6(p *packet.Packet) uint16 {
	sum := uint32(len(p.Payload) + packet.ProtoICMPv6)
	b := slices.Concat(p.IP.Src.AsSlice(), p.IP.Dst.AsSlice(), p.Payload)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}

// text is a packet as it could be meant.
func (h *hostile) text(src netip.Addr) string {
	pick := func(s ...string) string { return s[h.IntN(len(s))] }
	to := []netip.Addr{h.closed, h.closed, h.closed, h.open, h.vip, h.own, h.node, h.outside}[h.IntN(8)]
	port := pick("80", "80", "8080", "4789", "53")
	from := netip.AddrPortFrom(src, 1000+uint16(h.IntN(3)))
	dst := netip.AddrPortFrom(to, 0).String()
	dst = strings.TrimSuffix(dst, "0") + port
	data := fmt.Sprintf(" fill=%d", h.IntN(120))
	switch h.IntN(12) {
	case 0, 1:
		return fmt.Sprintf("udp %s > %s%s", from, dst, data)
	case 2:
		return fmt.Sprintf("sctp %s > %s %s", from, dst, pick("INIT", "DATA", "ABORT"))
	case 3:
		kind := pick("echo", "reply")
		if !h.six {
			kind = pick("echo", "reply", "query type=13", "answer type=14", "query type=17")
		}
		return fmt.Sprintf("icmp %s > %s %s id=%d%s", src, to, kind, h.IntN(3), data)
	case 4:
		kind := pick("type=3", "type=11", "type=12")
		if h.six {
			kind = pick("type=1", "type=2", "type=3", "type=4")
		}
		return fmt.Sprintf("icmp %s > %s error %s [%s %s > %s]", src, to, kind, pick("udp", "tcp"), dst, from)
	case 5:
		if !h.six {
			return fmt.Sprintf("ip %s > %s proto=%s data=0x00000000000000000000000000000000", src, to, pick("2", "41", "47", "50", "51", "58"))
		}
		if h.chance(60) { // neighbour discovery, mostly for the address that is announced
			vip := h.vip.As16()
			p := fmt.Sprintf("ip %s > %s proto=58 ttl=%s data=0x", pick(src.String(), src.String(), "::", "fe80::5"),
				pick(h.vip.String(), "ff02::1:ff01:f1", "ff02::1:ff01:f1", to.String()), pick("255", "255", "255", "64"))
			p += fmt.Sprintf("%02x%02x000000000000%x", []int{133, 134, 135, 135, 135, 136, 137, 143}[h.IntN(8)], 0, vip[:])
			return p + pick("", "", "0101020000000063", "0100020000000063")
		}
		return fmt.Sprintf("ip %s > %s proto=%s data=0x0000000000000000000000000000000000000000", src, to, pick("0", "43", "44", "60", "50", "51", "59", "135", "139", "1"))
	case 6, 7, 8: // a piece of one packet or another
		at := 8 * h.IntN(5)
		more := pick("+", "+", "")
		if at == 0 {
			more = "+"
		}
		data := make([]byte, 8*(1+h.IntN(5)))
		binary.BigEndian.PutUint16(data, from.Port())
		data[3] = pick("P", "\x16")[0] // ports 80, 22
		if len(data) >= 16 {
			data[12] = 0x50
		}
		return fmt.Sprintf("ip %s > %s proto=%s ipid=%d frag=%d%s data=0x%x", src, to, pick("6", "17", "17", "132"), 1+h.IntN(3), at, more, data)
	}
	return fmt.Sprintf("tcp %s > %s %s%s", from, dst, pick("S", "S", ".", "R", "F.", "S."), data)
}

// tamper makes the frame a little worse. Destinations stay, mostly.
func (h *hostile) tamper(b []byte) []byte {
	if len(b) < 54 {
		return b
	}
	b = bytes.Clone(b)
	head := 20
	if h.six {
		head = 40
	}
	switch h.IntN(9) {
	case 0, 1:
		b[14+h.IntN(min(len(b)-14, 100))] = byte(h.IntN(256))
	case 2:
		b = b[:14+head+h.IntN(len(b)-13-head)]
	case 3:
		b = append(b, make([]byte, h.IntN(64))...)
	case 4: // what the header says of its length
		at := map[bool]int{false: 2, true: 4}[h.six]
		n := binary.BigEndian.Uint16(b[14+at:])
		binary.BigEndian.PutUint16(b[14+at:], n+uint16(h.IntN(41))-30)
	case 5: // of a fragment
		if !h.six {
			binary.BigEndian.PutUint16(b[14+6:], []uint16{0x2000, 0x2001, 0x0001, 0x0003, 0x1fff, 0xa000, 0x8000}[h.IntN(7)])
		} else {
			b = h.extend(b, packet.ProtoFragment)
		}
	default:
		if !h.six {
			return h.option(b)
		}
		for range 1 + h.IntN(4)*h.IntN(3) {
			b = h.extend(b, []byte{0, 43, 44, 60, 60, 60, 51, 50, 59, 135, 255}[h.IntN(11)])
		}
	}
	return b
}

// option puts options into a header of IPv4, and sometimes lies about their length.
func (h *hostile) option(b []byte) []byte {
	n := 4 * (1 + h.IntN(10))
	if have := int(b[14]&0xf) * 4; have+n > 60 || len(b) < 34 {
		return b
	}
	o := make([]byte, n)
	for i := range o {
		o[i] = byte(h.IntN(256))
	}
	b = slices.Insert(b, 34, o...)
	b[14] += byte(n / 4)
	if h.chance(15) {
		b[14] = 0x40 | byte(h.IntN(16))
	}
	if h.chance(90) {
		binary.BigEndian.PutUint16(b[16:], binary.BigEndian.Uint16(b[16:])+uint16(n))
	}
	return b
}

// extend puts an extension header, or what looks like one, after that of IPv6.
func (h *hostile) extend(b []byte, proto byte) []byte {
	units := h.IntN(3) * h.IntN(3)
	e := make([]byte, 8+8*units)
	e[0], e[1] = b[14+6], byte(units)
	switch proto {
	case packet.ProtoRouting:
		e[2], e[3] = byte(h.IntN(5)), byte(h.IntN(3)/2)
	case packet.ProtoFragment:
		e, e[1] = e[:8], 0
		binary.BigEndian.PutUint16(e[2:], []uint16{0, 0, 1, 6, 8, 9, 16, 0xfff8, 0xfff9}[h.IntN(9)])
		e[7] = byte(h.IntN(3))
	}
	if h.chance(10) {
		e[1] = byte(h.IntN(256))
	}
	b[14+6] = proto
	b = slices.Insert(b, 54, e...)
	if h.chance(92) {
		binary.BigEndian.PutUint16(b[18:], binary.BigEndian.Uint16(b[18:])+uint16(len(e)))
	}
	return b
}
