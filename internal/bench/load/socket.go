// SPDX-License-Identifier: Apache-2.0

// Package load makes the traffic of the benchmarks: connect–request–close over TCP, round trips
// over UDP, one TCP stream, and the servers for them. It speaks to the kernel by blocking system
// calls on pinned threads, because Go's poller and scheduler would be most of what is measured.
// IPv4 only. Every client is bounded in count and time.
package load

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// congestion is what the bench's sockets use: allowed in every network namespace, unlike the
// machine's default.
const congestion = "reno"

// sockaddr is struct sockaddr_in.
type sockaddr struct {
	family uint16
	port   [2]byte
	addr   [4]byte
	zero   [8]byte
}

func sockaddrOf(a netip.AddrPort) (sockaddr, error) {
	if !a.Addr().Is4() {
		return sockaddr{}, fmt.Errorf("%v is not IPv4", a)
	}
	return sockaddr{family: unix.AF_INET, port: [2]byte{byte(a.Port() >> 8), byte(a.Port())}, addr: a.Addr().As4()}, nil
}

// The calls below do not report to Go's scheduler that they block: the thread is the socket's
// alone.

func rawConnect(fd int, to *sockaddr) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
	return e
}

func rawBind(fd int, at *sockaddr) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(at)), unsafe.Sizeof(*at))
	return e
}

func rawSocket(kind int) (int, unix.Errno) {
	fd, _, e := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, uintptr(kind|unix.SOCK_CLOEXEC), 0)
	return int(fd), e
}

func rawAccept(fd int) (int, unix.Errno) {
	c, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
	return int(c), e
}

// rawRead returns 0 at the end of the stream. b is not empty.
func rawRead(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

func rawWrite(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// rawReceive reads a datagram and whom it is from.
func rawReceive(fd int, b []byte, from *sockaddr) (int, unix.Errno) {
	size := uint32(unsafe.Sizeof(*from))
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0,
		uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)))
	return int(n), e
}

// rawAnswer sends a datagram, which is lost where that fails. b is not empty.
func rawAnswer(fd int, b []byte, to *sockaddr) {
	unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
}

func rawClose(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// writeAll writes b as a whole.
func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, e := rawWrite(fd, b)
		if e != 0 {
			return e
		}
		b = b[n:]
	}
	return nil
}

// timeouts bound every blocking call of a socket; the one for sending bounds connect too.
func timeouts(fd int, d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("setting the receive time-out: %w", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return fmt.Errorf("setting the send time-out: %w", err)
	}
	return nil
}

func tcpOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("setting SO_REUSEADDR: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("setting TCP_NODELAY: %w", err)
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion); err != nil {
		return fmt.Errorf("setting TCP_CONGESTION %s: %w", congestion, err)
	}
	return nil
}

// pin binds the calling goroutine to its thread, and the thread to a CPU; cpu < 0 leaves the CPU
// open.
func pin(cpu int) error {
	runtime.LockOSThread()
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("binding to CPU %d: %w", cpu, err)
	}
	return nil
}

// ReuseTimeWait lets the calling thread's network namespace take a port in TIME_WAIT again after a
// second (net.ipv4.tcp_tw_reuse = 1): otherwise collisions show as stalls.
func ReuseTimeWait() error {
	const path = "/proc/sys/net/ipv4/tcp_tw_reuse"
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == "1" {
		return nil
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("allowing TIME_WAIT to be reused: %w", err)
	}
	return nil
}

func isTimeout(e error) bool { return e == unix.EAGAIN || e == unix.EINPROGRESS || e == unix.ETIMEDOUT }
