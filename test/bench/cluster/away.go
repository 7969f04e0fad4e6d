// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/weir-net/weir/internal/watch"
)

// Away is what it brought that the API server was stopped for a time.
type Away struct {
	Seconds      float64   `json:"seconds"`
	SaidAfterS   []float64 `json:"said_after_s"`   // until a fan-out said that it is without the API server
	SinceOffS    []float64 `json:"since_off_s"`    // by how much what it says of since when differs from when that was
	StreamsEnded int64     `json:"streams_ended"`  // of stand-ins, until a change was in force again
	LeastServed  int       `json:"least_served"`   // nodes that the fan-outs served at the least, of all
	Snapshots    int64     `json:"snapshots"`      // that were sent, or what was lacking of one
	Bytes        int64     `json:"bytes"`          // of changes that were sent from the return on until then
	ProbesFailed int       `json:"probes_failed"`  // datagrams and connections that were not treated as before
	Probes       int       `json:"probes"`         // of so many
	BackAfterS   []float64 `json:"back_after_s"`   // from the return until a fan-out was in touch again
	InForceS     float64   `json:"in_force_s"`     // from the return until a change was in force that was made then
	ReceivedAllS float64   `json:"received_all_s"` // and until the last stand-in had it
}

// mostSaidAfter is the least time for which it is worth while to stop the API server: by then each
// fan-out has said so.
const mostSaidAfter = 20 * time.Second

// outOfTouch asks a fan-out whether it is without the API server, and since when.
func outOfTouch(addr string) (bool, time.Time) {
	var got struct {
		Watch watch.Status `json:"watch"`
	}
	if ask("http://"+addr+"/agents", &got) != nil {
		return false, time.Time{}
	}
	return !got.Watch.Connected, got.Watch.Since
}

// apiServerAway stops the API server, looks at what goes on meanwhile, and starts it again.
func (s *site) apiServerAway() {
	before := s.standInsNow(true)
	if before.Whole != s.nodes-1 || s.served() != s.nodes {
		say("the API server is not stopped: only %d of %d stand-ins are served", before.Whole, s.nodes-1)
		return
	}
	a := &Away{LeastServed: s.nodes, SaidAfterS: make([]float64, len(fanOutHealths)), SinceOffS: make([]float64, len(fanOutHealths)), BackAfterS: make([]float64, len(fanOutHealths))}
	port := policyPort // the one that is open
	if !s.probe.reaches(late(1, 1), port, 100*time.Millisecond) {
		port++
	}
	s.server.Stop()
	began := time.Now()
	say("the API server is stopped for %s", s.away)
	for end := began.Add(s.away); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for i, addr := range fanOutHealths {
			if lost, since := outOfTouch(addr); lost {
				if a.SaidAfterS[i] == 0 {
					a.SaidAfterS[i] = time.Since(began).Seconds()
				}
				a.SinceOffS[i] = since.Sub(began).Seconds()
			}
		}
		a.LeastServed = min(a.LeastServed, s.served())
		_, serves := s.probe.dial()
		a.probed(serves)
		a.probed(s.probe.reaches(late(1, 1), port, time.Second))
		a.probed(!s.probe.reaches(late(1, 0), probePort, 50*time.Millisecond))
	}
	a.Seconds = time.Since(began).Seconds()
	returning := s.standInsNow(true)
	s.server.StartAPIServer()
	back := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Minute)
	defer cancel()
	touched := make(chan struct{})
	go func() {
		defer close(touched)
		s.untilInTouch(ctx, a, back)
	}()
	s.probe.written = map[string]int64{}
	var err error
	for first := true; first || err != nil && ctx.Err() == nil; first = false {
		var took time.Duration // a fan-out that waits before it tries again may take longer than a probe
		began := time.Now()
		if took, err = s.probe.label(); err == nil {
			a.InForceS = began.Add(took).Sub(back).Seconds()
		}
	}
	s.must(err)
	<-touched
	if ctx.Err() != nil {
		s.must(errors.New("the fan-outs are not in touch with the API server 5 minutes after its return"))
	}
	a.ReceivedAllS = s.lastReceived(back)
	after := s.standInsNow(true)
	a.StreamsEnded, a.Snapshots, a.Bytes = after.Lost-before.Lost, after.Snapshots-before.Snapshots, after.Bytes-returning.Bytes
	s.result.Away = a
	say("the API server was away for %.0f s: the fan-outs said so after %.1f s and served %d of %d nodes at the least; %d streams ended, %d snapshots, %d of %d probes failed; back in touch after %.1f s, a change in force %.1f s after the return",
		a.Seconds, a.SaidAfterS, a.LeastServed, s.nodes, a.StreamsEnded, a.Snapshots, a.ProbesFailed, a.Probes, a.BackAfterS, a.InForceS)
	s.save()
}

func (a *Away) probed(ok bool) {
	if a.Probes++; !ok {
		a.ProbesFailed++
	}
}

// untilInTouch notes when each fan-out is in touch with the API server again.
func (s *site) untilInTouch(ctx context.Context, a *Away, back time.Time) {
	for left := len(fanOutHealths); left > 0 && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for i, addr := range fanOutHealths {
			if a.BackAfterS[i] > 0 {
				continue
			}
			if lost, since := outOfTouch(addr); !lost && !since.IsZero() {
				a.BackAfterS[i], left = time.Since(back).Seconds(), left-1
			}
		}
	}
}

// lastReceived is how long after a time the last stand-in had the probe's change.
func (s *site) lastReceived(from time.Time) (seconds float64) {
	time.Sleep(2 * time.Second) // the last ones arrive
	seen := map[string][]int64{}
	s.must(ask("http://"+standInsAddr+"/seen", &seen))
	for mark := range s.probe.written {
		for _, at := range seen[mark] {
			seconds = max(seconds, time.Unix(0, at).Sub(from).Seconds())
		}
	}
	return seconds
}

// served is how many agents the fan-outs say that they serve.
func (s *site) served() (n int) {
	for _, addr := range fanOutHealths {
		n += served(addr)
	}
	return n
}
