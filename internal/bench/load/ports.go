// SPDX-License-Identifier: Apache-2.0

package load

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// Fields of struct bpf_sk_lookup (linux/bpf.h), by offset.
const (
	lookupProtocol  = 12
	lookupLocalPort = 60
)

// redirectPorts makes a listener take the connections to count TCP ports from first on, of the
// network namespace of the calling thread, until this process ends (a BPF program of type
// sk_lookup). So many backends cost the server no more than one: there is one socket, and it is
// always in the CPU's caches.
func redirectPorts(listener int, first uint16, count int) error {
	if int(first)+count > 1<<16 {
		return fmt.Errorf("there are no %d ports from %d on", count, first)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("a map of sockets: %w", err)
	}
	if err := sockets.Put(uint32(0), uint64(listener)); err != nil {
		return fmt.Errorf("putting a listener into a map: %w", err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_bench", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R2, asm.R6, lookupProtocol, asm.Word),
			asm.JNE.Imm(asm.R2, 6, "pass"),
			asm.LoadMem(asm.R2, asm.R6, lookupLocalPort, asm.Word),
			asm.JLT.Imm(asm.R2, int32(first), "pass"),
			asm.JGE.Imm(asm.R2, int32(first)+int32(count), "pass"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, sockets.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "pass"),
			asm.Mov.Reg(asm.R7, asm.R0),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.R7),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnSkAssign.Call(),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.FnSkRelease.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"), // SK_PASS
			asm.Return(),
		}})
	if err != nil {
		return fmt.Errorf("a program that looks sockets up: %w", err)
	}
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	// Kept open until the process ends: when its link goes the ports go.
	held, err := link.AttachNetNs(int(here.Fd()), program)
	if err != nil {
		return fmt.Errorf("attaching a program that looks sockets up: %w", err)
	}
	kept = append(kept, held)
	return errors.Join(program.Close(), sockets.Close())
}

// kept are the links of this process.
var kept []link.Link
