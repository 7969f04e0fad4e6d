// SPDX-License-Identifier: Apache-2.0

// Package relay is the controller's part of asking agents: agents keep a connection to each
// instance of the controller (package tunnel), and users ask by the API server, which hands
// requests of the group live.weir.dev on (an APIService). So what a user may ask is a matter of the
// API server's own rights, and nobody needs to run programs in the agents' pods.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// Config is what a Relay needs.
type Config struct {
	Kube  kubernetes.Interface
	Log   *slog.Logger
	Proxy *peerauth.FrontProxy
	// Reviewer knows agents by their tokens.
	Reviewer *peerauth.Reviewer
	// ReviewEvery is the time between two looks at whether the token of a connected agent still
	// counts; 0 = DefaultReviewEvery.
	ReviewEvery time.Duration
}

// DefaultReviewEvery is what the controller uses: 1,000 agents then cost the API server three
// questions a second.
const DefaultReviewEvery = 5 * time.Minute

// Relay hands questions of users on to agents. It is safe for concurrent use.
type Relay struct {
	cfg Config
	// conns bounds the connections of who has not proved to be an agent.
	conns *httplimit.Budget

	mu      sync.Mutex
	agents  map[string]*agent      // by node
	changed chan struct{}          // closed when an agent comes
	asking  map[string]int         // by user
	total   int                    // of asking
	refused *prometheus.CounterVec // tokens, by why
	count   prometheus.Collector   // of agents
	asked   *prometheus.CounterVec // by question and outcome
}

// agent is a connected one.
type agent struct {
	peer peerauth.Peer
	conn *tunnel.Conn
}

// New returns a Relay of no agents.
func New(cfg Config) *Relay {
	if cfg.ReviewEvery == 0 {
		cfg.ReviewEvery = DefaultReviewEvery
	}
	r := &Relay{cfg: cfg, conns: httplimit.NewBudget(maxConns, maxConnsPerSource), agents: map[string]*agent{}, changed: make(chan struct{}), asking: map[string]int{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_controller", Name: "agents_refused_total", Help: "Connections of agents that were refused, by why."}, []string{"reason"}),
		asked:   prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_controller", Name: "questions_total", Help: "Questions of users about nodes, by the code of the answer."}, []string{"question", "code"}),
	}
	r.count = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_controller", Name: "agents_connected", Help: "Agents that this instance can ask."}, func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return float64(len(r.agents))
	})
	return r
}

// Register offers the relay's metrics.
func (r *Relay) Register(to prometheus.Registerer) { to.MustRegister(r.refused, r.asked, r.count) }

// Bounds of connections of API servers, and of those that have proved nothing yet. Agents have one
// each besides.
const (
	maxConns          = 8192
	maxConnsPerSource = 32
	// maxHeader has room for the groups of a user.
	maxHeader = 64 << 10
)

// Serve serves agents and API servers at a listener until ctx ends.
func (r *Relay) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	server := httplimit.NewServer(r.Handler())
	server.ErrorLog = slog.NewLogLogger(r.cfg.Log.Handler(), slog.LevelDebug) // whoever reaches the port can fail to connect
	server.MaxHeaderBytes = maxHeader
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	defer context.AfterFunc(ctx, func() {
		server.Close()
		r.closeAll()
	})()
	server.TLSConfig = config
	err := server.ServeTLS(r.conns.Listener(l), "", "")
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Handler is what is served.
func (r *Relay) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(tunnel.Path, r.connect)
	r.routes(mux)
	return mux
}

