// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Server answers who knows its token, at one address.
type Server struct {
	At    netip.Addr // the only address that it listens at
	Port  uint16     // for TCP and UDP; 0 = the kernel's choice
	Token string
	Name  string // what /who says

	last atomic.Pointer[answer] // the last one to "/"
}

type answer struct {
	n    int
	text []byte
}

// known is the last head that a worker read. A test sends the same one thousands of times.
type known struct {
	raw  []byte
	head head
}

func (k *known) parse(raw []byte) (head, error) {
	if len(raw) == len(k.raw) && subtle.ConstantTimeCompare(raw, k.raw) == 1 {
		return k.head, nil
	}
	h, err := parseHead(raw)
	if err == nil {
		k.raw, k.head = append(k.raw[:0], raw...), h
	}
	return h, err
}

// Listening is where a server can be reached.
type Listening struct {
	To  netip.AddrPort `json:"to"`
	UDP netip.AddrPort `json:"udp"`
}

const (
	// workers is how many connections are served at a time; more wait to be accepted.
	workers = 192
	// strangerPatience bounds how long a connection that has not shown the token may stay.
	strangerPatience = 2 * time.Second
	// idlePatience bounds how long one that has shown it may be silent.
	idlePatience = time.Minute
	shortToken   = 16
)

// Run serves until ctx ends; ready is called once, when all listen.
func (s *Server) Run(ctx context.Context, ready func(Listening)) error {
	if len(s.Token) < shortToken {
		return fmt.Errorf("a token of %d characters is too short", len(s.Token))
	}
	if !s.At.IsValid() || s.At.IsUnspecified() {
		return fmt.Errorf("the server listens at one address only, not at %v", s.At)
	}
	tcp, udp, at, err := s.open()
	if err != nil {
		return err
	}
	sessions := newSessions()
	failed := make(chan error, workers+1)
	for range workers {
		go func() { failed <- s.work(tcp, sessions) }()
	}
	go func() { failed <- sessions.serve(udp) }()
	ready(at)
	select {
	case <-ctx.Done():
		// Blocking calls return when their socket is shut down, not when it is closed.
		_ = unix.Shutdown(int(tcp), unix.SHUT_RDWR)
		_ = unix.Shutdown(int(udp), unix.SHUT_RDWR)
		return nil
	case err := <-failed:
		return err
	}
}

// open finds a port that is free for TCP and for UDP.
func (s *Server) open() (tcp, udp socket, at Listening, err error) {
	for range 20 {
		if tcp, err = listen(netip.AddrPortFrom(s.At, s.Port), unix.SOCK_STREAM); err != nil {
			return
		}
		port, e := tcp.port()
		if err = e; err != nil {
			tcp.close()
			return
		}
		to := netip.AddrPortFrom(s.At, port)
		if udp, err = listen(to, unix.SOCK_DGRAM); err == nil {
			return tcp, udp, Listening{to, to}, nil
		}
		tcp.close()
		if s.Port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			return
		}
	}
	return
}

// work serves one connection after the other, on a thread of its own.
func (s *Server) work(listener socket, sessions *sessions) error {
	runtime.LockOSThread()
	b := newBuffered(-1)
	big := make([]byte, streamBuffer)
	var known known
	for {
		var fd int
		err := retry(func() (err error) { fd, _, err = unix.Accept4(int(listener), unix.SOCK_CLOEXEC); return err })
		switch err {
		case nil:
		case unix.ECONNABORTED, unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			time.Sleep(time.Millisecond)
			continue
		default:
			return fmt.Errorf("accepting a connection: %w", err)
		}
		c := socket(fd)
		b.reset(c)
		if c.timeouts(strangerPatience) == nil && c.stream(congestion{}) == nil {
			s.serve(b, big, sessions, &known)
		}
		c.close()
	}
}

// serve answers the requests of a connection. What is wrong ends it; its client sees that.
func (s *Server) serve(b *buffered, big []byte, sessions *sessions, last *known) {
	for first := true; ; first = false {
		raw, err := b.until(headEnd, maxHead)
		if err != nil {
			return
		}
		h, err := last.parse(raw)
		if err != nil {
			_ = b.s.writeAll(answerText("400 Bad Request", []byte(err.Error()+"\n")))
			return
		}
		if !h.knows(s.Token) {
			last.raw = nil
			_ = b.s.writeAll(answerText("401 Unauthorized", nil))
			return
		}
		if first && !h.closes && b.s.timeouts(idlePatience) != nil {
			return
		}
		if err := s.answer(h, b, big, sessions); err != nil || h.closes || h.method != "GET" {
			return
		}
	}
}

func (s *Server) answer(h head, b *buffered, big []byte, sessions *sessions) error {
	bad := func(status string, err error) error {
		return errors.Join(err, b.s.writeAll(answerText(status, []byte(err.Error()+"\n"))))
	}
	switch h.method + " " + h.path {
	case "GET /":
		n, err := h.number("bytes", 0, maxMessage)
		if err != nil {
			return bad("400 Bad Request", err)
		}
		a := s.last.Load()
		if a == nil || a.n != n {
			a = &answer{n, answerText("200 OK", make([]byte, n))}
			s.last.Store(a)
		}
		return b.s.writeAll(a.text)
	case "GET /who":
		return b.s.writeAll(answerText("200 OK", []byte(s.Name)))
	case "GET /stat":
		r, err := ReadNode()
		if err != nil {
			return bad("500 Internal Server Error", err)
		}
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return b.s.writeAll(answerText("200 OK", text))
	case "POST /rr":
		n, err := h.number("bytes", 1, maxMessage)
		if err != nil {
			return bad("400 Bad Request", err)
		}
		return echo(b, n)
	case "POST /sink":
		return swallow(b, big)
	case "POST /udp":
		return sessions.hold(b, h.query.Get("echo") != "")
	}
	return bad("404 Not Found", fmt.Errorf("%s %s is not known here", h.method, h.path))
}

// echo sends messages of n bytes back.
func echo(b *buffered, n int) error {
	if err := b.s.writeAll(answerText("200 OK", nil)); err != nil {
		return err
	}
	message := make([]byte, n)
	for {
		if err := b.s.readAll(message); err != nil {
			return err
		}
		if err := b.s.writeAll(message); err != nil {
			return err
		}
	}
}

// streamBuffer is the size of one write and one read of a stream, in bytes; the same as iperf3's.
const streamBuffer = 128 << 10

// swallow reads a stream to its end and answers how many bytes there were.
func swallow(b *buffered, buf []byte) error {
	if err := b.s.writeAll(answerText("200 OK", nil)); err != nil {
		return err
	}
	total := int64(b.end - b.start)
	for {
		n, err := b.s.read(buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return b.s.writeAll(append(strconv.AppendInt(nil, total, 10), '\n'))
		}
		total += int64(n)
	}
}
