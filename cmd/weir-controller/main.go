// Command weir-controller runs Weir's cluster-wide part.
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
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/controller"
	"github.com/weir-net/weir/internal/version"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` (default: the pod's service account)")
	health := flag.String("health-addr", "127.0.0.1:9094", "`address` of /liveness and /metrics")
	grace := flag.Duration("grace", controller.DefaultGrace, "how long a node must be gone until its blocks are given back")
	podCIDR := flag.String("pod-cidr", os.Getenv("POD_CIDR"), "addresses of the first IPPool, or of the first two: IPv4,IPv6; empty = make none ($POD_CIDR)")
	vxlanMode := flag.String("vxlan-mode", envOr("VXLAN_MODE", "CrossSubnet"), "vxlanMode of the first IPPool ($VXLAN_MODE)")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, log, *kubeconfig, *health, controller.Config{
		Log: log, Identity: identity(), Namespace: deploy.Namespace, PodCIDR: *podCIDR, VXLANMode: *vxlanMode,
		Grace: *grace, Interval: controller.DefaultInterval,
	})
	if err != nil && ctx.Err() == nil {
		log.Error("weir-controller ends", "err", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, log *slog.Logger, kubeconfig, health string, cfg controller.Config) error {
	rest, err := client.LoadConfig(kubeconfig)
	if err != nil {
		return err
	}
	clients, err := clientset.New(rest, "weir-controller/"+version.Version)
	if err != nil {
		return err
	}
	cfg.Kube, cfg.Dynamic = clients.Kube, clients.Dynamic
	if cfg.PodCIDR != "" {
		o := deploy.Defaults()
		o.PodCIDR, o.VXLANMode = cfg.PodCIDR, cfg.VXLANMode
		if err := o.Validate(); err != nil {
			return fmt.Errorf("ConfigMap %s/weir-config: %w; correct it", deploy.Namespace, err)
		}
	}
	c := controller.New(cfg)
	stop, err := serveHealth(health, c)
	if err != nil {
		return err
	}
	defer stop()
	log.Info("weir-controller starts", "version", version.Version, "api server", rest.Host)
	return c.Run(ctx)
}

func serveHealth(addr string, c *controller.Controller) (stop func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve /liveness: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/liveness", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	c.Register(registry)
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			slog.Error("serving /liveness ended", "err", err)
		}
	}()
	return func() { _ = s.Close() }, nil
}

func identity() string {
	if n := os.Getenv("POD_NAME"); n != "" {
		return n
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
