// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"

	"github.com/weir-net/weir/internal/dataplane/ebpf/dryrun"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/progtest"
	"github.com/weir-net/weir/internal/sim"
)

// maxRuns bounds how often a program is run until it chose the backend that was asked for.
const maxRuns = 256

// runProgram runs the hook's program, from a second instance of the node's.
func (i *inquiry) runProgram() error {
	name := progtest.Program(i.in.Hook)
	if i.in.Hook == sim.ToUplink && i.state.EvaluatesUntracked() {
		name = progtest.EachProgram
	}
	plane, ok := i.plane.(Programs)
	if !ok {
		return fmt.Errorf("the data plane %s has neither programs nor rules that can be asked", i.plane.Name())
	}
	names := []string{name}
	if i.in.IPIP {
		name = progtest.Program(sim.FromUplink)
		names = []string{name, progtest.FromIPIP}
	}
	r, err := plane.Programs(names)
	if err != nil {
		return err
	}
	defer r.Close()
	runner, err := progtest.New(r.Programs, r.Hop6)
	if err != nil {
		return err
	}
	defer runner.Close()
	if name == progtest.EachProgram {
		runner.AtUplinks(func(ifindex int) bool { _, ok := i.places.Uplinks[ifindex]; return ok })
	}
	if err := i.copyFlow(r); err != nil {
		return err
	}
	if err := r.CopyShare(i.sender()); err != nil {
		return err
	}
	if a := i.state.Addrs[i.sender()]; a.Kind == nodestate.AddrEndpoint {
		if err := r.CopyNamed(i.plane.IfIndex(a), i.in.Packet.IP.Dst); err != nil {
			return err
		}
	}
	p := &i.answer.Program
	for p.Runs = 1; ; p.Runs++ {
		if i.result, err = runner.Run(i.in, i.frame); err != nil {
			return err
		}
		if i.gotWantedBackend() || p.Runs == maxRuns || i.answer.Flow != "" {
			break
		}
		if err := r.Forget(); err != nil {
			return err
		}
	}
	if !i.gotWantedBackend() {
		i.warn("backend %s was never chosen in %d runs", i.ask.Backend, p.Runs)
	}
	proof, err := plane.Prove(r, name, i.in.IfIndex, i.in.Packet.IP.Src.Is6())
	if err != nil {
		return err
	}
	p.Name, p.Tag, p.Live, p.ID, p.Same, p.Why = proof.Program, proof.Tag, proof.Live, proof.ID, proof.Same(), proof.Attached
	if i.in.IPIP {
		unpacks, err := plane.Prove(r, progtest.FromIPIP, i.in.IfIndex, false)
		if err != nil {
			return err
		}
		if proof.Tag == proof.Live && unpacks.Tag != unpacks.Live {
			proof = unpacks
		}
	}
	switch {
	case proof.Tag != proof.Live:
		i.warn("the program that was run is not the one that is loaded (tags %s and %s): this answer is not about the node's packets", proof.Tag, proof.Live)
	case proof.Attached != "":
		i.warn("the program is not in effect: %s", proof.Attached)
	}
	return nil
}

// copyFlow lets the dry run know the flow of the packet, where the node knows one.
func (i *inquiry) copyFlow(r *dryrun.Instance) error {
	p := i.in.Packet
	sp, dp := p.Ports()
	k := dryrun.FlowKey{Src: p.IP.Src, Dst: p.IP.Dst, SrcPort: sp, DstPort: dp, Proto: model.Protocol(p.IP.Proto)}
	found, established, err := r.CopyFlow(k)
	if err != nil || !found {
		return err
	}
	if _, _, err := r.CopyFlow(k.Reversed()); err != nil {
		return err
	}
	i.answer.Flow = "the node knows a half-open connection of these addresses and ports; it was copied"
	if established {
		i.answer.Flow = "the node knows a connection of these addresses and ports; it was copied"
	}
	return nil
}
