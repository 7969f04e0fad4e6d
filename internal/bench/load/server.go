// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ServerOptions say what to serve; an invalid address means: not that one.
type ServerOptions struct {
	HTTP, UDP, Sink netip.AddrPort
	CPU, SinkCPU    int // < 0 = any
	// HTTPPorts is at how many ports HTTP is answered, from HTTP's on; 0 = one.
	HTTPPorts int
	// CloseFirst makes the HTTP server close its connections, as ApacheBench expects; otherwise
	// clients do.
	CloseFirst bool
}

// serverPatience is how long a server waits for a client that has connected.
const serverPatience = 2 * time.Second

// cpuPath is what a client asks for to learn the CPU time that the server has used, in ns.
const cpuPath = "/cpu"

// Serve serves until a listener fails. It returns once all listen, with a channel for the first
// failure. Each server has a thread of its own that never yields to Go's scheduler, so the caller's
// GOMAXPROCS must exceed the number of servers, and nothing may stop the world.
func Serve(o ServerOptions) (<-chan error, error) {
	failed := make(chan error, 4)
	start := func(what string, at netip.AddrPort, kind, cpu int, loop func(fd int) error) error {
		if !at.IsValid() {
			return nil
		}
		fd, err := listen(at, kind)
		if err != nil {
			return fmt.Errorf("%s at %v: %w", what, at, err)
		}
		if at == o.HTTP && kind == unix.SOCK_STREAM && o.HTTPPorts > 1 {
			if err := redirectPorts(fd, at.Port(), o.HTTPPorts); err != nil {
				return fmt.Errorf("%s at %v: %w", what, at, err)
			}
		}
		go func() {
			err := pin(cpu)
			if err == nil {
				err = loop(fd)
			}
			failed <- fmt.Errorf("%s at %v: %w", what, at, err)
		}()
		return nil
	}
	web := func(fd int) error { return serveHTTP(fd, o.CloseFirst) }
	err := errors.Join(
		start("HTTP server", o.HTTP, unix.SOCK_STREAM, o.CPU, web),
		start("UDP echo", o.UDP, unix.SOCK_DGRAM, o.CPU, serveUDP),
		start("sink", o.Sink, unix.SOCK_STREAM, o.SinkCPU, serveSink),
		start("sink of datagrams", o.Sink, unix.SOCK_DGRAM, o.SinkCPU, serveDatagramSink),
	)
	return failed, err
}

func listen(at netip.AddrPort, kind int) (int, error) {
	sa, err := sockaddrOf(at)
	if err != nil {
		return 0, err
	}
	fd, e := rawSocket(kind)
	if e != 0 {
		return 0, fmt.Errorf("opening a socket: %w", e)
	}
	if kind == unix.SOCK_STREAM {
		if err := tcpOptions(fd); err != nil {
			return 0, err
		}
	}
	if e := rawBind(fd, &sa); e != 0 {
		return 0, fmt.Errorf("binding: %w", e)
	}
	if kind == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 512); err != nil {
			return 0, fmt.Errorf("listening: %w", err)
		}
	}
	return fd, nil
}

// acceptOne returns the next connection, with time-outs.
func acceptOne(fd int) (int, error) {
	for {
		c, e := rawAccept(fd)
		switch e {
		case 0:
			return c, timeouts(c, serverPatience)
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return 0, fmt.Errorf("accepting: %w", e)
		}
	}
}

// serveHTTP answers one request a connection, one connection after the other, and waits for the
// client to close first unless it does.
func serveHTTP(fd int, closes bool) error {
	const body = "Weir's bench server: 64 bytes of body, so that it is not empty.\n"
	answer := response(body)
	buf := make([]byte, 4096)
	ask := []byte("GET " + cpuPath + " ")
	for {
		c, err := acceptOne(fd)
		if err != nil {
			return err
		}
		n, e := rawRead(c, buf)
		if e == 0 && n > 0 {
			out := answer
			if bytes.HasPrefix(buf[:n], ask) {
				out = response(strconv.FormatInt(ProcessCPU().Nanoseconds(), 10))
			}
			if writeAll(c, out) == nil && !closes {
				rawRead(c, buf)
			}
		}
		rawClose(c)
	}
}

func response(body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// threadCPU is the user and system time of this thread.
func threadCPU() time.Duration { return usage(unix.RUSAGE_THREAD) }

func usage(who int) time.Duration {
	var ru unix.Rusage
	if unix.Getrusage(who, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func serveUDP(fd int) error {
	buf := make([]byte, 65536)
	var from sockaddr
	for {
		n, e := rawReceive(fd, buf, &from)
		if e != 0 {
			if e == unix.EINTR || e == unix.ECONNREFUSED {
				continue
			}
			return fmt.Errorf("receiving: %w", e)
		}
		if n > 0 {
			rawAnswer(fd, buf[:n], &from)
		}
	}
}

// serveSink reads a stream to its end and answers how many bytes there were and what CPU time that
// took, in ns.
func serveSink(fd int) error {
	buf := make([]byte, streamBuffer)
	for {
		c, err := acceptOne(fd)
		if err != nil {
			return err
		}
		before, total := threadCPU(), int64(0)
		for {
			n, e := rawRead(c, buf)
			if e != 0 || n == 0 {
				break
			}
			total += int64(n)
		}
		writeAll(c, fmt.Appendf(nil, "%d %d\n", total, (threadCPU()-before).Nanoseconds()))
		rawClose(c)
	}
}

// ChildrenCPU is the user and system time of the processes that this one started and that ended.
func ChildrenCPU() time.Duration { return usage(unix.RUSAGE_CHILDREN) }

// ProcessCPU is the user and system time of this process.
func ProcessCPU() time.Duration { return usage(unix.RUSAGE_SELF) }
