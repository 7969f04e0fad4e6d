// SPDX-License-Identifier: Apache-2.0

// Command weir-controller runs Weir's cluster-wide part.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/api/podenv"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/admission"
	"github.com/weir-net/weir/internal/controller"
	"github.com/weir-net/weir/internal/controller/fanout"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/relay"
	"github.com/weir-net/weir/internal/version"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` (default: the pod's service account)")
	health := flag.String("health-addr", model.ControllerHealthAddr, "`address` of /liveness and /metrics")
	listen := flag.String("live-addr", fmt.Sprintf(":%d", model.ControllerPort), "`address` for agents and for API servers that hand questions on (group live.weir.dev); empty = none")
	grace := flag.Duration("grace", controller.DefaultGrace, "how long a node must be gone until its blocks are given back")
	podCIDR := flag.String("pod-cidr", podenv.Configured("POD_CIDR", "pod_cidr"), "addresses of the first IPPool, or of the first two: IPv4,IPv6; empty = make none ($POD_CIDR)")
	vxlanMode := flag.String("vxlan-mode", cmp.Or(podenv.Configured("VXLAN_MODE", "vxlan_mode"), "CrossSubnet"), "vxlanMode of the first IPPool ($VXLAN_MODE)")
	minNodes := flag.String("fanout-min-nodes", podenv.Configured("FANOUT_MIN_NODES", "fanout_min_nodes"), "`number` of nodes from which on Deployment weir-fanout has replicas, or never; empty = 100 ($FANOUT_MIN_NODES)")
	policyDefaults := flag.Bool("policy-defaults", false, "answer the API server at -live-addr what policies leave out (MutatingWebhookConfiguration "+admission.Configuration+"), and keep the authority by which it knows this program there")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	from, err := fanout.ParseMinNodes(*minNodes)
	if err == nil {
		err = run(ctx, log, *kubeconfig, *health, *listen, controller.Config{
			Log: log, Identity: client.Instance(), Namespace: deploy.Namespace, PodCIDR: *podCIDR, VXLANMode: *vxlanMode,
			Environ: os.Environ(), FanOutMinNodes: from, PolicyDefaults: *policyDefaults, Grace: *grace, Interval: controller.DefaultInterval,
		})
	}
	if err != nil && ctx.Err() == nil {
		log.Error("weir-controller ends", "err", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, log *slog.Logger, kubeconfig, health, listen string, cfg controller.Config) error {
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
	var webhook http.Handler
	if cfg.PolicyDefaults {
		webhook = admission.Handler()
	}
	relay := newLive(clients.Kube, log, webhook)
	cfg.Agents = relay
	c := controller.New(cfg)
	server := healthServer(c, relay.Relay)
	defer server.Close()
	if listen != "" {
		go relay.run(ctx, listen)
	}
	go serveHealth(ctx, health, server)
	log.Info("weir-controller starts", "version", version.Version, "api server", rest.Host)
	return c.Run(ctx)
}

// serveHealth serves where the kubelet asks for both instances of one node at the same address: it
// hears of the one that has it.
func serveHealth(ctx context.Context, addr string, s *http.Server) {
	httplimit.ListenInTurn(ctx, addr, "/liveness and /metrics", slog.Default(), func(l net.Listener) error {
		return s.Serve(httplimit.NewListener(l, httplimit.DefaultTotal, httplimit.DefaultPerSource))
	})
}

func healthServer(c *controller.Controller, live *relay.Relay) *http.Server {
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
	live.Register(registry)
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return httplimit.NewServer(mux)
}
