// SPDX-License-Identifier: Apache-2.0

package progtest

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
)

// The programs that are there where host endpoints apply to each packet by itself (doNotTrack).
const (
	arriveProgram = "weir_arrive" // in XDP
	EachProgram   = "weir_to_uplink_each"
)

// Return codes of programs in XDP (linux/bpf.h).
const (
	xdpDrop = 1
	xdpPass = 2
)

// What weir_arrive puts before a packet: struct untracked_stamp of bpf/untracked.h.
const (
	stampSize    = 16
	stampVerdict = 12
	stampUnknown = 0
)

// Offsets in struct xdp_md, a fixed part of the kernel's interface.
const (
	xdpDataEnd = 4
	xdpIfIndex = 12
	xdpSize    = 24
)

// Alone makes Run take the path of packets while on says that host endpoints apply to each by
// itself: those that come by an uplink meet XDP first, and those that begin in the node and leave
// by one meet a program of their own, also when it sends them out of it itself. rule is where the
// one in XDP leaves the rule by which it drops.
func (t *Runner) Alone(on func() bool, rule *ebpf.Map, uplinks func(ifindex int) bool) {
	t.alone, t.rule, t.uplinks = on, rule, uplinks
}

// AtUplinks is Alone for the runner of one program that is EachProgram.
func (t *Runner) AtUplinks(uplinks func(ifindex int) bool) {
	t.Alone(func() bool { return true }, nil, uplinks)
}

func (t *Runner) runAlone(in sim.In, frame []byte) (sim.Result, error) {
	name, known := Program(in.Hook), false
	switch in.Hook {
	case sim.FromUplink:
		r, decided, err := t.arrive(in, frame)
		if err != nil || r.Action == sim.Drop {
			return r, err
		}
		known = decided
	case sim.ToUplink:
		name = EachProgram
	}
	r, sent, err := t.run(in, frame, name)
	if err == nil && known && r.Action == sim.Drop && r.Reason == reason.UntrackedIngress {
		return r, fmt.Errorf("dropped for %s behind XDP, which let it pass", r.Reason)
	}
	if err != nil || in.Hook != sim.ToUplink || in.Entered != 0 || r.Action != sim.Neigh || !t.uplinks(r.IfIndex) {
		return r, err
	}
	return t.leave(in, r, sent)
}

// arrive is XDP. decided: it evaluated policy for the packet.
func (t *Runner) arrive(in sim.In, frame []byte) (r sim.Result, decided bool, err error) {
	ctx := make([]byte, xdpSize)
	binary.NativeEndian.PutUint32(ctx[xdpDataEnd:], uint32(len(frame)))
	binary.NativeEndian.PutUint32(ctx[xdpIfIndex:], uint32(in.IfIndex))
	out := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: ctx}
	prog := t.programs[arriveProgram]
	if prog == nil {
		return r, false, fmt.Errorf("program %s is not loaded", arriveProgram)
	}
	ret, err := prog.Run(out)
	if err != nil {
		return r, false, fmt.Errorf("run %s on %s: %w", arriveProgram, in.Packet, err)
	}
	switch ret {
	case xdpDrop:
		var rule uint32
		err := t.rule.Lookup(uint32(0), &rule)
		return sim.Result{Action: sim.Drop, Packet: in.Packet, Reason: reason.UntrackedIngress, Rule: nodestate.RuleID(rule)}, true, err
	case xdpPass:
		r.Action = sim.Pass
		if n := len(out.DataOut) - len(frame); n == stampSize {
			decided = binary.NativeEndian.Uint32(out.DataOut[stampVerdict:]) != stampUnknown
		} else if n != 0 {
			return r, false, fmt.Errorf("%s put %d bytes before the packet", arriveProgram, n)
		}
		return r, decided, nil
	}
	return r, false, fmt.Errorf("%s returned %d", arriveProgram, ret)
}

// leave is what meets an uplink because a program sent it there: r, as the frame sent.
func (t *Runner) leave(in sim.In, r sim.Result, sent []byte) (sim.Result, error) {
	p, err := packet.Unmarshal(sent)
	if err != nil {
		return r, err
	}
	at, _, err := t.run(sim.In{Hook: sim.ToUplink, IfIndex: r.IfIndex, Packet: p, Marked: true}, sent, EachProgram)
	if err != nil || at.Action != sim.Drop {
		return r, err
	}
	return sim.Result{Action: sim.Drop, Packet: in.Packet, Reason: at.Reason, Rule: at.Rule, Again: r.Again}, nil
}
