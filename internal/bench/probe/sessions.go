// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A datagram begins with the name of its session and a number: 16 bytes. Names are given out over a
// connection that has shown the token, and are not guessed; a datagram of no session is neither
// answered nor counted.
const (
	nameBytes = 8
	seqBytes  = 8
	// maxSessions bounds how many there are at a time.
	maxSessions = 512
)

// session is known as long as the connection that made it lasts.
type session struct {
	echo             bool // send datagrams back
	datagrams, bytes atomic.Int64
}

type sessions struct {
	mu  sync.RWMutex
	all map[uint64]*session
}

func newSessions() *sessions { return &sessions{all: map[uint64]*session{}} }

func (s *sessions) find(name uint64) *session {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[name]
}

func (s *sessions) add(echo bool) (uint64, *session, error) {
	var raw [nameBytes]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return 0, nil, fmt.Errorf("making a session: %w", err)
	}
	name, made := binary.BigEndian.Uint64(raw[:]), &session{echo: echo}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxSessions {
		return 0, nil, fmt.Errorf("there are %d sessions already", maxSessions)
	}
	s.all[name] = made
	return name, made, nil
}

func (s *sessions) remove(name uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
}

// hold makes a session and answers each line of the connection with its counters, until the
// connection ends.
func (s *sessions) hold(b *buffered, echo bool) error {
	name, made, err := s.add(echo)
	if err != nil {
		_ = b.s.writeAll(answerText("503 Service Unavailable", []byte(err.Error()+"\n")))
		return err
	}
	defer s.remove(name)
	// A session may be silent for as long as a test may take.
	if err := b.s.timeouts(maxDuration); err != nil {
		return err
	}
	text := hex.EncodeToString(binary.BigEndian.AppendUint64(nil, name))
	if err := b.s.writeAll(answerText("200 OK", []byte(text))); err != nil {
		return err
	}
	for {
		if _, err := b.until([]byte("\n"), 64); err != nil {
			return err
		}
		if err := b.s.writeAll(fmt.Appendf(nil, "%d %d\n", made.datagrams.Load(), made.bytes.Load())); err != nil {
			return err
		}
	}
}

// serve counts datagrams, and sends those back whose session wants that.
func (s *sessions) serve(at socket) error {
	runtime.LockOSThread()
	buf := make([]byte, maxDatagram+1)
	for {
		var n int
		var from unix.Sockaddr
		err := retry(func() (err error) { n, from, err = unix.Recvfrom(int(at), buf, 0); return err })
		switch err {
		case nil:
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EAGAIN, unix.ENOMEM, unix.ENOBUFS:
			continue // what an answer of ours met, or a moment without memory
		default:
			return fmt.Errorf("receiving datagrams: %w", err)
		}
		if from == nil { // shut down
			return fmt.Errorf("receiving datagrams: the socket is shut down")
		}
		if n < nameBytes+seqBytes {
			continue
		}
		session := s.find(binary.BigEndian.Uint64(buf))
		if session == nil {
			continue
		}
		session.datagrams.Add(1)
		session.bytes.Add(int64(n))
		if session.echo {
			_ = unix.Sendto(int(at), buf[:n], 0, from)
		}
	}
}
