// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
)

var (
	errTimeout = errors.New("nobody answered in time")
	errRefused = errors.New("aborted by the other end")
)

const (
	protoSCTP = 132
	// repeated is how long a chunk waits for its answer before it is sent again.
	repeated = 500 * time.Millisecond
)

// connect sets an association up, waits until the other end acknowledges its cookie, and aborts it.
func connect(target netip.AddrPort, timeout time.Duration) error {
	if !target.Addr().Is4() {
		return fmt.Errorf("%s is not an IPv4 address", target.Addr())
	}
	s, err := openSocket()
	if err != nil {
		return err
	}
	defer syscall.Close(s)
	var random [6]byte
	rand.Read(random[:])
	own := packet{src: 32768 | binary.BigEndian.Uint16(random[:]), dst: target.Port()}
	tag := binary.BigEndian.Uint32(random[2:]) | 1
	sent, want := packet{src: own.src, dst: own.dst, chunk: chunkInit, value: initValue(tag)}, uint8(chunkInitAck)
	deadline, next := time.Now().Add(timeout), time.Now()
	for {
		now := time.Now()
		if now.After(deadline) {
			return errTimeout
		}
		if !now.Before(next) {
			if err := sent.sendTo(s, target.Addr()); err != nil {
				return err
			}
			next = now.Add(repeated)
		}
		from, got, err := receive(s, min(time.Until(next), time.Until(deadline)))
		if err != nil {
			return err
		}
		if from != target.Addr() || got.src != target.Port() || got.dst != own.src || got.tag != tag {
			continue
		}
		switch {
		case got.chunk == chunkAbort:
			return errRefused
		case got.chunk != want:
		case want == chunkInitAck:
			peer, cookie, ok := got.initAck()
			if !ok {
				return errors.New("an INIT ACK without a cookie")
			}
			sent, want, next = packet{src: own.src, dst: own.dst, tag: peer, chunk: chunkCookieEcho, value: cookie}, chunkCookieAck, now
		default:
			sent.chunk, sent.value = chunkAbort, nil
			return sent.sendTo(s, target.Addr())
		}
	}
}

// serve accepts associations at ports, for ever.
func serve(ports map[uint16]bool) error {
	s, err := openSocket()
	if err != nil {
		return err
	}
	os.Stdout.WriteString("serving SCTP\n")
	for {
		from, got, err := receive(s, time.Hour)
		if err != nil {
			return err
		}
		if !ports[got.dst] {
			continue
		}
		answer, ok := got.answer()
		if !ok {
			continue
		}
		if err := answer.sendTo(s, from); err != nil {
			os.Stderr.WriteString("answer to " + from.String() + ": " + err.Error() + "\n") // a policy may forbid it
		}
	}
}

func openSocket() (int, error) {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, protoSCTP)
	if err != nil {
		return 0, fmt.Errorf("raw socket: %w", err)
	}
	return s, nil
}

func (p packet) sendTo(s int, to netip.Addr) error {
	if err := syscall.Sendto(s, p.marshal(), 0, &syscall.SockaddrInet4{Addr: to.As4()}); err != nil {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	return nil
}

// receive waits for a whole packet of SCTP. After the time limit, and for anything else, it returns
// a packet without a chunk.
func receive(s int, limit time.Duration) (from netip.Addr, p packet, err error) {
	tv := syscall.NsecToTimeval(max(limit, time.Millisecond).Nanoseconds())
	if err := syscall.SetsockoptTimeval(s, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &tv); err != nil {
		return from, p, fmt.Errorf("set the time limit: %w", err)
	}
	b := make([]byte, 65536)
	n, _, err := syscall.Recvfrom(s, b, 0)
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ECONNREFUSED):
		return from, packet{chunk: chunkNone}, nil
	case err != nil:
		return from, p, fmt.Errorf("receive: %w", err)
	}
	b = b[:n]
	if len(b) < 20 || len(b) < int(b[0]&15)*4 {
		return from, packet{chunk: chunkNone}, nil
	}
	from = netip.AddrFrom4([4]byte(b[12:16]))
	return from, parse(b[int(b[0]&15)*4:]), nil
}
