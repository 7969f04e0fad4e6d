// SPDX-License-Identifier: Apache-2.0

// Package server is the fan-out: it follows the cluster once, and sends the agent of each node what
// that node's state depends on.
//
//	watch.Batch ─► Update ─► nodeview.Index ─┬─► follower of node a ─► stream to its agent
//	                                         └─► follower of node b ─► ...
//
// A change marks the nodes that it concerns. The goroutine of a node's stream takes what is marked
// and sends it: who reads slowly gets changes merged, and nothing is queued for it.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/watch"
)

// Reviewer says whose a token is (peerauth.Reviewer).
type Reviewer interface {
	Review(ctx context.Context, from netip.Addr, token string) (peerauth.Peer, error)
}

// Config is what a Server needs.
type Config struct {
	Log      *slog.Logger
	Reviewer Reviewer
	Status   func() watch.Status // of the watch that brings the batches
	Replica  string              // name of this fan-out's pod
	// Pod returns what is known of the pod of a CNI ADD (watch.Watcher.KnownPod); nil = nothing.
	Pod func(name model.Name, uid string) *watch.AddPod
	// ReviewEvery is the time between two questions whether an agent's token still counts; 0 = 5
	// minutes. What is read of the API ends streams sooner: see Update.
	ReviewEvery time.Duration
	// SnapshotWithin is after how long an agent that reads its snapshot slowly no longer keeps
	// others from getting theirs; 0 = 10 s.
	SnapshotWithin time.Duration
	// Interval is the least time between two changes that one node is sent; 0 = DefaultInterval.
	Interval time.Duration
}

// DefaultInterval bounds what 500 nodes cost where a hundred pods change each second: 10,000
// messages a second at most.
const DefaultInterval = 50 * time.Millisecond

// freshEvery is the time between two messages about how fresh what is sent is.
const freshEvery = 2 * time.Second

// Bounds of connections. One that is not used by an agent that proved itself ends after idleWithin.
// What counts is what an agent does in minutes, not how soon it answers: where it or the
// fan-out has no CPU for a while, a stream that ended would have both do more.
const (
	maxConnections = 4096
	maxPerSource   = 16
	idleWithin     = 30 * time.Second
	helloWithin    = 30 * time.Second
	sendWithin     = 3 * time.Minute  // how long an agent may not read
	silence        = 20 * time.Second // of an agent, after which it is asked for an answer
	answerIn       = 2 * time.Minute  // until it has sent anything then
	maxSnapshots   = 8                // that are sent at a time
	busyWithin     = 25 * time.Second // how long an agent waits until its token can be looked at
)

// Server serves the agents. It is safe for concurrent use.
type Server struct {
	cfg     Config
	metrics metrics
	encoded *encodings
	digests digest.Cache
	// snapshots are the places of agents that are sent a snapshot, or what they lack of one. Where
	// a replica ends, hundreds want it: a few at a time, each is sent soon, where all together
	// would be sent late.
	snapshots chan struct{}

	mu        sync.Mutex
	index     *nodeview.Index
	extra     stream.Extra
	ready     bool                 // the whole cluster was read
	followers map[string]*follower // by node
	pods      map[model.Name]*follower
	merges    uint64
}

// New returns a server that knows nothing yet.
func New(cfg Config) *Server {
	if cfg.ReviewEvery == 0 {
		cfg.ReviewEvery = 5 * time.Minute
	}
	if cfg.Interval == 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.SnapshotWithin == 0 {
		cfg.SnapshotWithin = 10 * time.Second
	}
	s := &Server{cfg: cfg, encoded: newEncodings(), snapshots: make(chan struct{}, maxSnapshots), index: nodeview.NewIndex(), followers: map[string]*follower{}, pods: map[model.Name]*follower{}}
	s.metrics = newMetrics(s)
	return s
}

// Update takes over what changed of the cluster. It is a watch.Sink. The streams of agents whose
// pod or Node is gone end.
func (s *Server) Update(_ context.Context, b *watch.Batch) {
	began := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.Update(&b.Changes)
	settings := s.extra.Update(b)
	s.ready = s.ready || b.Full
	for name, pod := range b.Pods {
		if f := s.pods[name]; f != nil && (pod == nil || pod.UID != f.peer.PodUID || pod.Finished) {
			f.end(errPodGone)
		}
	}
	for name, node := range b.Nodes {
		if f := s.followers[name]; f != nil && node == nil {
			f.end(errNodeGone)
		}
	}
	for _, f := range s.followers {
		if settings {
			f.settings = true
		}
		s.note(f, began)
	}
	s.metrics.updates.Observe(time.Since(began).Seconds())
}