// connect takes an agent's connection over, when it has proved whose it is.
func (r *Relay) connect(w http.ResponseWriter, req *http.Request) {
	if !tunnel.Wanted(req) {
		http.Error(w, "not for you", http.StatusBadRequest)
		return
	}
	peer, err := r.cfg.Reviewer.Review(req.Context(), sourceOf(req), tunnel.Token(req))
	switch {
	case errors.Is(err, peerauth.ErrToken):
		r.refused.WithLabelValues("token").Inc()
		r.cfg.Log.Warn("an agent was refused", "from", req.RemoteAddr, "err", err)
		http.Error(w, "the token does not count", http.StatusUnauthorized)
		return
	case err != nil:
		r.refused.WithLabelValues("error").Inc()
		http.Error(w, "the token could not be looked at", http.StatusServiceUnavailable)
		return
	}
	conn, err := tunnel.Accept(w, req)
	if err != nil {
		r.cfg.Log.Warn("an agent could not be connected", "node", peer.Node, "err", err)
		return
	}
	a := &agent{peer: peer, conn: conn}
	r.add(a)
	ctx := context.WithoutCancel(req.Context()) // which ends with this handler
	go r.keep(ctx, a, sourceOf(req))
}

func sourceOf(req *http.Request) netip.Addr { return httplimit.AddrOf(req.RemoteAddr) }

// add makes an agent the one that answers for its node. The one before is of an earlier pod, or
// lost its connection: so nobody has more than one.
func (r *Relay) add(a *agent) {
	r.mu.Lock()
	before := r.agents[a.peer.Node]
	r.agents[a.peer.Node] = a
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if before != nil {
		before.conn.Close()
	}
}

// remove forgets an agent, unless another one answers for its node.
func (r *Relay) remove(a *agent) {
	a.conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agents[a.peer.Node] == a {
		delete(r.agents, a.peer.Node)
	}
}

// aliveEvery is the time between two looks at whether a connection is there.
const aliveEvery = time.Second

// keep has an agent for as long as its connection is there and it can prove itself.
func (r *Relay) keep(ctx context.Context, a *agent, from netip.Addr) {
	defer r.remove(a)
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	review := time.NewTicker(r.cfg.ReviewEvery)
	defer review.Stop()
	for failed := 0; ; {
		select {
		case <-alive.C:
			if !a.conn.Alive() {
				return
			}
		case <-review.C:
			err := r.again(ctx, a, from)
			switch {
			case err == nil:
				failed = 0
			case errors.Is(err, peerauth.ErrToken):
				r.cfg.Log.Info("an agent can no longer prove itself", "node", a.peer.Node, "err", err)
				return
			default: // the API server may be away
				if failed++; failed == maxUnreviewed {
					r.cfg.Log.Warn("an agent's token could not be looked at for too long", "node", a.peer.Node, "err", err)
					return
				}
			}
		}
	}
}

// maxUnreviewed is how often a token may not be looked at until its agent is no longer believed.
const maxUnreviewed = 12

// again asks an agent for its token, and the API server about it.
func (r *Relay) again(ctx context.Context, a *agent, from netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, agentWithin)
	defer cancel()
	resp, err := a.conn.Ask(ctx, http.MethodGet, tunnel.TokenPath, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	token, err := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if err != nil {
		return err
	}
	peer, err := r.cfg.Reviewer.Review(ctx, from, string(token))
	if err == nil && peer != a.peer {
		return fmt.Errorf("%w: it is of pod %s on node %s now", peerauth.ErrToken, peer.PodUID, peer.Node)
	}
	return err
}

// agentWithin is how long a question waits for a node's agent to be connected: it connects anew
// within seconds when the controller started again.
const agentWithin = 5 * time.Second

// agent returns that of a node; nil = none is connected.
func (r *Relay) agent(ctx context.Context, node string) *agent {
	wait := time.NewTimer(agentWithin)
	defer wait.Stop()
	for {
		r.mu.Lock()
		a, changed := r.agents[node], r.changed
		r.mu.Unlock()
		if a != nil && a.conn.Alive() {
			return a
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

func (r *Relay) closeAll() {
	r.mu.Lock()
	all := r.agents
	r.agents = map[string]*agent{}
	r.mu.Unlock()
	for _, a := range all {
		a.conn.Close()
	}
}
