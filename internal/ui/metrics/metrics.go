// SPDX-License-Identifier: Apache-2.0

// Package metrics has those of the page that the cluster serves, and of the APIs beside it. It is
// served at the page's own port, as that is by TLS, to who may get the path /metrics at the API
// server: what many users ask and how often is not for everybody who reaches the port.
package metrics

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
)

// Path is where metrics are served, and the path of the right.
const Path = "/metrics"

// Metrics is safe for concurrent use.
type Metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	streams   prometheus.Gauge
	questions prometheus.Histogram
	failed    prometheus.Counter
}

// New returns Metrics of a page that has so many sessions.
func New(sessions func() int) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_ui", Name: "requests_total", Help: "Requests of browsers, by the code of the answer."}, []string{"code"}),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "weir_ui", Name: "streams", Help: "Calls of Hubble's and of Goldmane's API that are open, also those that follow."}),
		questions: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "weir_ui", Name: "store_question_seconds", Help: "How long the store of flow records took for a question, with its answer.",
			Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30}}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "weir_ui", Name: "store_questions_failed_total", Help: "Questions to the store of flow records that had no whole answer, but for those that their users gave up."}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.requests, m.streams, m.questions, m.failed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_ui", Name: "sessions", Help: "Users that are logged in, by browser; who shows a token with each request is one, too."}, func() float64 { return float64(sessions()) }))
	return m
}

// Requests counts those that a handler answers.
func (m *Metrics) Requests(h http.Handler) http.Handler {
	return promhttp.InstrumentHandlerCounter(m.requests, h)
}

// Stream counts a call of an API until what it returns is called.
func (m *Metrics) Stream() (done func()) {
	m.streams.Inc()
	return m.streams.Dec
}

// Asking is what asks the store.
type Asking func(ctx context.Context, q wire.Question, out io.Writer) error

// Asks measures questions to the store.
func (m *Metrics) Asks(ask Asking) Asking {
	return func(ctx context.Context, q wire.Question, out io.Writer) error {
		began := time.Now()
		err := ask(ctx, q, out)
		m.questions.Observe(time.Since(began).Seconds())
		if err != nil && ctx.Err() == nil {
			m.failed.Inc()
		}
		return err
	}
}

// Handler serves the metrics to who shows a token whose user may get Path, and has other paths
// answered by next.
func (m *Metrics) Handler(guard *access.Guard, kube kubernetes.Interface, next http.Handler, log *slog.Logger) http.Handler {
	serve := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxRequestsInFlight: 2})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != Path {
			next.ServeHTTP(w, r)
			return
		}
		if code, text := refused(r, guard, kube); code != 0 {
			http.Error(w, text, code)
			return
		}
		serve.ServeHTTP(w, r)
	})
}

// refused says why a request does not get metrics; 0 = it does. Of cookies it knows nothing: a
// browser's session is not for it.
func refused(r *http.Request, guard *access.Guard, kube kubernetes.Interface) (code int, text string) {
	if r.Method != http.MethodGet {
		return http.StatusMethodNotAllowed, "GET alone"
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return http.StatusUnauthorized, "a bearer token of the API server is needed"
	}
	user, err := guard.User(r.Context(), httplimit.AddrOf(r.RemoteAddr), token)
	switch {
	case errors.Is(err, access.ErrToken):
		return http.StatusUnauthorized, "the API server does not take the token"
	case errors.Is(err, access.ErrBusy):
		return http.StatusTooManyRequests, err.Error()
	case err != nil:
		return http.StatusServiceUnavailable, "the API server does not answer"
	}
	switch may, err := peerauth.AllowedPath(r.Context(), kube, user, Path, "get"); {
	case err != nil:
		return http.StatusServiceUnavailable, "the API server does not answer"
	case !may:
		return http.StatusForbidden, "the verb get on the path " + Path + " is needed (nonResourceURLs)"
	}
	return 0, ""
}
