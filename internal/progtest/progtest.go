// SPDX-License-Identifier: Apache-2.0

// Package progtest runs loaded programs on packets by BPF_PROG_TEST_RUN: the kernel runs a program
// on a packet, nothing is attached, and no packet leaves. Tests use it, and dry runs of `weir why`.
// The programs must be loaded with trace_enabled, so that they leave their decisions behind.
package progtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
)

// Return codes of tc programs (linux/pkt_cls.h).
const (
	tcOK       = 0
	tcShot     = 2
	tcRedirect = 7
	tcUnspec   = 0xffffffff
)

const (
	markMask  = 0x0ff00000
	markDone  = 0x0ba00000
	markAgain = 0x0bb00000
	markInner = 0x0b900000
)

// packetOtherHost is PACKET_OTHERHOST (linux/if_packet.h); PACKET_HOST is 0.
const packetOtherHost = 3

// traceKept is what the programs leave in cb[0] for a fragment that waits, TRACE_KEPT of
// bpf/maps.h.
const traceKept = 0x400

// Offsets in struct __sk_buff, the context of tc programs, a fixed part of the kernel's interface.
const (
	skbMark    = 8
	skbIngress = 36
	skbIfIndex = 40
	skbCB      = 48
	skbSize    = 192
)

// Program is the name of a hook's program.
func Program(h sim.Hook) string { return "weir_" + h.String() }

// Runner runs the programs of a node. It is not safe for concurrent use.
type Runner struct {
	programs map[string]*ebpf.Program
	hop6     *ebpf.Map
	tunnel   *ebpf.Program // as if a packet had come out of a tunnel, then weir_from_tunnel
	tunnel6  *ebpf.Program // the same with an outer IPv6 header
	link     *ebpf.Program // as a device gives a frame to the stack, then weir_from_uplink
	jumps    *ebpf.Map

	alone   func() bool // packets are evaluated by themselves, too
	rule    *ebpf.Map   // weir_trace_rule
	uplinks func(ifindex int) bool
}

// New makes a runner of the programs of IPv4, by name, which call those of IPv6; these leave next
// hops in hop6, their map weir_trace, nil where there are none.
func New(programs map[string]*ebpf.Program, hop6 *ebpf.Map) (*Runner, error) {
	r := &Runner{programs: programs, hop6: hop6}
	var err error
	r.jumps, err = ebpf.NewMap(&ebpf.MapSpec{Name: "jumps", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 2})
	if err == nil && programs[Program(sim.FromTunnel)] != nil {
		err = r.prepareTunnel()
	}
	if err == nil && programs[Program(sim.FromUplink)] != nil {
		err = r.prepareLink()
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("prepare packets of tunnels and uplinks: %w", err)
	}
	return r, nil
}

// Places in the map of programs that those made here go on with.
const (
	jumpTunnel = 0
	jumpUplink = 1
)

// prepareLink loads a program that says of a frame for whom it is, as a device's driver does, and
// goes on with weir_from_uplink: BPF_PROG_TEST_RUN goes by the MAC address of an interface that may
// be another one. cb begins with the kind, PACKET_HOST or PACKET_OTHERHOST.
func (t *Runner) prepareLink() error {
	if err := t.jumps.Put(uint32(jumpUplink), uint32(t.programs[Program(sim.FromUplink)].FD())); err != nil {
		return err
	}
	var err error
	t.link, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "as_if_arrived", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbCB, asm.Word),
		asm.Mov.Imm(asm.R3, 0), asm.StoreMem(asm.R6, skbCB, asm.R3, asm.Word),
		asm.FnSkbChangeType.Call(),
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, t.jumps.FD()), asm.Mov.Imm(asm.R3, jumpUplink),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, -1), asm.Return(),
	}})
	return err
}

// prepareTunnel loads a program that gives a packet the metadata of a tunnel, which
// BPF_PROG_TEST_RUN cannot, and goes on with weir_from_tunnel. cb begins with the outer source, of
// IPv4 in host byte order, and goes on with the VNI.
func (t *Runner) prepareTunnel() error {
	if err := t.jumps.Put(uint32(jumpTunnel), uint32(t.programs[Program(sim.FromTunnel)].FD())); err != nil {
		return err
	}
	var err error
	if t.tunnel, err = t.asIfTunnel(1, 0); err != nil {
		return err
	}
	t.tunnel6, err = t.asIfTunnel(4, 1)
	return err
}

