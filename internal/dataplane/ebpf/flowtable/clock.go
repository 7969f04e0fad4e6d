// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// KernelClock reads the programs' clock: units of 256 jiffies.
type KernelClock struct{ program *ebpf.Program }

func NewKernelClock() (*KernelClock, error) {
	const jiffies64 = asm.FnJiffies64
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_clock", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		jiffies64.Call(), asm.RSh.Imm(asm.R0, 8), asm.Return()}})
	if err != nil {
		return nil, fmt.Errorf("loading the program that reads the clock: %w", err)
	}
	return &KernelClock{p}, nil
}

func (c *KernelClock) Now() (uint32, error) {
	return c.program.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
}

// Now reads the programs' clock once.
func Now() (uint32, error) {
	c, err := NewKernelClock()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.Now()
}

func (c *KernelClock) Close() { c.program.Close() }
