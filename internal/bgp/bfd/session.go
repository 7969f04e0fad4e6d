// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"math/rand/v2"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

// Times of a session. The other end has failed when nothing of it came for as many of the intervals
// at which it sends as it says: 0.75 s with BIRD's five of 150 ms, 0.9 s with FRR's three of 300
// ms. This end has failed for the other one after three of those at which it sends (section 6.8.4),
// 0.75 s and 0.9 s as well.
const (
	sends      = 250 * time.Millisecond // between packets, where the other end takes as many
	takes      = 150 * time.Millisecond
	slow       = time.Second // between packets while a session is not up, at least (section 6.8.3)
	multiplier = 3
)

// session is the state of one (RFC 5880, section 6.8.1), without sockets and clocks.
type session struct {
	state, remoteState bfd.StateType
	diagnostic         bfd.DiagnosticType
	local, remote      uint32 // discriminators; remote is 0 while it is not known
	polling            bool   // new intervals were announced, and not acknowledged

	remoteMinRx time.Duration
	detection   time.Duration // how long nothing may come
}

func newSession() *session {
	return &session{state: bfd.StateDown, remoteState: bfd.StateDown, local: 1 + rand.Uint32N(1<<32-1), remoteMinRx: 1}
}

// desiredTx is how often this end wants to send.
func (s *session) desiredTx() time.Duration {
	if s.state == bfd.StateUp {
		return sends
	}
	return slow
}

// next is when to send the next packet: with a jitter of up to a quarter, so that sessions do not
// get into step (section 6.8.7). 0 = none, the other end wants none.
func (s *session) next() time.Duration {
	if s.remoteMinRx == 0 {
		return 0
	}
	d := max(s.desiredTx(), s.remoteMinRx)
	return d - rand.N(d/4)
}

// packet is what is sent.
func (s *session) packet(final bool) *bfd.BFDHeader {
	return &bfd.BFDHeader{Version: 1, Diagnostic: s.diagnostic, State: s.state, Poll: s.polling && !final, Final: final, DetectTimeMultiplier: multiplier,
		MyDiscriminator: s.local, YourDiscriminator: s.remote, DesiredMinTxInterval: uint32(s.desiredTx().Microseconds()), RequiredMinRxInterval: uint32(takes.Microseconds())}
}

// accepts reports whether a packet is one of this session (section 6.8.6).
func (s *session) accepts(p *bfd.BFDHeader) bool {
	switch {
	case p.Version != 1 || p.DetectTimeMultiplier == 0 || p.MyDiscriminator == 0:
		return false
	case p.YourDiscriminator != 0:
		return p.YourDiscriminator == s.local
	case p.State != bfd.StateDown && p.State != bfd.StateAdminDown:
		return false
	}
	// Who has begun anew does not know this end yet. It may not end a session that is up in another
	// one's name: that one is missed soon if it is really gone.
	return s.state != bfd.StateUp || p.MyDiscriminator == s.remote
}

// receive takes a packet that the session accepts. failed: the session was up, and the other end
// has lost it.
func (s *session) receive(p *bfd.BFDHeader) (failed bool) {
	s.remote, s.remoteState = p.MyDiscriminator, p.State
	s.remoteMinRx = time.Duration(p.RequiredMinRxInterval) * time.Microsecond
	s.detection = time.Duration(p.DetectTimeMultiplier) * max(takes, time.Duration(p.DesiredMinTxInterval)*time.Microsecond)
	if p.Final {
		s.polling = false
	}
	was := s.state
	switch p.State {
	case bfd.StateAdminDown: // on purpose: nothing is said about the path (RFC 5882, section 3.2)
		if was != bfd.StateDown {
			s.down(bfd.DiagnosticNeighborSignaledSessionDown)
		}
	case bfd.StateDown:
		if was == bfd.StateDown {
			s.state = bfd.StateInit
		} else if was == bfd.StateUp {
			s.down(bfd.DiagnosticNeighborSignaledSessionDown)
			failed = true
		}
	case bfd.StateInit:
		s.state = bfd.StateUp
	case bfd.StateUp:
		if was == bfd.StateInit {
			s.state = bfd.StateUp
		}
	}
	if s.state == bfd.StateUp && was != bfd.StateUp {
		s.diagnostic, s.polling = bfd.DiagnosticNoDiagnostic, true
	}
	return failed
}

// expire is called when nothing came for the detection time. failed: the session was up.
func (s *session) expire() (failed bool) {
	failed = s.state == bfd.StateUp
	if s.state == bfd.StateInit || failed {
		s.down(bfd.DiagnosticControlDetectionTimeExpired)
	}
	s.remote = 0
	return failed
}

func (s *session) down(why bfd.DiagnosticType) {
	s.state, s.diagnostic, s.polling = bfd.StateDown, why, false
}