// asIfTunnel is the program for outer addresses of so many words; flags are those of
// bpf_skb_set_tunnel_key.
func (t *Runner) asIfTunnel(words int16, flags int32) (*ebpf.Program, error) {
	// struct bpf_tunnel_key: tunnel_id, remote (16 bytes), tos, ttl, ext, label, local (16 bytes)
	const size, local = 44, 28
	key := int16(-48)
	ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R1, 0)}
	for off := key; off < 0; off += 8 {
		ins = append(ins, asm.StoreMem(asm.RFP, off, asm.R1, asm.DWord))
	}
	for i := range words {
		ins = append(ins, asm.LoadMem(asm.R1, asm.R6, skbCB+4*i, asm.Word), asm.StoreMem(asm.RFP, key+local+4*i, asm.R1, asm.Word))
	}
	ins = append(ins, asm.LoadMem(asm.R1, asm.R6, skbCB+4*words, asm.Word), asm.StoreMem(asm.RFP, key, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R1, 0))
	for i := range words + 1 {
		ins = append(ins, asm.StoreMem(asm.R6, skbCB+4*i, asm.R1, asm.Word))
	}
	ins = append(ins,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(key)),
		asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, flags),
		asm.FnSkbSetTunnelKey.Call(),
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, t.jumps.FD()), asm.Mov.Imm(asm.R3, jumpTunnel),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, -1), asm.Return(),
	)
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "as_if_tunnel", Type: ebpf.SchedCLS, Instructions: ins, License: "GPL"})
}

// Close unloads what the runner loaded itself.
func (t *Runner) Close() {
	for _, p := range []*ebpf.Program{t.tunnel, t.tunnel6, t.link} {
		if p != nil {
			p.Close()
		}
	}
	if t.jumps != nil {
		t.jumps.Close()
	}
}

// ErrNotRunnable: BPF_PROG_TEST_RUN refuses frames that are cut inside the IPv4 header.
var ErrNotRunnable = errors.New("BPF_PROG_TEST_RUN does not take this frame")

// Run runs the hook's program on a frame, which in.Packet shows. Call it inside of the node's
// network namespace.
func (t *Runner) Run(in sim.In, frame []byte) (sim.Result, error) {
	if in.Packet.Kind == packet.Frame && in.Packet.Type == packet.TypeIPv4 && len(in.Packet.Payload) < 20 {
		return sim.Result{}, ErrNotRunnable
	}
	if t.alone == nil || !t.alone() {
		r, _, err := t.run(in, frame, Program(in.Hook))
		return r, err
	}
	return t.runAlone(in, frame)
}

// run runs a program, and returns the frame that goes on, too.
func (t *Runner) run(in sim.In, frame []byte, name string) (sim.Result, []byte, error) {
	ctx := make([]byte, skbSize)
	ne := binary.NativeEndian
	ne.PutUint32(ctx[skbIfIndex:], uint32(in.IfIndex))
	entered := in.IfIndex
	if in.Hook == sim.ToUplink || in.Hook == sim.ToWorkload {
		entered = in.Entered
	}
	ne.PutUint32(ctx[skbIngress:], uint32(entered))
	switch {
	case in.Marked:
		ne.PutUint32(ctx[skbMark:], markDone)
	case in.Again && in.IPIP:
		ne.PutUint32(ctx[skbMark:], markInner)
	case in.Again:
		ne.PutUint32(ctx[skbMark:], markAgain)
	}
	if in.IPIP {
		name = Program(sim.FromUplink)
	}
	prog := t.programs[name]
	if in.Hook == sim.FromTunnel && !in.Again && !in.IPIP {
		prog = t.tunnel
		src := in.Source.AsSlice()
		copy(ctx[skbCB:], src)
		if in.Source.Is6() {
			prog = t.tunnel6
		} else {
			ne.PutUint32(ctx[skbCB:], binary.BigEndian.Uint32(src))
		}
		ne.PutUint32(ctx[skbCB+len(src):], in.VNI)
	}
	if prog != nil && (in.Hook == sim.FromUplink || in.IPIP) {
		prog = t.link
		if in.Other {
			ne.PutUint32(ctx[skbCB:], packetOtherHost)
		}
	}
	if prog == nil {
		return sim.Result{}, nil, fmt.Errorf("program %s is not loaded", name)
	}
	out := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: ctx, ContextOut: make([]byte, skbSize)}
	ret, err := prog.Run(out)
	if err != nil {
		return sim.Result{}, nil, fmt.Errorf("run %s on %s: %w", name, in.Packet, err)
	}
	r, err := decision(in, ret, out)
	if err == nil && r.NextHop.IsValid() && t.hop6 != nil && in.Packet.Type == packet.TypeIPv6 {
		var hop [16]byte // what represents it in cb is its last word
		if err := t.hop6.Lookup(uint32(0), &hop); err != nil {
			return r, nil, err
		}
		r.NextHop = netip.AddrFrom16(hop)
	}
	return r, out.DataOut, err
}

