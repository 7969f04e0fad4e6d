// SPDX-License-Identifier: Apache-2.0

// Package nri holds the start of pods by the Node Resource Interface of container runtimes
// (containerd from 1.7 on, CRI-O from 1.26 on): a pod has its interface, and its containers start
// when its policy is in force. Runtimes serve one pod at a time by this interface, and drop a
// plugin that is late, so that no pod is held for long: one that starts before its policy is cut
// off by the data plane until then. Where there is no such interface nothing is held.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/agent/nri/api"
	"github.com/weir-net/weir/internal/model"
)

// Socket is where runtimes listen for plugins, unless they are configured otherwise.
const Socket = "/var/run/nri/nri.sock"

const (
	// name and index are what the plugin is called in the runtime's log. Others' answers do not
	// matter to it, and so it is called late.
	name, index = "weir", "90"
	// longest is how long a pod is held at most: policy takes some milliseconds.
	longest = time.Second
	// again is after how long a runtime is looked for again.
	again = 5 * time.Second
	// registerWithin is how long a runtime may take to answer.
	registerWithin = 5 * time.Second
)

// Hold returns when policy is in force for a pod, or why it cannot be. Addresses that the runtime
// does not name are looked for.
type Hold func(ctx context.Context, pod model.Name, uid string, addrs []netip.Addr) error

// Plugin is a plugin of a container runtime. It collects its own metrics.
type Plugin struct {
	socket string
	hold   Hold
	log    *slog.Logger

	connected prometheus.Gauge
	held      *prometheus.HistogramVec
}

// New returns a plugin that Run connects.
func New(socket string, hold Hold, log *slog.Logger) *Plugin {
	return &Plugin{
		socket: socket, hold: hold, log: log,
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "weir", Name: "nri_connected",
			Help: "1 while the container runtime lets the agent hold the start of pods (NRI)."}),
		held: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "weir", Name: "nri_pod_held_seconds",
			Help:    "How long pods were held by the container runtime's NRI until their policy was in force, by result: ready, or late: the pod went on without a network.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 11)}, []string{"result"}),
	}
}

// Describe implements prometheus.Collector.
func (p *Plugin) Describe(ch chan<- *prometheus.Desc) {
	p.connected.Describe(ch)
	p.held.Describe(ch)
}

// Collect implements prometheus.Collector.
func (p *Plugin) Collect(ch chan<- prometheus.Metric) {
	p.connected.Collect(ch)
	p.held.Collect(ch)
}

// Run connects to the runtime, again and again, until ctx ends.
func (p *Plugin) Run(ctx context.Context) error {
	for said := ""; ; {
		err := p.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// A runtime without the interface has no socket: that is no news.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) && err.Error() != said {
			said = err.Error()
			p.log.Warn("the container runtime's NRI is not in use; pods start without a network until their policy is in force", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		}
	}
}

// serve is one connection.
func (p *Plugin) serve(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", p.socket)
	if err != nil {
		return err
	}
	mux := multiplex.Multiplex(conn)
	defer mux.Close()
	listener, err := mux.Listen(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	defer server.Close()
	s := &session{plugin: p}
	server.RegisterService("nri.pkg.api.v1alpha1.Plugin", s.methods())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()

	runtime, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	lost := make(chan struct{})
	client := ttrpc.NewClient(runtime, ttrpc.WithOnClose(func() { close(lost) }))
	defer client.Close()
	within, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	if err := client.Call(within, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", &api.RegisterPluginRequest{PluginName: name, PluginIdx: index}, &api.Empty{}); err != nil {
		return fmt.Errorf("registering with the container runtime: %w", err)
	}
	defer p.connected.Set(0)
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("the container runtime ended the connection: %w", err)
	case <-lost:
		return errors.New("the container runtime ended the connection")
	}
}

// session is what one runtime asks.
type session struct {
	plugin *Plugin
	within atomic.Int64 // how long a pod may be held, a time.Duration
}

// method adapts a function to ttrpc.
func method[Req any, Resp any](f func(context.Context, *Req) *Resp) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		var r Req
		if err := unmarshal(&r); err != nil {
			return nil, err
		}
		return f(ctx, &r), nil
	}
}

func (s *session) methods() *ttrpc.ServiceDesc {
	return &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Configure":   method(s.configure),
		"Synchronize": method(s.synchronize),
		"Shutdown":    method(func(context.Context, *api.Empty) *api.Empty { return &api.Empty{} }),
		"RunPodSandbox": method(func(ctx context.Context, r *api.RunPodSandboxRequest) *api.RunPodSandboxResponse {
			s.started(ctx, r.GetPod())
			return &api.RunPodSandboxResponse{}
		}),
		"StateChange": method(func(ctx context.Context, r *api.StateChangeEvent) *api.Empty {
			if r.GetEvent() == api.Event_RUN_POD_SANDBOX {
				s.started(ctx, r.GetPod())
			}
			return &api.Empty{}
		}),
	}}
}

// configure chooses events. A pod is held for half of what the runtime allows, as it gives up a
// plugin that takes longer.
func (s *session) configure(_ context.Context, r *api.ConfigureRequest) *api.ConfigureResponse {
	within := longest
	if ms := r.GetRequestTimeout(); ms > 0 {
		within = min(within, time.Duration(ms)*time.Millisecond/2)
	}
	s.within.Store(int64(within))
	s.plugin.log.Info("the start of pods waits for their policy, by the container runtime's NRI",
		"runtime", r.GetRuntimeName(), "version", r.GetRuntimeVersion(), "at most", within)
	return &api.ConfigureResponse{Events: 1 << (api.Event_RUN_POD_SANDBOX - 1)}
}

// synchronize ends the runtime's account of the pods that run: nothing is to be done about them.
func (s *session) synchronize(_ context.Context, r *api.SynchronizeRequest) *api.SynchronizeResponse {
	if !r.GetMore() {
		s.plugin.connected.Set(1)
	}
	return &api.SynchronizeResponse{More: r.GetMore()}
}

// started holds a pod whose interface is made and whose containers are not.
func (s *session) started(ctx context.Context, pod *api.PodSandbox) {
	at := model.Name{Namespace: pod.GetNamespace(), Name: pod.GetName()}
	var addrs []netip.Addr
	for _, text := range pod.GetIps() {
		if a, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.within.Load()))
	defer cancel()
	result := "ready"
	if err := s.plugin.hold(ctx, at, pod.GetUid(), addrs); err != nil {
		result = "late"
		s.plugin.log.Warn("a pod starts without a network, as its policy is not in force yet", "pod", at.String(), "error", err)
	}
	s.plugin.held.WithLabelValues(result).Observe(time.Since(began).Seconds())
}
