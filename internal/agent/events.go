// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/weir-net/weir/internal/agent/flowapi"
	"github.com/weir-net/weir/internal/agent/flowlog"
	"github.com/weir-net/weir/internal/agent/remembered"
	"github.com/weir-net/weir/internal/agent/source"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/hubble"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/peerauth/nodecert"
	"github.com/weir-net/weir/internal/version"
)

// eventNames are the names that events get.
type eventNames struct {
	*cluster
	source *source.Chooser
}

// State implements events.Namer.
func (n eventNames) State() *nodestate.State { return n.snapshot().state }

// Pod implements events.Namer.
func (n eventNames) Pod(a netip.Addr) (model.Name, bool) {
	if name, _, ok := n.owner(a); ok {
		return name, true
	}
	// A pod's address that is nobody's in this node's part of the cluster.
	state := n.snapshot().state
	if state == nil || !state.InPool(a) {
		return model.Name{}, false
	}
	return n.source.Owner(a)
}

// Describe implements flows.Namer. Labels are those of pods in this node's part of the cluster.
func (n eventNames) Describe(pod model.Name, a netip.Addr) (labels map[string]string, node string) {
	if state := n.snapshot().state; state != nil && state.Addrs[a].Owner.Name != "" {
		node = n.node
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.model.Pods.Get(pod); p != nil {
		return p.Labels, p.Node
	}
	return nil, node
}

// flowSettings is what is to be accounted for now, and what a start of the agent would find: that
// is written down when it comes into force.
func (a *Agent) flowSettings() (now, atStart time.Duration, known bool) {
	snap := a.cluster.snapshot()
	return snap.config.FlowRecords, a.atStart().FlowRecords, snap.state != nil
}

// keepFlows makes what keeps flow records, and what answers about them by Hubble's API.
func (a *Agent) keepFlows(atStart config.Effective) {
	a.flows = &flowlog.Log{Collector: flows.New(a.opts.Node, atStart.FlowRecords, atStart.FlowsKept, eventNames{a.cluster, a.source}), Events: a.events, Driver: a.flowSource, Lost: func() (dataplane.LostEvents, error) { return a.driver.LostEvents() }, Settings: a.flowSettings, Restart: ErrRestart, Log: a.log}
	a.flowAPI = &flowapi.API{Server: hubble.Server{Node: a.opts.Node, Records: a.flows.Collector, Version: "Weir " + version.Version, Began: a.started, Status: func() flows.Status { now, _ := a.flows.Status(); return now }},
		Socket: filepath.Join(a.opts.RunDir, hubble.SocketName), At: atStart.Hubble, Nodes: a.cluster.nodes, Certificate: nodecert.Holder{Name: flowapi.CertifiedAs(a.opts.Node, atStart.Hubble), Now: time.Now}, Log: a.log.With("part", "hubble")}
	a.flows.Serve, a.flows.Collector.OnHandshake = a.flowAPI.Serve, a.handshakes.Note
	a.flows.Collector.Aggregation = func() flows.Aggregation { return flows.Aggregation(a.cluster.snapshot().config.FlowAggregation) }
}

// atStart are the settings that a start of the agent would find.
func (a *Agent) atStart() config.Effective {
	return config.New(a.opts.Node, a.opts.Environ, remembered.OpenLastGood(a.opts.StateDir, a.log).Load()).AtStart()
}

// nodes looks for those of the cluster; there are none once ctx has ended.
func (c *cluster) nodes(ctx context.Context) func() []hubble.Node {
	return func() (out []hubble.Node) {
		_ = c.look(ctx, func(m *model.Cluster) {
			for _, n := range m.Nodes {
				out = append(out, hubble.Node{Name: n.Name, Addrs: n.Addrs})
			}
		})
		return out
	}
}

// flowSource is the data plane as a source of flow records.
func (a *Agent) flowSource() flowlog.DataPlane { return a.driver }

// retryEvents is how long the agent waits after events could not be read.
const retryEvents = 10 * time.Second

// readEvents reads the data plane's events until ctx ends. Those of nftables come by a group of
// nflog that somebody else may have: that is reported, and tried again.
func (a *Agent) readEvents(ctx context.Context) error {
	for {
		from, err := a.driver.Events()
		if err == nil {
			if err = a.events.Run(ctx, from); err != nil {
				err = errors.Join(err, from.Close())
			}
		}
		if err == nil || !a.driver.traits().sharedEvents {
			return err
		}
		a.log.Error("events cannot be read; trying again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryEvents):
		}
	}
}

// beat is how often a stream of events without any says that it is there: an empty line.
const beat = 15 * time.Second

// serveEvents streams events, one JSON object a line, until who asked is gone.
func (a *Agent) serveEvents(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	l, err := a.events.Listen(events.Filter{Type: q.Get("type"), Pod: q.Get("pod")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer a.events.Remove(l)
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	alive := time.NewTicker(beat)
	defer alive.Stop()
	for text := []byte{'\n'}; ; {
		if _, err := w.Write(text); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-alive.C:
			text = []byte{'\n'}
		case e := <-l.Events():
			if text, err = json.Marshal(e); err != nil {
				a.log.Error("an event cannot be written", "error", err)
				return
			}
			text = append(text, '\n')
		}
	}
}

// Lines a second in the agent's log, in the long run and at once: of denied flows, and of what
// rules with action Log match.
const (
	deniedRate, deniedBurst = 1, 20
	loggedRate, loggedBurst = 20, 200
)

// logEvents writes what is denied, and what rules with action Log match, into the agent's log, at a
// limited rate.
func (a *Agent) logEvents(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return a.logMatching(ctx, "drop", rate.NewLimiter(deniedRate, deniedBurst), func(e *events.Event) string {
			if e.Log || e.Verdict != "denied" {
				return ""
			}
			return "a flow was denied by policy"
		})
	})
	g.Go(func() error {
		return a.logMatching(ctx, "log", rate.NewLimiter(loggedRate, loggedBurst), func(*events.Event) string { return "a rule with action Log matched" })
	})
	return g.Wait()
}

// logMatching logs the events of a type that say gives words for.
func (a *Agent) logMatching(ctx context.Context, what string, limit *rate.Limiter, say func(*events.Event) string) error {
	l, err := a.events.Listen(events.Filter{Type: what})
	if err != nil {
		return fmt.Errorf("listening to events of type %s: %w", what, err)
	}
	defer a.events.Remove(l)
	unsaid := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-l.Events():
			words := say(&e)
			if words == "" {
				continue
			}
			unsaid += e.Lost
			if !limit.Allow() {
				unsaid++
				continue
			}
			attrs := []any{"source", e.Source.String(), "destination", e.Destination.String(), "protocol", e.Protocol, "port", e.Destination.Port, "verdict", e.Verdict}
			if r := e.Deciding(); r != nil {
				attrs = append(attrs, "rule", r.String())
			}
			if unsaid > 0 {
				attrs = append(attrs, "others like it that were left out", unsaid)
				unsaid = 0
			}
			a.log.Info(words, attrs...)
		}
	}
}
