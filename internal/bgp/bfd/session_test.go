// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

// up returns two sessions that have found each other.
func up(t *testing.T) (a, b *session) {
	t.Helper()
	a, b = newSession(), newSession()
	for range 4 {
		give(t, a, b)
		give(t, b, a)
	}
	if a.state != bfd.StateUp || b.state != bfd.StateUp {
		t.Fatalf("they are %s and %s", a.state, b.state)
	}
	return a, b
}

// give hands one packet on, which must be accepted, and reports whether the receiver has failed.
func give(t *testing.T, from, to *session) bool {
	t.Helper()
	p := from.packet(false)
	if !to.accepts(p) {
		t.Fatalf("%+v is not accepted in state %s", p, to.state)
	}
	failed := to.receive(p)
	if p.Poll {
		if answer := to.packet(true); !from.accepts(answer) || from.receive(answer) {
			t.Fatalf("the answer %+v is not taken", answer)
		}
	}
	return failed
}

func TestUp(t *testing.T) {
	a, b := up(t)
	if a.polling || b.polling || a.remote != b.local || b.remote != a.local {
		t.Errorf("they are %+v and %+v", a, b)
	}
	if want := multiplier * sends; a.detection != want {
		t.Errorf("a failure is seen after %s, want %s", a.detection, want)
	}
	for range 100 {
		if d := a.next(); d <= sends*3/4-1 || d > sends {
			t.Fatalf("the next packet is sent after %s", d)
		}
	}
	b.remoteMinRx = 0
	if d := b.next(); d != 0 {
		t.Errorf("one that wants no packets gets one after %s", d)
	}
}

func TestExpiry(t *testing.T) {
	a, b := up(t)
	if !a.expire() || a.state != bfd.StateDown || a.diagnostic != bfd.DiagnosticControlDetectionTimeExpired {
		t.Errorf("it is %+v", a)
	}
	if a.expire() {
		t.Error("it failed twice")
	}
	if d := a.next(); d < slow*3/4 || d > slow {
		t.Errorf("what is down sends after %s", d)
	}
	if !give(t, a, b) || b.state != bfd.StateDown {
		t.Errorf("the other end did not hear of it: %s", b.state)
	}
	for range 4 {
		give(t, a, b)
		give(t, b, a)
	}
	if a.state != bfd.StateUp || b.state != bfd.StateUp {
		t.Errorf("afterwards they are %s and %s", a.state, b.state)
	}
}

// An end on purpose is no failure (RFC 5882, section 3.2).
func TestAdminDown(t *testing.T) {
	a, b := up(t)
	a.state = bfd.StateAdminDown
	if give(t, a, b) || b.state != bfd.StateDown {
		t.Errorf("the other end is %s", b.state)
	}
	if b.expire() {
		t.Error("and fails afterwards")
	}
}

func TestSlowPeer(t *testing.T) {
	a, b := up(t)
	p := b.packet(false)
	p.DesiredMinTxInterval, p.DetectTimeMultiplier, p.RequiredMinRxInterval = 400_000, 3, 2_000_000
	a.receive(p)
	if a.detection != 1200*time.Millisecond || a.next() < 1500*time.Millisecond {
		t.Errorf("a failure is seen after %s, packets are sent after %s", a.detection, a.next())
	}
}

func TestRejected(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a *session, p *bfd.BFDHeader)
		want   bool
	}{
		"as it is":                      {func(*session, *bfd.BFDHeader) {}, true},
		"another version":               {func(_ *session, p *bfd.BFDHeader) { p.Version = 0 }, false},
		"no multiplier":                 {func(_ *session, p *bfd.BFDHeader) { p.DetectTimeMultiplier = 0 }, false},
		"no discriminator":              {func(_ *session, p *bfd.BFDHeader) { p.MyDiscriminator = 0 }, false},
		"another session":               {func(_ *session, p *bfd.BFDHeader) { p.YourDiscriminator++ }, false},
		"up without naming the session": {func(_ *session, p *bfd.BFDHeader) { p.YourDiscriminator = 0 }, false},
		"down without naming it":        {func(_ *session, p *bfd.BFDHeader) { p.YourDiscriminator, p.State = 0, bfd.StateDown }, true},
		"down, of who does not know it": {func(_ *session, p *bfd.BFDHeader) {
			p.YourDiscriminator, p.State, p.MyDiscriminator = 0, bfd.StateDown, 7
		}, false},
		"admin down of who does not": {func(_ *session, p *bfd.BFDHeader) {
			p.YourDiscriminator, p.State, p.MyDiscriminator = 0, bfd.StateAdminDown, 7
		}, false},
		"down, of a new one, after ours": {func(a *session, p *bfd.BFDHeader) {
			a.expire()
			p.YourDiscriminator, p.State, p.MyDiscriminator = 0, bfd.StateDown, 7
		}, true},
	} {
		a, b := up(t)
		p := b.packet(false)
		c.change(a, p)
		if got := a.accepts(p); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
