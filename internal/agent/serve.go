package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/httplimit"
)

// stuckAfter is how long a part of the agent may be busy with one thing before it counts as hanging.
const stuckAfter = 60 * time.Second

// alive says why the agent should be restarted.
func (a *Agent) alive() error {
	if still := time.Since(a.cluster.snapshot().beat); still > stuckAfter {
		return fmt.Errorf("computing the node's state has hung for %s", still.Round(time.Second))
	}
	if stuck := a.loop.Stuck(); stuck > stuckAfter {
		return fmt.Errorf("applying the node's state has hung for %s", stuck.Round(time.Second))
	}
	return nil
}

// ready says why pods of this node are not connected and enforced.
func (a *Agent) ready() error {
	if !a.watcher.Status().Synced {
		return errors.New("the cluster was not read yet")
	}
	if a.loop.Applied() == 0 {
		return errors.New("the node's state is not in the kernel yet")
	}
	return a.alive()
}

// listener serves one handler at an address that may change.
type listener struct {
	what string
	log  *slog.Logger

	want   string // host:port; empty = nothing
	server *http.Server
	failed bool
	tls    *tls.Config // nil = without encryption
}

// ensure listens where it should.
func (l *listener) ensure(want string, handler http.Handler) {
	if want == l.want && (want == "" || l.server != nil) {
		return
	}
	l.close()
	l.want = want
	if want == "" {
		return
	}
	ln, err := net.Listen("tcp", want)
	if err != nil {
		if !l.failed {
			l.log.Error("cannot serve; trying again", "what", l.what, "address", want, "error", err)
		}
		l.failed = true
		return
	}
	l.failed = false
	server := httplimit.NewServer(handler)
	l.server = server
	l.log.Info("serving", "what", l.what, "address", ln.Addr().String())
	ln = httplimit.NewListener(ln, httplimit.DefaultTotal, httplimit.DefaultPerSource)
	if l.tls != nil {
		ln = tls.NewListener(ln, l.tls)
	}
	go func() {
		if err := server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("serving ended", "what", l.what, "error", err)
		}
	}()
}

func (l *listener) close() {
	if l.server != nil {
		l.server.Close()
		l.server = nil
	}
}

// serve offers health and metrics where the configuration says, until ctx ends.
func (a *Agent) serve(ctx context.Context) error {
	health := &listener{what: "health", log: a.log}
	metrics := &listener{what: "metrics", log: a.log}
	defer health.close()
	defer metrics.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var shown config.Metrics
	var handler http.Handler
	for {
		e := a.cluster.snapshot().config
		health.ensure(address(e.Health), a.healthHandler())
		if handler == nil || e.Metrics != shown {
			shown, handler = e.Metrics, a.metricsHandler(e.Metrics)
			metrics.ensure("", nil)
		}
		a.metricsTLS.ensure(metrics, e.Metrics, handler)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func address(e config.Endpoint) string {
	if !e.Enabled {
		return ""
	}
	return hostPort(e.Host, e.Port)
}

func (a *Agent) healthHandler() http.Handler {
	mux := http.NewServeMux()
	answer := func(check func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		}
	}
	mux.HandleFunc("GET /liveness", answer(a.alive))
	mux.HandleFunc("GET /readiness", answer(a.ready))
	return mux
}

func (a *Agent) metricsHandler(m config.Metrics) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{agent: a})
	if m.Go {
		registry.MustRegister(collectors.NewGoCollector())
	}
	if m.Process {
		registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return mux
}

// hostPort joins a host, empty for all addresses, and a port.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
