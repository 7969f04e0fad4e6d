// SPDX-License-Identifier: Apache-2.0

// Package micro measures the eBPF programs one packet at a time, by BPF_PROG_TEST_RUN: nanoseconds
// a packet, less what an empty program costs. It runs in a network namespace of its own that has no
// link to anywhere, and attaches nothing.
package micro

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// testRun is the part of union bpf_attr (linux/bpf.h) that BPF_PROG_TEST_RUN reads and writes.
// cilium/ebpf's Benchmark takes no context, and its Run returns no duration.
type testRun struct {
	progFD      uint32
	retval      uint32
	dataSizeIn  uint32
	dataSizeOut uint32
	dataIn      uint64
	dataOut     uint64
	repeat      uint32
	duration    uint32 // ns of one run, the mean
	ctxSizeIn   uint32
	ctxSizeOut  uint32
	ctxIn       uint64
	ctxOut      uint64
	flags       uint32
	cpu         uint32
	batchSize   uint32
	pad         uint32
}

// skbContext is struct __sk_buff (linux/bpf.h) with the interface that a packet is at. Both fields
// are what the kernel lets a test set.
func skbContext(ifindex int) []byte {
	const ingress, at, size = 9 * 4, 10 * 4, 192
	ctx := make([]byte, size)
	binary.NativeEndian.PutUint32(ctx[ingress:], uint32(ifindex))
	binary.NativeEndian.PutUint32(ctx[at:], uint32(ifindex))
	return ctx
}

// xdpContext is struct xdp_md (linux/bpf.h) of a frame that comes in by an interface.
func xdpContext(ifindex, size int) []byte {
	const end, ingress, all = 4, 12, 24
	ctx := make([]byte, all)
	binary.NativeEndian.PutUint32(ctx[end:], uint32(size))
	binary.NativeEndian.PutUint32(ctx[ingress:], uint32(ifindex))
	return ctx
}

// run gives the frame to the program repeat times; from the second on the program meets what it
// made of the frame. It returns what the last run returned, the mean time of a run, and the frame
// at the end.
func run(p *ebpf.Program, frame []byte, ifindex, repeat int) (uint32, time.Duration, []byte, error) {
	out := make([]byte, len(frame)+64)
	ctx := skbContext(ifindex)
	if p.Type() == ebpf.XDP {
		ctx, out = xdpContext(ifindex, len(frame)), make([]byte, len(frame)+256)
	}
	attr := testRun{
		progFD: uint32(p.FD()), repeat: uint32(repeat),
		dataSizeIn: uint32(len(frame)), dataIn: uint64(uintptr(unsafe.Pointer(&frame[0]))),
		dataSizeOut: uint32(len(out)), dataOut: uint64(uintptr(unsafe.Pointer(&out[0]))),
		ctxSizeIn: uint32(len(ctx)), ctxIn: uint64(uintptr(unsafe.Pointer(&ctx[0]))),
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		runtime.KeepAlive(frame)
		runtime.KeepAlive(out)
		runtime.KeepAlive(ctx)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, 0, nil, fmt.Errorf("running %v: %w", p, errno)
		}
		return attr.retval, time.Duration(attr.duration), out[:attr.dataSizeOut], nil
	}
}

// emptyProgram does nothing: what running it costs is not the programs' fault.
func emptyProgram() (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "empty", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("loading an empty program: %w", err)
	}
	return p, nil
}
