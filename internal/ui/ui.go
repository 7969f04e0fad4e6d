// SPDX-License-Identifier: Apache-2.0

// Package ui serves the page in the browser, and answers its questions: records of flows, policies
// with their rules, how nodes are, and why a connection is allowed or denied. Who asks is found out
// by the caller's Access, which returns a Source with the rights of that user; the package itself
// has no rights and keeps nothing between two requests. What it writes came from nodes and tenants:
// it is JSON, without characters that are not seen.
package ui

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/ui/page"
	why "github.com/weir-net/weir/internal/why/ask"
)

// Source answers with the rights of one user. Errors are shown to that user; those that are
// ErrNoRight, ErrQuestion or ErrBusy get a status of HTTP of their own. It is used concurrently.
type Source interface {
	Records
	Cluster(ctx context.Context) (*Cluster, error)
	Policies(ctx context.Context) (*Policies, error)
	Why(ctx context.Context, q Question) (*why.Story, error)
}

// Records is where records of flows are: in the memory of agents, or in a store.
type Records interface {
	// Records returns those that a filter wants, by the time of their end, the latest most of them.
	Records(ctx context.Context, f flows.Filter, most int) (*ask.Found, error)
}

// Why a question has no answer; found with errors.Is.
var (
	ErrNoRight  = errors.New("not allowed")
	ErrQuestion = errors.New("the question cannot be asked")
	ErrBusy     = errors.New("try again")
	ErrAway     = errors.New("the API server does not answer")
)

// Cluster is how the nodes are, as `weir status` says it.
type Cluster struct {
	Nodes         []Node   `json:"nodes"`
	Components    []string `json:"components"`    // one line each
	Faults        []string `json:"faults"`        // what is not healthy and belongs to no node
	Problems      []string `json:"problems"`      // objects that are not in force as written
	WithoutEffect []string `json:"withoutEffect"` // fields and kinds
}

// Policies are those that the user may list, in the order in which they are evaluated.
type Policies struct {
	Tiers []Tier `json:"tiers"`
	// Missing says which kinds are not among them, and why: no right, or no such kind in the
	// cluster.
	Missing []string `json:"missing"`
}

// Tier is one that policies are in.
type Tier struct {
	Name     string   `json:"name"`
	Order    *float64 `json:"order"` // nil = last
	Pass     bool     `json:"pass"`  // what no rule matches goes on to the next tier; otherwise it is denied
	Known    bool     `json:"known"` // false: there is no such tier, and its policies are not in force
	Policies []Policy `json:"policies"`
}

// Policy is one of any kind.
type Policy struct {
	Kind    string   `json:"kind"` // as rules name it
	Name    string   `json:"name"` // "namespace/name", or "name"
	Staged  bool     `json:"staged,omitempty"`
	Order   *float64 `json:"order"` // nil = last
	Subject string   `json:"subject"`
	Types   []string `json:"types"` // Ingress, Egress
	Invalid string   `json:"invalid,omitempty"`
	Rules   []Rule   `json:"rules"`
}

// Rule is one of a policy.
type Rule struct {
	Detail string `json:"detail"` // as records and verdicts name it: `ingress[0]`, `egress[1] "dns"`
	Action string `json:"action"` // Allow, Deny, Pass, Log
	Text   string `json:"text"`   // as the object has it, in YAML
}

// Question is what `weir why` is asked.
type Question struct {
	Source     string `json:"source"`
	Target     string `json:"target"`
	Namespace  string `json:"namespace,omitempty"`
	Node       string `json:"node,omitempty"`
	Backend    string `json:"backend,omitempty"`
	SourcePort uint16 `json:"sourcePort,omitempty"`
}

// Config is what a server has to know.
type Config struct {
	// Origins are those by which browsers reach the page, as "http://127.0.0.1:8080". Requests to
	// another host, or of pages of another origin, are refused.
	Origins []string
	// Access finds out who asks by a request's header; an error says that nobody is known by it, or
	// is ErrBusy or ErrAway.
	Access func(*http.Request) (Source, error)
	// Session answers SessionPath where users log in; nil = they do not.
	Session http.Handler
	Log     *slog.Logger
}

// SessionPath is where the page asks who is logged in, logs in and out. OIDCPath leads a browser to
// the issuer of OpenID Connect, which sends it to OIDCCallbackPath.
const (
	SessionPath      = "/api/session"
	OIDCPath         = SessionPath + "/oidc"
	OIDCCallbackPath = OIDCPath + "/callback"
)

// maxQuestion bounds the body of a request, bytes.
const maxQuestion = 64 << 10

// New returns the handler of the page and of its questions.
func New(c Config) http.Handler {
	s := &server{Config: c}
	mux := http.NewServeMux()
	mux.Handle("GET /api/cluster", s.answer(func(r *http.Request, of Source) (any, error) { return of.Cluster(r.Context()) }))
	mux.Handle("GET /api/policies", s.answer(func(r *http.Request, of Source) (any, error) { return of.Policies(r.Context()) }))
	mux.Handle("POST /api/why", s.answer(askWhy))
	mux.Handle("GET /api/flows", s.access(s.flows))
	if s.Session == nil {
		s.Session = http.HandlerFunc(noLogin)
	}
	mux.Handle(SessionPath, s.Session)
	mux.Handle(SessionPath+"/", s.Session)
	mux.Handle("/api/", s.access(func(w http.ResponseWriter, _ *http.Request, _ Source) {
		fail(w, http.StatusNotFound, "there is no such question")
	}))
	mux.Handle("/", page.Handler())
	return s.guard(mux)
}

type server struct{ Config }

// noLogin says that users do not log in here.
func noLogin(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"login":false}`)) // whoever is gone needs no answer
}

// askWhy reads a question and asks it.
func askWhy(r *http.Request, of Source) (any, error) {
	var q Question
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return nil, errors.Join(ErrQuestion, err)
	}
	return of.Why(r.Context(), q)
}

// answer serves a question whose answer is one JSON value.
func (s *server) answer(ask func(*http.Request, Source) (any, error)) http.Handler {
	return s.access(func(w http.ResponseWriter, r *http.Request, of Source) {
		v, err := ask(r, of)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		text, err := json.Marshal(v)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		s.write(w, r, Seen(text))
	})
}

// refuse says why a question has no answer.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody listens any more
	}
	status := http.StatusBadGateway
	switch {
	case errors.Is(err, ErrNoRight):
		status = http.StatusForbidden
	case errors.Is(err, ErrQuestion):
		status = http.StatusBadRequest
	case errors.Is(err, ErrBusy):
		status = http.StatusTooManyRequests
	}
	fail(w, status, err.Error())
}

func (s *server) write(w http.ResponseWriter, r *http.Request, text []byte) {
	if _, err := w.Write(text); err != nil {
		s.Log.Debug("an answer of the page ended early", "path", r.URL.Path, "error", err)
	}
}

// fail answers with an error, for the page to show.
func fail(w http.ResponseWriter, status int, message string) {
	text, err := json.Marshal(map[string]string{"error": message})
	if err != nil {
		text = []byte(`{}`) // a string has JSON
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(Seen(text)) // whoever is gone needs no answer
}
