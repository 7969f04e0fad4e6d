// SPDX-License-Identifier: Apache-2.0

// Command weir-fanout follows the API once and sends each agent what its node needs of the cluster.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/fanout/report"
	"github.com/weir-net/weir/internal/fanout/server"
	"github.com/weir-net/weir/internal/health"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/version"
	"github.com/weir-net/weir/internal/watch"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` (default: the pod's service account)")
	listen := flag.String("addr", fmt.Sprintf(":%d", names.Port), "`address` for agents")
	healthAddr := flag.String("health-addr", names.HealthAddr, "`address` of /liveness, /readiness, /metrics, /agents and /debug/pprof/; it should be on loopback")
	interval := flag.Duration("interval", server.DefaultInterval, "least time between two changes that one agent is sent")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	tune()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, log, *kubeconfig, *listen, *healthAddr, *interval); err != nil && ctx.Err() == nil {
		log.Error("weir-fanout ends", "err", err)
		stop()
		os.Exit(1)
	}
}

// tune has garbage collected more often than usual, where the environment says nothing of it: most
// of the memory is the cluster, which stays.
func tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	client.StreamFirstObjects()
}

func run(ctx context.Context, log *slog.Logger, kubeconfig, listen, healthAddr string, interval time.Duration) error {
	cfg, err := client.LoadConfig(kubeconfig)
	if err != nil {
		return err
	}
	readers, err := client.New(cfg, "weir-fanout/"+version.Version)
	if err != nil {
		return err
	}
	clients, err := clientset.New(cfg, "weir-fanout/"+version.Version)
	if err != nil {
		return err
	}
	watcher, err := watch.New(watch.Config{Core: readers.Core, Dynamic: readers.Dynamic, Log: log.With("part", "watch")})
	if err != nil {
		return err
	}
	serving := &peerauth.Serving{Kube: clients.Kube, Namespace: names.Namespace, Name: names.ServerName, Log: log, Now: time.Now}
	reviewer := peerauth.NewReviewer(clients.Kube, peerauth.AgentUser(names.Namespace), names.ServerName)
	s := server.New(server.Config{Log: log, Reviewer: reviewer, Status: watcher.Status,
		Pod: watcher.KnownPod, Replica: client.Instance(), Interval: interval})
	reviewer.Offline = peerauth.NewOffline(clients.Kube, s.Lives, log)
	log.Info("weir-fanout starts", "version", version.Version, "api server", cfg.Host, "address", listen)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return watcher.Run(ctx, s.Update) })
	g.Go(func() error { serving.Run(ctx); return nil })
	g.Go(func() error { reviewer.Offline.Run(ctx); return nil })
	status := &report.Writer{Kube: clients.Kube, Namespace: names.Namespace, Replica: client.Instance(), Log: log, Now: time.Now, Report: func() report.Report {
		st := watcher.Status()
		return report.Of(time.Now(), os.Getenv("NODE_NAME"), st.Connected, st.Since, st.Err, s.Followers())
	}}
	status.Heard = func(err error) { watcher.Heard("report for weir status", err) }
	g.Go(func() error { status.Run(ctx); return nil })
	g.Go(func() error {
		httplimit.ListenInTurn(ctx, listen, "agents", log, func(l net.Listener) error { return s.Serve(ctx, l, serving.Config()) })
		return nil
	})
	g.Go(func() error { health.Serve(ctx, healthAddr, log, mux(s, serving, watcher)); return nil })
	return g.Wait()
}

// mux answers probes and people of the machine.
func mux(s *server.Server, serving *peerauth.Serving, watcher *watch.Watcher) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.Register(registry)
	m := health.Mux(func() error {
		if !s.Ready() {
			return errors.New("the cluster was not read yet")
		}
		return serving.Err()
	}, registry)
	m.HandleFunc("/agents", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"watch": watcher.Status(), "agents": s.Followers()}) // who asked may be gone
	})
	return m
}