// note wakes a follower for which there is something. s.mu is held.
func (s *Server) note(f *follower, now time.Time) {
	if !f.settings && !f.view.Pending() {
		return
	}
	if f.since.IsZero() {
		f.since = now
	} else {
		s.merges++
	}
	f.wakeUp()
}

var (
	errPodGone  = status.Error(codes.Unauthenticated, "the agent's pod is gone")
	errNodeGone = status.Error(codes.Unauthenticated, "the agent's Node is gone")
	errReplaced = status.Error(codes.Aborted, "another agent of this node is connected")
	errSlow     = status.Error(codes.DeadlineExceeded, "the agent did not read for three minutes")
)

// Serve answers agents until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener, cfg *tls.Config) error {
	g := grpc.NewServer(grpc.Creds(keeping{credentials.NewTLS(cfg)}), grpc.MaxRecvMsgSize(stream.MostRequest), grpc.MaxConcurrentStreams(4),
		grpc.ConnectionTimeout(helloWithin), grpc.ReadBufferSize(4<<10), grpc.MaxHeaderListSize(32<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleWithin, Time: silence, Timeout: answerIn}),
		// Pings that waited until the fan-out had CPU come together: no reason to end a stream.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Nanosecond, PermitWithoutStream: true}))
	stream.Register(g, s.follow)
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	if err := g.Serve(httplimit.NewListener(l, maxConnections, maxPerSource)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve agents: %w", err)
	}
	return nil
}

// follow answers one agent until its stream ends.
func (s *Server) follow(up stream.Server) error {
	ctx := up.Context()
	from, token := source(ctx), bearer(ctx)
	if !s.Ready() {
		return s.refuse(from, "unready", status.Error(codes.Unavailable, "the cluster is not read yet"))
	}
	peer, err := s.review(ctx, from, token)
	switch {
	case errors.Is(err, peerauth.ErrToken):
		return s.refuse(from, "token", status.Error(codes.Unauthenticated, err.Error()))
	case err != nil:
		return s.refuse(from, "error", status.Error(codes.Unavailable, err.Error()))
	}
	hello := make(chan *stream.Request, 1)
	go func() {
		if req, err := up.Recv(); err == nil {
			hello <- req
		}
	}()
	var first *stream.Request
	select {
	case first = <-hello:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(helloWithin):
		return s.refuse(from, "silent", status.Error(codes.DeadlineExceeded, "the agent said nothing"))
	}
	endpoints, err := first.GetEndpoints().Addrs()
	if err != nil {
		return s.refuse(from, "malformed", status.Error(codes.InvalidArgument, err.Error()))
	}
	held, err := first.GetHeld().Digests()
	if err != nil {
		return s.refuse(from, "malformed", status.Error(codes.InvalidArgument, err.Error()))
	}
	f, err := s.add(ctx, peer, from, token, first.Program, endpoints, held)
	if err != nil {
		return s.refuse(from, "node", err)
	}
	defer s.remove(f)
	keep(ctx)
	go s.receive(f, up)
	go s.reviewAgain(f)
	go s.send(f, up)
	s.cfg.Log.Info("an agent is served", "node", peer.Node, "program", first.Program)
	<-f.ctx.Done() // where Send waits, it ends with the return from here
	err = context.Cause(f.ctx)
	s.cfg.Log.Info("an agent is no longer served", "node", peer.Node, "why", err)
	return err
}

// review asks whose a token is. Where many agents come together each waits a little rather than
// coming again.
func (s *Server) review(ctx context.Context, from netip.Addr, token string) (peerauth.Peer, error) {
	for end := time.Now().Add(busyWithin); ; {
		peer, err := s.cfg.Reviewer.Review(ctx, from, token)
		if !errors.Is(err, peerauth.ErrBusy) || time.Now().After(end) {
			return peer, err
		}
		if err := sleep.For(ctx, time.Duration(20+rand.IntN(80))*time.Millisecond); err != nil {
			return peerauth.Peer{}, err
		}
	}
}

// refuse counts a refusal.
func (s *Server) refuse(from netip.Addr, why string, err error) error {
	s.metrics.refused.WithLabelValues(why).Inc()
	if why != "unready" {
		s.cfg.Log.Warn("an agent was refused", "from", from, "err", err)
	}
	return err
}

// Ready reports whether the whole cluster was read.
func (s *Server) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// Lives reports whether an agent's pod is on its node, as far as was read.
func (s *Server) Lives(peer peerauth.Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.index.PodOn(peer.Node, peer.PodUID)
	return s.ready && ok
}

func source(ctx context.Context) netip.Addr {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return httplimit.AddrOf(p.Addr.String())
}

func bearer(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		if token, ok := strings.CutPrefix(v, "Bearer "); ok && token != "" {
			return token
		}
	}
	return ""
}
