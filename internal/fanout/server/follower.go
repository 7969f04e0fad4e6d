// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/sleep"
)

// follower is an agent that is served.
type follower struct {
	peer    peerauth.Peer
	from    netip.Addr
	program string
	began   time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	wake    chan struct{} // capacity 1: there is something to send

	// Guarded by Server.mu.
	view     *nodeview.Node
	pod      model.Name         // of the agent; empty = not known yet
	settings bool               // they are to be sent
	snapshot bool               // the snapshot was taken
	held     digest.Held        // what the agent has, until then; nil = nothing
	since    time.Time          // when what is to be sent began to be; zero = nothing is
	answers  []*stream.Response // to what the agent asked
	owners   int                // how many of these are of addresses
	asked    int                // and of pods

	sending   chan struct{} // capacity 1: full while a message is sent
	sent      atomic.Int64  // bytes of changes
	takes     atomic.Int64  // since when it waits for the index, Unix nanoseconds; 0 = it does not
	viewBytes atomic.Int64  // of the snapshot
	delivers  atomic.Int64  // since when what is being sent began to be, Unix nanoseconds; 0 = nothing is

	mu    sync.Mutex
	token string
}

// behind is for how long the agent has waited for what it was not sent yet, or does not read. The
// server's mu is held.
func (f *follower) behind() (d time.Duration) {
	if !f.since.IsZero() {
		d = time.Since(f.since)
	}
	if since := f.delivers.Load(); since > 0 {
		d = max(d, time.Since(time.Unix(0, since)))
	}
	return d
}

func (f *follower) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// end ends the stream.
func (f *follower) end(why error) { f.cancel(why) }

// add makes an agent the one of its node that is served; one before it ends.
func (s *Server) add(ctx context.Context, peer peerauth.Peer, from netip.Addr, token, program string, endpoints map[netip.Addr]model.Name, held digest.Held) (*follower, error) {
	f := &follower{peer: peer, from: from, program: program, began: time.Now(), wake: make(chan struct{}, 1), sending: make(chan struct{}, 1), token: token, settings: true, held: held}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.index.HasNode(peer.Node) {
		return nil, status.Errorf(codes.Unauthenticated, "there is no Node %q", peer.Node)
	}
	if before := s.followers[peer.Node]; before != nil {
		s.drop(before)
		before.end(errReplaced)
	}
	f.view = s.index.Add(peer.Node)
	f.view.SetEndpoints(s.allowed(peer.Node, endpoints))
	s.followers[peer.Node] = f
	s.findPod(f)
	s.note(f, time.Now())
	return f, nil
}

// findPod finds the pod of the agent, by which Update sees that it is gone. s.mu is held.
func (s *Server) findPod(f *follower) {
	if name, ok := s.index.PodOn(f.peer.Node, f.peer.PodUID); ok {
		f.pod = name
		s.pods[name] = f
	}
}

// allowed returns those of a node's endpoints that can be: of a pod that the API places on another
// node a node gets nothing by saying that it has it. s.mu is held.
func (s *Server) allowed(node string, endpoints map[netip.Addr]model.Name) map[netip.Addr]model.Name {
	out := make(map[netip.Addr]model.Name, len(endpoints))
	for a, name := range endpoints {
		if on := s.index.Placed(name); on == "" || on == node {
			out[a] = name
		} else {
			s.metrics.endpoints.Inc()
		}
	}
	return out
}

// drop forgets a follower, unless another one took its place. s.mu is held.
func (s *Server) drop(f *follower) {
	if f.view == nil {
		return
	}
	s.index.Remove(f.view)
	f.view = nil
	if s.followers[f.peer.Node] == f {
		delete(s.followers, f.peer.Node)
	}
	if s.pods[f.pod] == f {
		delete(s.pods, f.pod)
	}
}

func (s *Server) remove(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(f)
	f.cancel(nil)
}

// requestEvery is the least time between two requests of an agent that are looked at: pods come
// and go more slowly, and what one node says must not keep the others waiting.
const requestEvery = 20 * time.Millisecond

