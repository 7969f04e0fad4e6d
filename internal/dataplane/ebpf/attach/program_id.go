// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ProgramID returns the kernel's id of a program. It asks for nothing else, as it is asked about
// all programs a few times a second: Program.Info also reads what /proc says of each.
func ProgramID(p *ebpf.Program) (ebpf.ProgramID, error) {
	// The beginnings of union bpf_attr for BPF_OBJ_GET_INFO_BY_FD, and of struct bpf_prog_info.
	q := &struct {
		fd, size uint32
		info     uint64
		kind, id uint32
	}{fd: uint32(p.FD()), size: 8}
	var pin runtime.Pinner // the kernel has its address as a number
	pin.Pin(q)
	defer pin.Unpin()
	q.info = uint64(uintptr(unsafe.Pointer(&q.kind)))
	if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(q)), 16); errno != 0 {
		return 0, fmt.Errorf("asking for the id of a program: %w", errno)
	}
	runtime.KeepAlive(p)
	return ebpf.ProgramID(q.id), nil
}
