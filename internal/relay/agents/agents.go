// SPDX-License-Identifier: Apache-2.0

// Package agents has the agents that keep a connection to a server (package tunnel), so that it can
// ask them: the controller for users, the store of flow records for itself. Each has proved by its
// token whose node it is of, is asked for that token again, and is left when it counts no longer. A
// node has one connection.
package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// Config is what a Set needs.
type Config struct {
	Log *slog.Logger
	// Reviewer knows agents by their tokens.
	Reviewer *peerauth.Reviewer
	// ReviewEvery is the time between two looks at whether the token of a connected agent still
	// counts; 0 = DefaultReviewEvery.
	ReviewEvery time.Duration
	// Refused counts connections that were refused, by why.
	Refused *prometheus.CounterVec
	// Asking is called with each agent that has connected, in a goroutine of its own; its ctx ends
	// with the connection. nil = nothing is.
	Asking func(context.Context, *Agent)
}

// DefaultReviewEvery is what servers use: 1,000 agents then cost the API server three questions a
// second.
const DefaultReviewEvery = 5 * time.Minute

// Set is the connected agents. It is safe for concurrent use.
type Set struct {
	cfg Config

	mu      sync.Mutex
	agents  map[string]*Agent // by node
	any     bool              // one has been connected
	changed chan struct{}     // closed when an agent comes
}

// Agent is a connected one.
type Agent struct {
	Peer peerauth.Peer
	Conn *tunnel.Conn
}

// New returns a Set of no agents.
func New(cfg Config) *Set {
	if cfg.ReviewEvery == 0 {
		cfg.ReviewEvery = DefaultReviewEvery
	}
	return &Set{cfg: cfg, agents: map[string]*Agent{}, changed: make(chan struct{})}
}

// ServeHTTP takes an agent's connection over, when it has proved whose it is.
func (s *Set) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !tunnel.Wanted(req) {
		http.Error(w, "not for you", http.StatusBadRequest)
		return
	}
	peer, err := s.cfg.Reviewer.Review(req.Context(), sourceOf(req), tunnel.Token(req))
	switch {
	case errors.Is(err, peerauth.ErrToken):
		s.cfg.Refused.WithLabelValues("token").Inc()
		s.cfg.Log.Warn("an agent was refused", "from", req.RemoteAddr, "err", err)
		http.Error(w, "the token does not count", http.StatusUnauthorized)
		return
	case err != nil:
		s.cfg.Refused.WithLabelValues("error").Inc()
		http.Error(w, "the token could not be looked at", http.StatusServiceUnavailable)
		return
	}
	conn, err := tunnel.Accept(w, req)
	if err != nil {
		s.cfg.Log.Warn("an agent could not be connected", "node", peer.Node, "err", err)
		return
	}
	a := &Agent{Peer: peer, Conn: conn}
	s.add(a)
	ctx := context.WithoutCancel(req.Context()) // which ends with this handler
	go s.keep(ctx, a, sourceOf(req))
}

func sourceOf(req *http.Request) netip.Addr { return httplimit.AddrOf(req.RemoteAddr) }

// add makes an agent the one that answers for its node. The one before is of an earlier pod, or
// lost its connection: so nobody has more than one.
func (s *Set) add(a *Agent) {
	s.mu.Lock()
	before := s.agents[a.Peer.Node]
	s.agents[a.Peer.Node] = a
	s.any = true
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if before != nil {
		before.Conn.Close()
	}
}

// remove forgets an agent, unless another one answers for its node.
func (s *Set) remove(a *Agent) {
	a.Conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agents[a.Peer.Node] == a {
		delete(s.agents, a.Peer.Node)
	}
}

// aliveEvery is the time between two looks at whether a connection is there.
const aliveEvery = time.Second

// keep has an agent for as long as its connection is there and it can prove itself.
func (s *Set) keep(ctx context.Context, a *Agent, from netip.Addr) {
	defer s.remove(a)
	if s.cfg.Asking != nil {
		asking, cancel := context.WithCancel(ctx)
		defer cancel()
		go s.cfg.Asking(asking, a)
	}
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	review := time.NewTicker(s.cfg.ReviewEvery)
	defer review.Stop()
	for failed := 0; ; {
		select {
		case <-alive.C:
			if !a.Conn.Alive() {
				return
			}
		case <-review.C:
			err := s.again(ctx, a, from)
			switch {
			case err == nil:
				failed = 0
			case errors.Is(err, peerauth.ErrToken):
				s.cfg.Log.Info("an agent can no longer prove itself", "node", a.Peer.Node, "err", err)
				return
			default: // the API server may be away
				if failed++; failed == maxUnreviewed {
					s.cfg.Log.Warn("an agent's token could not be looked at for too long", "node", a.Peer.Node, "err", err)
					return
				}
			}
		}
	}
}

// maxUnreviewed is how often a token may not be looked at until its agent is no longer believed.
const maxUnreviewed = 12

// again asks an agent for its token, and the API server about it.
func (s *Set) again(ctx context.Context, a *Agent, from netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, agentWithin)
	defer cancel()
	resp, err := a.Conn.Ask(ctx, http.MethodGet, tunnel.TokenPath, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	token, err := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if err != nil {
		return err
	}
	peer, err := s.cfg.Reviewer.Review(ctx, from, string(token))
	if err == nil && peer != a.Peer {
		return fmt.Errorf("%w: it is of pod %s on node %s now", peerauth.ErrToken, peer.PodUID, peer.Node)
	}
	return err
}

// agentWithin is how long a question waits for a node's agent to be connected: it connects anew
// within seconds when the server started again.
const agentWithin = 5 * time.Second

// Of returns the agent of a node, for which it waits for some seconds; nil = none is connected.
func (s *Set) Of(ctx context.Context, node string) *Agent {
	return s.wait(ctx, func() *Agent { return s.agents[node] }, true)
}

// Any returns one agent, for which it waits for some seconds where one has been connected before;
// nil = none is.
func (s *Set) Any(ctx context.Context) *Agent {
	s.mu.Lock()
	may := s.any
	s.mu.Unlock()
	return s.wait(ctx, func() *Agent {
		for _, a := range s.agents {
			if a.Conn.Alive() {
				return a
			}
		}
		return nil
	}, may)
}

// wait waits for an agent that is found under the lock, if it may.
func (s *Set) wait(ctx context.Context, find func() *Agent, may bool) *Agent {
	wait := time.NewTimer(agentWithin)
	defer wait.Stop()
	for {
		s.mu.Lock()
		a, changed := find(), s.changed
		s.mu.Unlock()
		if a != nil && a.Conn.Alive() {
			return a
		}
		if !may {
			return nil
		}
		select {
		case <-changed:
		case <-wait.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Now returns the agent of a node that is connected at this moment; nil = none is.
func (s *Set) Now(node string) *Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[node]
}

// Nodes are the nodes of the agents that are connected, sorted.
func (s *Set) Nodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.agents))
	for node := range s.agents {
		out = append(out, node)
	}
	slices.Sort(out)
	return out
}

// Close ends all connections.
func (s *Set) Close() {
	s.mu.Lock()
	all := s.agents
	s.agents = map[string]*Agent{}
	s.mu.Unlock()
	for _, a := range all {
		a.Conn.Close()
	}
}