// receive takes what an agent says.
func (s *Server) receive(f *follower, up stream.Server) {
	for {
		req, err := up.Recv()
		if err != nil {
			f.end(err)
			return
		}
		if req.Token != "" {
			f.mu.Lock()
			f.token = req.Token
			f.mu.Unlock()
		}
		if req.Endpoints != nil {
			endpoints, err := req.Endpoints.Addrs()
			if err != nil {
				s.metrics.refused.WithLabelValues("malformed").Inc()
				f.end(status.Error(codes.InvalidArgument, err.Error()))
				return
			}
			s.setEndpoints(f, endpoints)
		}
		s.answerOwners(f, req.OwnersOf)
		s.answerPods(f, req.Pods)
		select {
		case <-f.ctx.Done():
			return
		case <-time.After(requestEvery):
		}
	}
}

func (s *Server) setEndpoints(f *follower, endpoints map[netip.Addr]model.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.view == nil {
		return
	}
	f.view.SetEndpoints(s.allowed(f.peer.Node, endpoints))
	s.note(f, time.Now())
}

// maxUnreviewed is how often a token may not be looked at, because the API server does not answer,
// until its agent is no longer believed. What is read of the API meanwhile cannot end the stream
// either: an agent whose pod is gone gets nothing new that others would not get too.
const maxUnreviewed = 12

// reviewAgain asks again and again whether the agent's token counts.
func (s *Server) reviewAgain(f *follower) {
	for failed := 0; ; {
		// Agents that came together are not asked about together.
		if sleep.For(f.ctx, time.Duration((0.75+rand.Float64()/2)*float64(s.cfg.ReviewEvery))) != nil {
			return
		}
		f.mu.Lock()
		token := f.token
		f.mu.Unlock()
		peer, err := s.cfg.Reviewer.Review(f.ctx, f.from, token)
		switch {
		case err == nil && peer == f.peer:
			failed = 0
			s.mu.Lock()
			if f.view != nil && f.pod == (model.Name{}) {
				s.findPod(f)
			}
			s.mu.Unlock()
		case err == nil, errors.Is(err, peerauth.ErrToken):
			s.metrics.refused.WithLabelValues("expired").Inc()
			f.end(status.Error(codes.Unauthenticated, "the agent's token does not count any more"))
			return
		default:
			if failed++; failed == maxUnreviewed {
				f.end(status.Error(codes.Unauthenticated, "the agent's token could not be looked at for too long: "+err.Error()))
				return
			}
		}
	}
}

// due is what a follower is to be sent.
type due struct {
	parts    []*nodeview.Part
	changes  *model.Changes
	settings *stream.Settings
	snapshot bool
	held     digest.Held // of a snapshot: what the agent has of it already
	since    time.Time
	answers  []*stream.Response
}

// take returns what is to be sent; nil = nothing.
func (s *Server) take(f *follower) (*due, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.view == nil {
		return nil, context.Cause(f.ctx)
	}
	answers := f.answers
	f.answers, f.owners, f.asked = nil, 0, 0
	if f.since.IsZero() {
		if len(answers) > 0 {
			return &due{answers: answers}, nil
		}
		return nil, nil
	}
	d := &due{since: f.since, snapshot: !f.snapshot, answers: answers}
	f.since = time.Time{}
	if f.settings {
		var err error
		if d.settings, err = s.extra.Settings(f.peer.Node); err != nil {
			return nil, err
		}
		f.settings = false
	}
	if d.snapshot {
		d.parts, d.changes = f.view.Snapshot()
		f.snapshot, d.held, f.held = true, f.held, nil
	} else {
		d.changes = f.view.Take()
	}
	return d, nil
}

// send sends what there is until the stream ends, and ends it where that fails.
func (s *Server) send(f *follower, up stream.Server) {
	if err := s.sendAll(f, up); err != nil {
		f.end(err)
	}
}