// decision reads what the program left behind, and checks that it returned what it says.
func decision(in sim.In, ret uint32, out *ebpf.RunOptions) (sim.Result, error) {
	ctx, ok := out.ContextOut.([]byte)
	if !ok || len(ctx) != skbSize {
		return sim.Result{}, fmt.Errorf("no context came back")
	}
	ne := binary.NativeEndian
	cb := func(i int) uint32 { return ne.Uint32(ctx[skbCB+4*i:]) }
	r := sim.Result{Rule: nodestate.RuleID(cb(3))}
	p, err := packet.Unmarshal(out.DataOut)
	if err != nil {
		return r, err
	}
	r.Packet = p
	if cb(0) == traceKept {
		r.Action, r.Packet = sim.Keep, in.Packet
		if ret != tcShot {
			return r, fmt.Errorf("says that it keeps the packet and returns %d", ret)
		}
		return r, nil
	}
	for range cb(4) {
		again := sim.In{Hook: in.Hook, IfIndex: in.IfIndex, Again: true, IPIP: in.IPIP}
		if unpacked(in, p) {
			again.Hook, again.IPIP = sim.FromTunnel, true
		}
		r.Again = append(r.Again, again)
	}
	if cb(0) >= 0x200 {
		return answered(in, ret, cb, r)
	}
	if cb(0) >= 0x100 {
		r.Action, r.Reason, r.Packet = sim.Drop, reason.Reason(cb(0)-0x100), in.Packet
		if ret != tcShot {
			return r, fmt.Errorf("says drop %s and returns %d", r.Reason, ret)
		}
		return r, nil
	}
	if cb(0) == 0 {
		return r, fmt.Errorf("left no decision, returned %d", ret)
	}
	r.Action, r.IfIndex = sim.Action(cb(0)-1), int(cb(1))
	r.NextHop = addrOf(cb(2))
	if r.Action == sim.Tunnel && r.IfIndex != 0 {
		if r.Packet, err = unwrap(p, r.NextHop); err != nil {
			return r, err
		}
	}
	marked := ne.Uint32(ctx[skbMark:])&markMask == markDone
	switch r.Action {
	case sim.Pass:
		// An answer for a host process goes in by the host device. What the programs of this family
		// have no part in goes on to the filter behind.
		if ret != tcOK && !(ret == tcUnspec && in.Hook == sim.ToWorkload) && (ret != tcRedirect || in.Hook == sim.ToUplink || in.Hook == sim.ToWorkload) {
			return r, fmt.Errorf("says pass and returns %d", ret)
		}
		r.Marked = marked && !in.Marked
		return r, nil
	case sim.Local:
		r.MAC = p.DstMAC
		marked = marked || in.Hook != sim.ToUplink // only then the packet meets to_workload
	}
	if ret != tcRedirect {
		return r, fmt.Errorf("says %s and returns %d", r.Action, ret)
	}
	if !marked {
		return r, fmt.Errorf("says %s and leaves no mark", r.Action)
	}
	return r, nil
}

// answered reads what a program says that dropped the packet and answers it.
func answered(in sim.In, ret uint32, cb func(int) uint32, r sim.Result) (sim.Result, error) {
	r.Action, r.Reason = sim.Answer, reason.Reason(cb(0)-0x200)
	r.IfIndex, r.NextHop = int(cb(1)), addrOf(cb(2))
	if ret != tcRedirect {
		return r, fmt.Errorf("says that it answers %s and returns %d", r.Reason, ret)
	}
	if r.IfIndex != 0 && r.NextHop.IsValid() {
		var err error
		r.Packet, err = unwrap(r.Packet, r.NextHop)
		return r, err
	}
	if r.Reason == 0 { // a neighbour's question, which went to many
		probe := in.Packet.Type == packet.TypeIPv6 && in.Packet.IP.Src.IsUnspecified()
		if r.Packet.DstMAC != in.Packet.SrcMAC && (!probe || r.Packet.DstMAC != packet.MAC{0x33, 0x33, 0, 0, 0, 1}) {
			return r, fmt.Errorf("answers %s to %s", in.Packet.SrcMAC, r.Packet.DstMAC)
		}
		return r, nil
	}
	if in.Hook != sim.FromTunnel && in.Hook != sim.ToUplink && (r.Packet.DstMAC != in.Packet.SrcMAC || r.Packet.SrcMAC != in.Packet.DstMAC) {
		return r, fmt.Errorf("answers a frame from %s to %s with one from %s to %s",
			in.Packet.SrcMAC, in.Packet.DstMAC, r.Packet.SrcMAC, r.Packet.DstMAC)
	}
	return r, nil
}

// addrOf is the address in a word of the context, invalid when it is 0.
func addrOf(word uint32) netip.Addr {
	if word == 0 {
		return netip.Addr{}
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], word)
	return netip.AddrFrom4(b)
}
