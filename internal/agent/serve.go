// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-net/weir/internal/agent/api"
	"github.com/weir-net/weir/internal/agent/bgp"
	"github.com/weir-net/weir/internal/agent/httpserve"
	"github.com/weir-net/weir/internal/agent/lbhealth"
	"github.com/weir-net/weir/internal/agent/metrics"
	apiwire "github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/flows"
	flowwire "github.com/weir-net/weir/internal/flows/wire"
	storenames "github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/relay/tunnel"
	"github.com/weir-net/weir/internal/version"
	"github.com/weir-net/weir/internal/watch"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// stuckAfter is how long a part of the agent may be busy with one thing before it counts as
// hanging.
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
	if !a.source.Status().Synced {
		return errors.New("the cluster was not read yet")
	}
	if a.loop.Applied() == 0 {
		return errors.New("the node's state is not in the kernel yet")
	}
	return a.alive()
}

// serve offers health and metrics where the configuration says, until ctx ends.
func (a *Agent) serve(ctx context.Context) error {
	health := &httpserve.Listener{What: "health", Log: a.log}
	metricsServer := &httpserve.Listener{What: "metrics", Log: a.log}
	defer health.Close()
	defer metricsServer.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var shown config.Metrics
	var handler http.Handler
	for {
		e := a.cluster.snapshot().config
		health.Ensure(httpserve.Address(e.Health), a.healthHandler())
		if handler == nil || e.Metrics != shown {
			shown, handler = e.Metrics, a.metricsHandler(e.Metrics)
			metricsServer.Ensure("", nil)
		}
		a.metricsTLS.Ensure(metricsServer, e.Metrics, handler)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
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
	registry.MustRegister(&collector{agent: a}, &bgp.Collector{Process: a.bgp, State: a.cluster.state}, a.programming, a.handshakes)
	if a.nri != nil {
		registry.MustRegister(a.nri)
	}
	if m.Go {
		registry.MustRegister(collectors.NewGoCollector())
	}
	if m.Process {
		registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	mux := http.NewServeMux()
	all := prometheus.Gatherers{registry, metrics.Neighbours{{Addr: model.ControllerHealthAddr, Prefix: "weir_controller_"}, {Addr: names.HealthAddr, Prefix: "weir_fanout_"}, {Addr: storenames.HealthAddr, Prefix: "weir_flowstore_"}}}
	// What cannot be read of another program is left out: the node's own metrics are what counts.
	mux.Handle("GET /metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)}))
	return mux
}

// staleAfter is how late a state may be before the node is no good to load balancers (kube-proxy:
// twice its sync period).
const staleAfter = 60 * time.Second

// healthy says why load balancers should turn away, whatever becomes of the Node. While the agent
// starts the data plane of the one before goes on.
func (a *Agent) healthy() error {
	if late := a.loop.Stale(); late > staleAfter {
		return fmt.Errorf("the node's state has been waiting for %s", late.Round(time.Second))
	}
	return a.alive()
}

// serveLoadBalancers answers load balancers about this node and about single Services, until ctx
// ends.
func (a *Agent) serveLoadBalancers(ctx context.Context) error {
	node := &httpserve.Listener{What: "health of the node, for load balancers", Log: a.log}
	defer node.Close()
	mode := &httpserve.Listener{What: "proxy mode, for programs of this node", Log: a.log}
	defer mode.Close()
	services := lbhealth.NewServiceChecks(a.log, func() bool { return a.healthy() == nil })
	a.serviceChecks.Store(services)
	defer services.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	handler := lbhealth.NodeHandler(func() (error, bool) { return a.healthy(), !a.cluster.snapshot().leaving }, time.Now)
	for {
		snap := a.cluster.snapshot()
		want, wantMode := "", ""
		proxy := a.cluster.servicesBy()
		proxy.Proxy = proxy.Proxy || proxy.Seen != "" // one that begins has to find its ports free
		if p := snap.config.HealthzPort; p != 0 && !proxy.Proxy {
			want, wantMode = httpserve.HostPort("", p), lbhealth.ProxyModeAddr
		}
		node.Ensure(want, handler)
		mode.Ensure(wantMode, http.HandlerFunc(lbhealth.ProxyMode))
		switch {
		case snap.state == nil:
		case proxy.Proxy:
			services.Update(nodestate.New(), nil)
		default:
			services.Update(snap.state, lbhealth.ServiceAddrs(snap.state, snap.config.Settings.NodePorts))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.checksDue:
		case <-tick.C:
		}
	}
}

// apiHandlers are what an agent answers to who is root on its node, may run programs in its pod, or
// has the right to ask by the API server (package relay): the handlers by the pattern of their
// path. An answer that goes on for long ends with its request's context.
func (a *Agent) apiHandlers() map[string]http.HandlerFunc {
	shown := &bgp.Server{Process: a.bgp, State: a.cluster.state}
	return map[string]http.HandlerFunc{
		"GET /version":              a.serveVersion,
		"GET " + events.Path:        a.serveEvents,
		"GET " + flows.Path:         a.flows.ServeHTTP,
		"GET /status":               a.serveStatus,
		"GET " + apiwire.SourcePath: a.serveSource,
		"GET " + ipam.RecordsPath:   a.serveRecords,
		"POST " + whywire.Path:      a.why.ServeHTTP,
		"POST " + apiwire.KeyPath:   a.serveKeyChange,
		"GET /bgp":                  shown.ServePeers,
		"GET /bgproutes":            shown.ServeRoutes,
	}
}

// serveControllers answers users' questions by the controller, and its own about this node's
// certificate and flows of virtual machines, until ctx ends.
func (a *Agent) serveControllers(ctx context.Context) error {
	handlers := a.apiHandlers()
	maps.Copy(handlers, a.flowAPI.Questions())
	maps.Copy(handlers, a.machineFlows.Questions())
	tunnel.Controller().Keep(ctx, remoteDialer(), trust.Folder(a.opts.PeersDir), api.Bounded(api.NewMux(handlers)),
		func() []string { return a.cluster.snapshot().controllers }, a.log)
	return nil
}

// serveStore gives the store of flow records what it asks for, until ctx ends. Nobody is connected
// to while flows are not accounted for.
func (a *Agent) serveStore(ctx context.Context) error {
	records := api.NewMux(map[string]http.HandlerFunc{"GET " + flowwire.Path: a.flows.ServeFollow})
	tunnel.Store().Keep(ctx, remoteDialer(), trust.Folder(a.opts.PeersDir), api.Bounded(records), func() []string {
		if a.flows.Collector.Interval() == 0 {
			return nil
		}
		return a.cluster.snapshot().stores
	}, a.log)
	return nil
}

// remoteDialer makes connections of the agent's own, which the data plane lets through.
func remoteDialer() *net.Dialer { return &net.Dialer{Control: kernel.MarkOwn} }

// Version is the answer to GET /version.
type Version struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Kernel  string    `json:"kernel"`
	Began   time.Time `json:"began"`
	Epoch   uint32    `json:"epoch"` // of flows: moves on when existing ones are to be evaluated again
}

func (a *Agent) serveVersion(w http.ResponseWriter, _ *http.Request) {
	api.WriteJSON(w, Version{Version: version.Version, Node: a.opts.Node, Kernel: kernel.Release(), Began: a.started.UTC().Truncate(time.Second), Epoch: a.driver.Status().Epoch})
}

// serveStatus reports the node's status as it is now: a weirv1.NodeStatusStatus.
func (a *Agent) serveStatus(w http.ResponseWriter, _ *http.Request) {
	if a.cluster.snapshot().state == nil {
		http.Error(w, "the agent has not read the cluster yet", http.StatusServiceUnavailable)
		return
	}
	api.WriteJSON(w, a.status(nil))
}

// serveSource says whence the agent has the cluster: an apiwire.Source.
func (a *Agent) serveSource(w http.ResponseWriter, _ *http.Request) {
	api.WriteJSON(w, sourceOf(a.opts.Node, a.source.Fed(), a.source.Status(), time.Now()))
}

func sourceOf(node string, fed bool, st watch.Status, now time.Time) apiwire.Source {
	out := apiwire.Source{Node: node, Version: version.Version, Fed: fed, FanOut: st.FanOut, Synced: st.Synced, Connected: st.Connected, Since: st.Since, Error: st.Err, AsOf: st.AsOf}
	if !fed { // what a watch brings is there at once
		if out.AsOf = now; !st.Connected {
			out.AsOf = st.Since
		}
	}
	return out
}

// serveRecords says which addresses the node has given, as its files have it: an ipam.NodeRecords.
func (a *Agent) serveRecords(w http.ResponseWriter, _ *http.Request) {
	has, err := ipam.ReadDir(filepath.Join(a.opts.StateDir, ipamDir))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	api.WriteJSON(w, has)
}

// noteChange is called after the cluster goroutine handed a state on.
func (a *Agent) noteChange() {
	a.servers.Learn(a.cluster.apiServers())
	a.lastGood.Note(a.cluster.lastGood())
	for _, ch := range []chan struct{}{a.statusDue, a.checksDue, a.familiesChanged} {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
