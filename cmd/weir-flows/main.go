// SPDX-License-Identifier: Apache-2.0

// Command weir-flows is the cluster's store of flow records: it takes those of all agents, keeps
// them on a disk, and answers who asks by the controller.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore"
	"github.com/weir-net/weir/internal/flowstore/answer"
	"github.com/weir-net/weir/internal/flowstore/collect"
	"github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/health"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/relay/agents"
	"github.com/weir-net/weir/internal/relay/tunnel"
	"github.com/weir-net/weir/internal/version"
)

type settings struct {
	kubeconfig, listen, health, dir, peers string
	age, every, coarse, coarseEvery        time.Duration
	bytes                                  resource.Quantity
	otlp, ipfix, certificates              string
}

func main() {
	s := settings{bytes: *resource.NewQuantity(flowstore.DefaultBytes, resource.BinarySI)}
	flag.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: the pod's service account)")
	flag.StringVar(&s.listen, "addr", fmt.Sprintf(":%d", names.Port), "`address` for agents")
	flag.StringVar(&s.health, "health-addr", names.HealthAddr, "`address` of /liveness, /readiness, /metrics and /debug/pprof/; it should be on loopback")
	flag.StringVar(&s.dir, "dir", "/var/lib/weir-flows", "`folder` of the records")
	flag.StringVar(&s.peers, "peers-dir", trust.DefaultDir, "`folder` with the certificates of Weir's authorities and the token for the controller")
	flag.DurationVar(&s.age, "age", flowstore.DefaultAge, "for how long records are kept")
	flag.DurationVar(&s.coarse, "coarse-after", flowstore.DefaultCoarseAfter, "the age from which on records of the same ends, destination port and decision become one; 0 = never. They do when those that are as they were fill three quarters of -bytes, too")
	flag.DurationVar(&s.coarseEvery, "coarse-interval", flowstore.DefaultCoarseEvery, "of how long a time they become one")
	flag.DurationVar(&s.every, "every", flowstore.DefaultEvery, "records are on the disk after this time at most; what a store had in memory that ends it asks agents for again")
	flag.StringVar(&s.otlp, "otlp", "", "`address` of an OpenTelemetry collector that gets each record, too, such as https://collector.example.com:4317; http is without TLS")
	flag.StringVar(&s.ipfix, "ipfix", "", "`address` of a collector of IPFIX that gets each record, too: tls://, tcp:// or udp://collector.example.com:4739")
	flag.StringVar(&s.certificates, "export-tls-dir", "", "`folder` with ca.crt, the authorities of these collectors, and tls.crt and tls.key for those that want a certificate (default: public authorities)")
	flag.Var(&quantity{&s.bytes}, "bytes", "`size` of the records on the disk at most, such as 4Gi: the oldest go first")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, log, s); err != nil && ctx.Err() == nil {
		log.Error("weir-flows ends", "err", err)
		stop()
		os.Exit(1)
	}
}

// quantity is a flag of a size as Kubernetes writes it.
type quantity struct{ of *resource.Quantity }

func (q *quantity) String() string {
	if q.of == nil {
		return ""
	}
	return q.of.String()
}

func (q *quantity) Set(text string) (err error) {
	*q.of, err = resource.ParseQuantity(text)
	return err
}

func run(ctx context.Context, log *slog.Logger, s settings) error {
	cfg, err := client.LoadConfig(s.kubeconfig)
	if err != nil {
		return err
	}
	clients, err := clientset.New(cfg, "weir-flows/"+version.Version)
	if err != nil {
		return err
	}
	exporters, err := exportersOf(s, log)
	if err != nil {
		return err
	}
	store, err := flowstore.Open(flowstore.Options{Taken: exporters.taken(), Dir: s.dir, Age: s.age, Bytes: s.bytes.Value(), Records: flowstore.DefaultRecords, CoarseAfter: s.coarse, CoarseEvery: s.coarseEvery, Every: s.every, Log: log, Now: time.Now})
	if err != nil {
		return fmt.Errorf("open the store in %s: %w", s.dir, err)
	}
	registry := prometheus.NewRegistry()
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir_flowstore", Name: "agents_refused_total", Help: "Connections of agents that were refused, by why."}, []string{"reason"})
	collector := &collect.Collector{Store: store, Log: log}
	set := agents.New(agents.Config{Log: log, Reviewer: peerauth.NewReviewer(clients.Kube, peerauth.AgentUser(names.Namespace), names.ServerName), Refused: refused,
		Asking: func(ctx context.Context, a *agents.Agent) { collector.Follow(ctx, a.Peer.Node, a.Conn) }})
	answers := &answer.Server{Store: store, Nodes: set.Nodes, Age: s.age, Exports: exporters.lost, Log: log}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), answers, refused)
	for _, e := range exporters {
		registry.MustRegister(e)
	}
	serving := &peerauth.Serving{Kube: clients.Kube, Namespace: names.Namespace, Name: names.ServerName, Log: log, Now: time.Now}
	controllers := &controllers{kube: clients.Kube, log: log}
	log.Info("weir-flows starts", "version", version.Version, "api server", cfg.Host, "address", s.listen, "records", store.Status().Records)
	g, ctx := errgroup.WithContext(ctx)
	for _, e := range exporters {
		g.Go(func() error { e.Run(ctx); return nil })
	}
	g.Go(func() error { store.Run(ctx); return nil })
	g.Go(func() error { serving.Run(ctx); return nil })
	g.Go(func() error { controllers.run(ctx); return nil })
	g.Go(func() error {
		httplimit.ListenInTurn(ctx, s.listen, "agents", log, func(l net.Listener) error { return serveAgents(ctx, l, set, serving, log) })
		return nil
	})
	g.Go(func() error {
		mux := http.NewServeMux()
		mux.Handle("GET "+flows.Path, answers)
		tunnel.ControllerOfStore().Keep(ctx, &net.Dialer{}, trust.Folder(s.peers), mux, controllers.addrs, log)
		return nil
	})
	g.Go(func() error { health.Serve(ctx, s.health, log, health.Mux(serving.Err, registry)); return nil })
	return g.Wait()
}

// Bounds of connections of who has not proved to be an agent.
const (
	maxConns          = 4096
	maxConnsPerSource = 32
)

// serveAgents lets agents connect until ctx ends.
func serveAgents(ctx context.Context, l net.Listener, set *agents.Set, serving *peerauth.Serving, log *slog.Logger) error {
	handler := http.NewServeMux()
	handler.Handle(tunnel.Path, set)
	server := httplimit.NewServer(handler)
	server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug) // whoever reaches the port can fail to connect
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	server.TLSConfig = serving.Config()
	defer context.AfterFunc(ctx, func() {
		server.Close()
		set.Close()
	})()
	err := server.ServeTLS(httplimit.NewListener(l, maxConns, maxConnsPerSource), "", "")
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
