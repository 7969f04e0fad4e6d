// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a blocking one.
type socket int

func sockaddr(a netip.AddrPort) (unix.Sockaddr, int) {
	addr := a.Addr().Unmap()
	if addr.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: addr.As16()}, unix.AF_INET6
}

// addrPort is the address of a kernel's answer; invalid for other families.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// retry repeats a call that a signal interrupted: Go's runtime sends some to its threads.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// listen opens a listening TCP socket or a bound UDP one. A port of 0 is the kernel's choice.
func listen(at netip.AddrPort, kind int) (socket, error) {
	sa, family := sockaddr(at)
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening a socket: %w", err)
	}
	s := socket(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		s.close()
		return -1, fmt.Errorf("setting SO_REUSEADDR: %w", err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		s.close()
		return -1, fmt.Errorf("binding to %v: %w", at, err)
	}
	if kind == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 4096); err != nil {
			s.close()
			return -1, fmt.Errorf("listening at %v: %w", at, err)
		}
	} else {
		s.buffers()
	}
	return s, nil
}

// bufferSize is asked for at sockets of datagrams; the kernel gives at most net.core.rmem_max and
// wmem_max.
const bufferSize = 8 << 20

func (s socket) buffers() {
	_ = unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize) // as much as is allowed
	_ = unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_SNDBUF, bufferSize)
}

func (s socket) port() (uint16, error) {
	sa, err := unix.Getsockname(int(s))
	if err != nil {
		return 0, fmt.Errorf("asking for a socket's address: %w", err)
	}
	return addrPort(sa).Port(), nil
}

// connect opens a connection, or binds a UDP socket to its peer. A blocking call takes at most
// patience.
func connect(to netip.AddrPort, kind int, patience time.Duration, c congestion) (socket, error) {
	sa, family := sockaddr(to)
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening a socket: %w", err)
	}
	s := socket(fd)
	err = s.timeouts(patience)
	if kind == unix.SOCK_STREAM {
		err = errors.Join(err, s.stream(c))
	}
	if err != nil {
		s.close()
		return -1, err
	}
	if err := s.connect(sa, patience); err != nil {
		s.close()
		if expired(err) {
			return -1, fmt.Errorf("connecting to %v: no answer within %v: %w", to, patience, errTimeout)
		}
		return -1, fmt.Errorf("connecting to %v: %w", to, err)
	}
	return s, nil
}

// connect waits for a connection that a signal interrupted while it was made: it goes on without
// the call.
func (s socket) connect(to unix.Sockaddr, patience time.Duration) error {
	err := unix.Connect(int(s), to)
	if err != unix.EINTR {
		return err
	}
	ready := []unix.PollFd{{Fd: int32(s), Events: unix.POLLOUT}}
	n := 0
	if err := retry(func() error { n, err = unix.Poll(ready, int(patience.Milliseconds())); return err }); err != nil {
		return err
	}
	if n == 0 {
		return unix.ETIMEDOUT
	}
	code, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

var errTimeout = errors.New("time-out")

func expired(err error) bool {
	return err == unix.EAGAIN || err == unix.EINPROGRESS || err == unix.ETIMEDOUT
}

// congestion is the TCP congestion control that a socket is to use; without a name the one of its
// network namespace.
type congestion struct {
	name string
	must bool // else the namespace's where this one may not be set (EPERM) or is not known (ENOENT); tcp(7)
}

func (s socket) stream(c congestion) error {
	if err := unix.SetsockoptInt(int(s), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("setting TCP_NODELAY: %w", err)
	}
	if c.name == "" {
		return nil
	}
	err := unix.SetsockoptString(int(s), unix.IPPROTO_TCP, unix.TCP_CONGESTION, c.name)
	if err == nil || !c.must && (err == unix.EPERM || err == unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("setting the TCP congestion control %s: %w", c.name, err)
}

// timeouts bound every blocking call; the one for sending bounds connect too.
func (s socket) timeouts(d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("setting the receive time-out: %w", err)
	}
	if err := unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return fmt.Errorf("setting the send time-out: %w", err)
	}
	return nil
}

// read returns 0 at the end of a stream.
func (s socket) read(b []byte) (n int, err error) {
	err = retry(func() error { n, err = unix.Read(int(s), b); return err })
	if err != nil && expired(err) {
		err = errTimeout
	}
	return max(n, 0), err
}

func (s socket) write(b []byte) (n int, err error) {
	err = retry(func() error { n, err = unix.Write(int(s), b); return err })
	if err != nil && expired(err) {
		err = errTimeout
	}
	return max(n, 0), err
}

func (s socket) writeAll(b []byte) error {
	for len(b) > 0 {
		n, err := s.write(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// readAll fills b.
func (s socket) readAll(b []byte) error {
	for len(b) > 0 {
		n, err := s.read(b)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("the connection ended")
		}
		b = b[n:]
	}
	return nil
}

func (s socket) close() { _ = unix.Close(int(s)) }

// facts are the congestion control and the segment size of a connection.
func (s socket) facts() (control string, mss int) {
	if c, err := unix.GetsockoptString(int(s), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
		control = c
	}
	if m, err := unix.GetsockoptInt(int(s), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
		mss = m
	}
	return control, mss
}