func (s *Server) sendAll(f *follower, up stream.Server) error {
	if err := s.push(f, up, &stream.Response{Fresh: s.fresh()}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	go s.keepFresh(ctx, f, up)
	select {
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	case s.snapshots <- struct{}{}:
	}
	leave := sync.OnceFunc(func() { <-s.snapshots })
	late := time.AfterFunc(s.cfg.SnapshotWithin, leave)
	defer late.Stop()
	defer leave()
	pace := pacer{interval: s.cfg.Interval}
	for {
		f.takes.Store(time.Now().UnixNano())
		d, err := s.take(f)
		f.takes.Store(0)
		if err != nil {
			return err
		}
		if d != nil {
			if !d.since.IsZero() {
				f.delivers.Store(d.since.UnixNano())
			}
			if err := s.deliver(f, up, d); err != nil {
				return err
			}
			f.delivers.Store(0)
			if d.snapshot { // which has waited for its turn
				leave()
				d.since = time.Time{}
			}
			policies := d.changes != nil && len(d.changes.Policies) > 0
			if err := sleep.For(f.ctx, pace.pause(d.since, policies, time.Now())); err != nil {
				return err
			}
		}
		select {
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		case <-f.wake:
		}
	}
}

// takesFor is for how long the index may be busy, with thousands of policies that come at once,
// before agents are to look for another fan-out.
const takesFor = time.Minute

// keepFresh says again and again how fresh the stream is, also while the stream waits for the index
// or others' snapshots; but not when it has waited for the index for so long that the agent should
// not believe it. More is said of each, since it may come amidst of what is put in force at once.
func (s *Server) keepFresh(ctx context.Context, f *follower, up stream.Server) {
	for sleep.For(ctx, freshEvery) == nil {
		if since := f.takes.Load(); since > 0 && time.Since(time.Unix(0, since)) > takesFor {
			continue
		}
		if err := s.push(f, up, &stream.Response{Fresh: s.fresh(), More: true}); err != nil {
			f.end(err)
			return
		}
	}
}

// deliver sends what is due.
func (s *Server) deliver(f *follower, up stream.Server, d *due) error {
	began := time.Now()
	for _, resp := range d.answers {
		if err := s.push(f, up, resp); err != nil {
			return err
		}
	}
	if d.changes == nil {
		return nil
	}
	if d.held != nil {
		if err := s.deliverDelta(f, up, d); err != nil {
			return err
		}
		s.metrics.deltas.Observe(time.Since(began).Seconds())
		return nil
	}
	if d.snapshot {
		before := f.sent.Load()
		for _, p := range d.parts {
			if err := s.pushPart(f, up, p); err != nil {
				return err
			}
		}
		if err := s.pushChanges(f, up, d.changes, &stream.Response{Settings: d.settings, Snapshot: true}); err != nil {
			return err
		}
		s.metrics.snapshots.Observe(time.Since(began).Seconds())
		f.viewBytes.Store(f.sent.Load() - before)
		s.metrics.views.Observe(float64(f.viewBytes.Load()))
		return nil
	}
	messages, err := s.encoded.of(d.changes, began)
	if err != nil {
		return fmt.Errorf("encode changes: %w", err)
	}
	for i, m := range messages {
		resp := &stream.Response{Changes: m, More: i < len(messages)-1}
		if !resp.More {
			resp.Settings = d.settings
		}
		if err := s.push(f, up, resp); err != nil {
			return err
		}
	}
	s.metrics.changes.Observe(time.Since(began).Seconds())
	s.metrics.lag.Observe(time.Since(d.since).Seconds())
	return nil
}

// push sends one message. An agent that does not read for long is left: what waits in Send ends
// with the stream.
func (s *Server) push(f *follower, up stream.Server, resp *stream.Response) error {
	f.sending <- struct{}{}
	defer func() { <-f.sending }()
	defer after(sendWithin, func() { f.end(errSlow) })()
	if err := up.Send(resp); err != nil {
		return err
	}
	s.metrics.messages.Inc()
	s.metrics.bytes.Add(float64(len(resp.Changes)))
	f.sent.Add(int64(len(resp.Changes)))
	return nil
}

// fresh says how old what is sent may be.
func (s *Server) fresh() *stream.Fresh {
	st := s.cfg.Status()
	return &stream.Fresh{Connected: st.Connected, SinceMs: time.Since(st.Since).Milliseconds(), Error: []byte(st.Err), Replica: []byte(s.cfg.Replica)}
}
