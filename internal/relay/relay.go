// SPDX-License-Identifier: Apache-2.0

// Package relay is the controller's part of asking agents: agents keep a connection to each
// instance of the controller (package tunnel), and users ask by the API server, which hands
// requests of the group live.weir.dev on (an APIService). So what a user may ask is a matter of the
// API server's own rights, and nobody needs to run programs in the agents' pods. The store of flow
// records answers in the same way what is asked about all nodes.
package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/admission"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/agents"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// Config is what a Relay needs.
type Config struct {
	Kube  kubernetes.Interface
	Log   *slog.Logger
	Proxy *peerauth.FrontProxy
	// Reviewer knows agents by their tokens, StoreReviewer the store of flow records by its.
	Reviewer, StoreReviewer *peerauth.Reviewer
	// Admission answers at admission.Path, to whoever asks; nil = nobody.
	Admission http.Handler
	// Connected is called with each agent that has connected, as agents.Config.Asking.
	Connected func(context.Context, *agents.Agent)
	// ReviewEvery is the time between two looks at whether the token of a connected agent still
	// counts; 0 = agents.DefaultReviewEvery.
	ReviewEvery time.Duration
}

// Relay hands questions of users on to agents. It is safe for concurrent use.
type Relay struct {
	cfg Config
	// conns bounds the connections of who has not proved to be an agent.
	conns   *httplimit.Budget
	agents  *agents.Set
	stores  *agents.Set            // the store of flow records, by the node of its pod
	refused *prometheus.CounterVec // tokens, by why
	count   prometheus.Collector   // of agents
	asked   *prometheus.CounterVec // by question and outcome

	mu     sync.Mutex
	asking map[string]int // by user
	total  int            // of asking
}

// New returns a Relay of no agents.
func New(cfg Config) *Relay {
	r := &Relay{cfg: cfg, conns: httplimit.NewBudget(maxConns, maxConnsPerSource), asking: map[string]int{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_controller", Name: "agents_refused_total", Help: "Connections of agents that were refused, by why."}, []string{"reason"}),
		asked:   prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_controller", Name: "questions_total", Help: "Questions of users about nodes, by the code of the answer."}, []string{"question", "code"}),
	}
	r.agents = agents.New(agents.Config{Log: cfg.Log, Reviewer: cfg.Reviewer, ReviewEvery: cfg.ReviewEvery, Refused: r.refused, Asking: cfg.Connected})
	r.stores = agents.New(agents.Config{Log: cfg.Log, Reviewer: cfg.StoreReviewer, ReviewEvery: cfg.ReviewEvery, Refused: r.refused})
	r.count = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_controller", Name: "agents_connected", Help: "Agents that this instance can ask."}, func() float64 {
		return float64(len(r.agents.Nodes()))
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
		r.agents.Close()
		r.stores.Close()
	})()
	server.TLSConfig = config
	err := server.ServeTLS(r.conns.Listener(l), "", "")
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Ask asks the agent of a node for the controller itself, by a connection to this instance, for
// which it waits for some seconds; the body of the answer must be closed.
func (r *Relay) Ask(ctx context.Context, node, method, path string, body io.Reader) (*http.Response, error) {
	a := r.agents.Of(ctx, node)
	if a == nil {
		return nil, errors.New("no agent of the node is connected to the controller")
	}
	return a.Conn.Ask(ctx, method, path, body)
}

// Handler is what is served.
func (r *Relay) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(tunnel.Path, r.agents)
	if r.cfg.StoreReviewer != nil {
		mux.Handle(tunnel.StorePath, r.stores)
	}
	if r.cfg.Admission != nil {
		mux.Handle("POST "+admission.Path, r.cfg.Admission)
	}
	r.routes(mux)
	return mux
}
