package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/localsock"
	"github.com/weir-net/weir/internal/version"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// apiHandlers are what an agent answers to who is root on its node, may run programs in its pod, or has the right to ask
// by the API server (package relay): the handlers by
// the pattern of their path. An answer that goes on for long ends with its request's context.
func (a *Agent) apiHandlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /version":         a.serveVersion,
		"GET " + events.Path:   a.serveEvents,
		"GET /status":          a.serveStatus,
		"POST " + whywire.Path: a.why.ServeHTTP,
	}
}

// Version is the answer to GET /version.
type Version struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Kernel  string    `json:"kernel"`
	Began   time.Time `json:"began"`
	Epoch   uint32    `json:"epoch"` // of flows: moves on when existing ones are to be judged again
}

func (a *Agent) serveVersion(w http.ResponseWriter, _ *http.Request) {
	writeAnswer(w, Version{Version: version.Version, Node: a.opts.Node, Kernel: kernel.Release(), Began: a.began.UTC().Truncate(time.Second), Epoch: a.driver.Status().Epoch})
}

// serveStatus tells the node's status as it is now: a weirv1.NodeStatusStatus.
func (a *Agent) serveStatus(w http.ResponseWriter, _ *http.Request) {
	if a.cluster.snapshot().state == nil {
		http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
		return
	}
	writeAnswer(w, a.status(nil))
}

func writeAnswer(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // who asked may have gone
}

// newAPIMux serves questions, each with a body of limited size, and marks those that it does not know.
func newAPIMux(questions map[string]http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range questions {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, wire.MaxBody)
			handler(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.UnknownQuestion, "true")
		http.Error(w, fmt.Sprintf("no such question: %s %s", r.Method, r.URL.Path), http.StatusNotFound)
	})
	return mux
}

// maxRequests bounds the questions that are answered at a time; others are refused.
const maxRequests = 32

// bounded answers as many questions at a time as it may.
func bounded(handler http.Handler) http.Handler {
	slots := make(chan struct{}, maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			handler.ServeHTTP(w, r)
		default:
			http.Error(w, "the agent is answering as many questions as it can; try again", http.StatusTooManyRequests)
		}
	})
}

// serveAPI serves a socket until ctx ends.
func serveAPI(ctx context.Context, socket string, handler http.Handler) error {
	l, err := localsock.Listen(socket)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 1 << 14, Handler: bounded(handler)}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); ctx.Err() == nil || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", socket, err)
	}
	return nil
}
