// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// tstampAt is where struct __sk_buff (linux/bpf.h) has tstamp.
const tstampAt = 152

// forgetTimes begins the program that meets what pods send by taking away the time of departure
// that a pod gave its packet (SO_TXTIME): fq at an uplink would keep it as long. It is put in front
// here, as a program that need not do it does not even ask. from_limited has it in C.
func forgetTimes(spec *ebpf.CollectionSpec) error {
	p := spec.Programs["weir_from_workload"]
	if p == nil { // not among those that are loaded
		return nil
	}
	if len(p.Instructions) == 0 {
		return errors.New("the program weir_from_workload is empty")
	}
	was := p.Instructions[0]
	first := asm.Mov.Imm(asm.R0, 0).WithSource(was.Source())
	first = btf.WithFuncMetadata(first, btf.FuncMetadata(&was)).WithSymbol(was.Symbol())
	p.Instructions[0] = btf.WithFuncMetadata(was, nil).WithSymbol("")
	p.Instructions = append(asm.Instructions{first, asm.StoreMem(asm.R1, tstampAt, asm.R0, asm.DWord)}, p.Instructions...)
	return nil
}
