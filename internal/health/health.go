// SPDX-License-Identifier: Apache-2.0

// Package health is the HTTP by which the kubelet, Prometheus and people of a machine ask one of
// the cluster's servers how it is: /liveness, /readiness, /metrics and /debug/pprof/.
package health

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-net/weir/internal/httplimit"
)

// Mux answers; ready says why the program is not ready, nil = it is. A caller may add to it.
func Mux(ready func() error, metrics prometheus.Gatherer) *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("/liveness", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	m.HandleFunc("/readiness", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	m.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	m.HandleFunc("/debug/pprof/", pprof.Index)
	m.HandleFunc("/debug/pprof/profile", pprof.Profile)
	return m
}

// Serve serves at an address until ctx ends. The kubelet asks for both instances of one node at the
// same one, as while a new version takes over: it hears of the one that has it.
func Serve(ctx context.Context, addr string, log *slog.Logger, handler http.Handler) {
	h := httplimit.NewServer(handler)
	h.WriteTimeout = 2 * time.Minute // profiles take a while
	defer context.AfterFunc(ctx, func() { h.Close() })()
	httplimit.ListenInTurn(ctx, addr, "health and metrics", log, func(l net.Listener) error {
		return h.Serve(httplimit.NewListener(l, httplimit.DefaultTotal, httplimit.DefaultPerSource))
	})
}
