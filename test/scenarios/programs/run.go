// SPDX-License-Identifier: Apache-2.0

// Package programs puts the loaded eBPF programs behind the nodes of a scenario, through
// BPF_PROG_TEST_RUN: the kernel runs a program on a packet, nothing is attached, and no packet
// leaves. Each packet is given to the oracle too, with the choices that the programs made at
// random, and any difference is an error.
package programs

import (
	driver "github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/progtest"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// set is a loaded collection of programs.
type set struct {
	*offline.Node
	runner *progtest.Runner
	events *driver.EventReader
}

func load(host, tunnelDev int) (*set, error) {
	o, err := offline.Load(offline.Options{Trace: true, HostDevice: host, Tunnel: tunnelDev, Gateways: true,
		Listening: true, Answers: 1e9, Burst: 1e6}) // the oracle knows no limit
	if err != nil {
		return nil, err
	}
	s := &set{Node: o}
	if s.events, err = o.Events(); err != nil {
		o.Close()
		return nil, err
	}
	if s.runner, err = progtest.New(o.Programs, o.IPv6.Maps["weir_trace"]); err != nil {
		s.close()
		return nil, err
	}
	s.runner.Alone(o.EvaluatesUntracked, o.Maps["weir_trace_rule"], func(ifindex int) bool { return ifindex == scenario.Uplink || ifindex == scenario.Uplink2 })
	return s, nil
}

func (s *set) close() {
	if s.runner != nil {
		s.runner.Close()
	}
	s.events.Close()
	s.Node.Close()
}

// reported reads the events of the last packet.
func (s *set) reported() ([]sim.Event, error) {
	all, err := s.events.Waiting()
	var out []sim.Event
	for _, e := range all {
		out = append(out, sim.Event{Src: e.Src, Dst: e.Dst, Sport: e.Sport, Dport: e.Dport, Proto: e.Proto, Hook: hookOf(e.Hook), IfIndex: e.IfIndex,
			Service: e.Service, Allowed: e.Allowed, Log: e.Log, Again: e.Again, Reason: reason.Reason(e.Reason),
			Egress: sim.End(e.Egress), Ingress: sim.End(e.Ingress), In: sim.HostEnd(e.In), Out: sim.HostEnd(e.Out)})
	}
	return out, err
}

// hookOf is the hook of a name, -1 when there is none.
func hookOf(name string) sim.Hook {
	for _, h := range []sim.Hook{sim.FromWorkload, sim.ToWorkload, sim.FromUplink, sim.ToUplink, sim.FromTunnel} {
		if h.String() == name {
			return h
		}
	}
	return -1
}

// run runs the hook's program on a frame, which in.Packet shows. Call it inside of the node's
// network namespace.
func (s *set) run(in sim.In, frame []byte) (sim.Result, error) { return s.runner.Run(in, frame) }
