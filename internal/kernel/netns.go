// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// soNetnsCookie is SO_NETNS_COOKIE of asm-generic/socket.h, since kernel 5.14.
const soNetnsCookie = 71

// NetnsCookie returns the number that the kernel gave the calling thread's network namespace, which
// is what bpf_get_netns_cookie returns to programs.
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening a socket for the cookie of the network namespace: %w", err)
	}
	defer unix.Close(fd)
	var buf [8]byte
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, soNetnsCookie,
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("cookie of the network namespace (SO_NETNS_COOKIE, since Linux 5.14): %w", errno)
	}
	return binary.NativeEndian.Uint64(buf[:]), nil
}

// InNetns runs f in the network namespace that fd is open on. When the thread cannot come back it
// ends with the goroutine.
func InNetns(fd int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer own.Close()
		if err := netns.Set(netns.NsHandle(fd)); err != nil {
			done <- err
			return
		}
		err = f()
		if netns.Set(own) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
