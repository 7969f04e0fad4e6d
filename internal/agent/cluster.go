// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/apiserver"
	"github.com/weir-net/weir/internal/agent/chain"
	"github.com/weir-net/weir/internal/agent/chain/results"
	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
	storenames "github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/nodeview"
	"github.com/weir-net/weir/internal/watch"
)

// cluster owns the model: everything that changes it goes through one goroutine, which computes the
// node's state and hands it to the loop.
type cluster struct {
	node    string
	loop    *dataplane.Loop
	log     *slog.Logger
	machine *machine.Watcher
	chain   *chain.Watcher // finds the interfaces of pods; nil = Weir's own CNI plugin makes them
	// results knows addresses of this node's pods before the API server does; set where chain is.
	results *results.Watcher
	changed func() // after a state was handed on
	// noteConfig gets the configured values that are valid, by field, once the cluster was read. Of
	// many no state is made: which data plane is asked for, for one.
	noteConfig func(lastGood map[string]string)
	setPools   func(ipam.Config) // gives the allocator its pools
	// reached returns where API servers were reached; nil = nothing is known of it.
	reached func() []netip.AddrPort
	// announce gets what this node answers neighbours for, and which nodes it watches.
	announce func(announced map[netip.Addr]bool, watched map[netip.Addr][6]byte)
	// probe gets the nodes that are probed.
	probe func(map[netip.Addr]bool)
	// noteMachines gets the cluster when blocks or endpoints may be others, and whether virtual
	// machines keep their addresses.
	noteMachines func(c *model.Cluster, enabled bool)
	// noteBGP gets what the node's BGP process should do.
	noteBGP func(*nodestate.BGP)
	// noteEndpoints gets whose interfaces the node has, when they may be others.
	noteEndpoints func(map[netip.Addr]model.Name)
	// programmed gets when what led to changes of Services' endpoints happened, with the generation
	// of the state that has them.
	programmed func(gen uint64, changes []time.Time)
	// noteClaims is called with Nodes that changed; full = with all that there are.
	noteClaims func(nodes map[string]*model.Node, full bool)
	// unfitPod is called with a pod of this node of which something is not in force as it is
	// written, and what.
	unfitPod func(pod model.Name, uid string, found []weirv1.Problem)

	queue chan func()
	ended chan struct{} // closed when run returns: nothing in queue is done any more

	// Of the goroutine only.
	model     *model.Cluster
	dirty     model.Dirty
	calc      *calc.Calculator
	resolver  *config.Resolver
	complete  bool // the whole cluster was read once
	gen       uint64
	waiting   []chan uint64
	earlyPods map[model.Name]*model.Pod // pods that an ADD brought before the watch did
	// since are the times of changes of endpoints that no state that was handed on has yet.
	since    []time.Time
	nodePods map[model.Name]*model.Pod // of this node, with an interface of their own; where chain is set
	ipamConf ipamInputs
	// servers are the EndpointSlices of apiService, controllers those of controllerService, stores
	// those of storeService.
	servers, controllers, stores map[model.Name]*model.EndpointSlice
	opened                       model.Settings // with the sizes of maps as the data plane was opened; 0 = what is configured
	overlaps                     []calc.PoolOverlap
	saveWireGuard                func(map[string]model.KnownWireGuard) // keeps what keys other nodes had

	// mu is held by the goroutine while it changes model.Pods, and by others while they look there.
	mu   sync.Mutex
	snap snapshot
	// proxies are the pods of kube-proxy on this node.
	proxies map[string]bool
	// handling says who carries Services; with eBPF that is Weir, and it stays zero.
	handling kubeproxy.Handling
}

// storeService is the Service of the store of flow records.
var storeService = model.Name{Namespace: storenames.Namespace, Name: storenames.Name}

// controllerService is the Service of Weir's controller.
var controllerService = model.Name{Namespace: "kube-system", Name: "weir-controller"}

func newCluster(node string, loop *dataplane.Loop, resolver *config.Resolver, log *slog.Logger) *cluster {
	c := &cluster{
		node: node, loop: loop, log: log, queue: make(chan func(), 64), ended: make(chan struct{}),
		model: model.NewCluster(), calc: calc.New(), resolver: resolver, changed: func() {}, setPools: func(ipam.Config) {},
		noteConfig: func(map[string]string) {}, saveWireGuard: func(map[string]model.KnownWireGuard) {},
		announce: func(map[netip.Addr]bool, map[netip.Addr][6]byte) {}, probe: func(map[netip.Addr]bool) {}, noteClaims: func(map[string]*model.Node, bool) {},
		noteEndpoints: func(map[netip.Addr]model.Name) {}, noteMachines: func(*model.Cluster, bool) {}, noteBGP: func(*nodestate.BGP) {}, unfitPod: func(model.Name, string, []weirv1.Problem) {},
		programmed: func(uint64, []time.Time) {},
		earlyPods:  map[model.Name]*model.Pod{}, nodePods: map[model.Name]*model.Pod{}, proxies: map[string]bool{},
		servers: map[model.Name]*model.EndpointSlice{}, controllers: map[model.Name]*model.EndpointSlice{}, stores: map[model.Name]*model.EndpointSlice{},
		ipamConf: ipamInputs{reservations: map[string]*watch.Reservation{}, settings: watch.IPAMConfig{StrictAffinity: true}},
	}
	c.model.Local = model.Local{Node: node, Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
	c.snap.beat = time.Now()
	c.resolve()
	return c
}

// restore puts the endpoints there that exist. It is called before run.
func (c *cluster) restore(endpoints []model.LocalEndpoint) {
	for _, ep := range endpoints {
		for _, a := range ep.Addrs {
			c.model.Local.Endpoints[a] = &ep
		}
	}
	c.dirty.Add(model.KindLocal)
}

// run works until ctx ends.
func (c *cluster) run(ctx context.Context) error {
	defer close(c.ended)
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-c.queue:
			f()
		case <-beat.C:
		}
		for more := true; more; {
			select {
			case f := <-c.queue:
				f()
			default:
				more = false
			}
		}
		c.compute()
	}
}

// later has the goroutine run f; nobody waits for that, nor when the goroutine has ended.
func (c *cluster) later(f func()) {
	select {
	case c.queue <- f:
	case <-c.ended:
	}
}

// do runs f in the goroutine and returns when it is over.
func (c *cluster) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case c.queue <- func() { f(); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look has f look at the model.
func (c *cluster) look(ctx context.Context, f func(*model.Cluster)) error {
	return c.do(ctx, func() { f(c.model) })
}

// change runs f in the goroutine and returns the generation of the state that has its effect, when
// that was handed to the loop; not before the whole cluster was read.
func (c *cluster) change(ctx context.Context, f func()) (uint64, error) {
	submitted := make(chan uint64, 1)
	select {
	case c.queue <- func() { f(); c.waiting = append(c.waiting, submitted) }:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case gen := <-submitted:
		return gen, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for the cluster's state: %w", ctx.Err())
	}
}

// compute hands on a state when something changed.
func (c *cluster) compute() {
	if c.chain != nil && c.complete && c.dirty.Has(model.KindLocal) {
		c.findEndpoints()
	}
	if c.dirty.Has(model.KindLocal) {
		c.noteEndpoints(nodeview.EndpointsOf(&c.model.Local))
	}
	if c.dirty.Has(model.KindLocal | model.KindBlocks) {
		c.noteMachines(c.model, c.ipamConf.settings.VMAddresses)
	}
	if c.complete && !c.dirty.Empty() {
		c.refreshLocal()
		began := time.Now()
		state, keys := c.calc.Update(c.model, c.dirty)
		c.dirty = model.Dirty{}
		if c.noteOverlaps(c.calc.PoolOverlaps()) {
			c.configurePools()
		}
		if keys.Tables != 0 || c.gen == 0 {
			c.noteNodeAddr(state)
			c.noteWireGuard(state)
			c.gen = c.loop.Submit(state, keys)
			if keys.Has(nodestate.TableAnnounced) {
				c.announce(state.Announced, state.Watched)
			}
			if keys.Has(nodestate.TableGateways) {
				c.probe(state.Probed)
			}
			if keys.Has(nodestate.TableBGP) {
				c.noteBGP(state.BGP)
			}
			c.log.Debug("computed a state", "took", time.Since(began), "tables", keys.Tables)
		}
		c.publish(state)
		defer c.changed()
	}
	if c.complete && len(c.since) > 0 {
		c.programmed(c.gen, c.since)
		c.since = nil
	}
	if c.complete {
		for _, w := range c.waiting {
			w <- c.gen
		}
		c.waiting = nil
	}
	c.mu.Lock()
	c.snap.beat = time.Now()
	c.mu.Unlock()
}

// applyBatch is the watch's sink.
func (c *cluster) applyBatch(ctx context.Context, b *watch.Batch) {
	if err := c.do(ctx, func() { c.merge(b) }); err != nil && ctx.Err() == nil {
		c.log.Error("a change of the cluster was lost", "error", err)
	}
}

func (c *cluster) merge(b *watch.Batch) {
	if b.Full { // of another source than before, perhaps
		b.Replace(c.model)
		c.replaceSettings(b)
		clear(c.nodePods)
	}
	c.noteChangesOfEndpoints(b)
	c.mu.Lock()
	c.dirty.Merge(b.Changes.Apply(c.model))
	c.mu.Unlock()
	c.noteProxies(b.Pods)
	c.noteNodePods(b.Pods)
	c.noteTiers(b)
	if len(b.Nodes) > 0 {
		c.noteClaims(b.Nodes, b.Full)
	}
	for name := range b.Pods {
		delete(c.earlyPods, name)
	}
	apiserver.UpdateSlices(apiserver.Service, c.servers, b.Slices)
	apiserver.UpdateSlices(controllerService, c.controllers, b.Slices)
	apiserver.UpdateSlices(storeService, c.stores, b.Slices)
	if b.Full {
		c.complete = true
		c.dirty.Merge(model.AllDirty())
		c.log.Info("the cluster is known", "nodes", len(c.model.Nodes), "pods", c.model.Pods.Len(), "services", len(c.model.Services), "policies", len(c.model.Policies))
	}
	configured := false
	for name, conf := range b.Configs {
		var spec map[string]any
		if conf != nil {
			spec = conf.Spec
		}
		configured = c.resolver.Set(name, spec) || configured
	}
	if configured {
		c.resolve()
	}
	if b.ProblemsChanged {
		for _, p := range b.Problems {
			c.log.Warn("an object is not in force as it is written", "problem", p.String())
		}
		c.mu.Lock()
		before := c.snap.problems
		c.snap.problems = b.Problems
		c.mu.Unlock()
		c.noteUnfitPods(before, b.Problems)
	}
	_, ownNode := b.Nodes[c.node]
	if ownNode {
		c.dirty.Add(model.KindLocal)
	}
	c.configureIPAM(b, ownNode)
}

// noteChangesOfEndpoints keeps when what led to changes of EndpointSlices happened, before they are
// in the model. Slices of the whole cluster were there before, and are no changes.
func (c *cluster) noteChangesOfEndpoints(b *watch.Batch) {
	if b.Full {
		c.since = nil
		return
	}
	for name, s := range b.Slices {
		if s == nil || s.NotCarried || s.ChangedAt == 0 {
			continue
		}
		if was := c.model.Slices[name]; was == nil || was.ChangedAt != s.ChangedAt {
			c.since = append(c.since, time.Unix(0, s.ChangedAt))
		}
	}
}

// replaceSettings adds to a batch that holds the whole cluster that what it does not have is gone:
// a configuration, too, that was only remembered.
func (c *cluster) replaceSettings(b *watch.Batch) {
	if b.Configs == nil {
		b.Configs = map[string]*watch.FelixConfig{}
	}
	for _, name := range []string{"default", config.OfNode(c.node)} {
		if b.Configs[name] == nil {
			b.Configs[name] = nil
		}
	}
	if b.Reservations == nil {
		b.Reservations = map[string]*watch.Reservation{}
	}
	for name := range c.ipamConf.reservations {
		if b.Reservations[name] == nil {
			b.Reservations[name] = nil
		}
	}
	if b.IPAM == nil {
		b.IPAM = &watch.IPAMConfig{StrictAffinity: true}
	}
}

// resolve puts the configuration in force.
func (c *cluster) resolve() {
	r := c.resolver.Resolve()
	c.mu.Lock()
	before := c.snap.config
	c.snap.config, c.snap.lastGood = r, c.resolver.LastGood()
	c.mu.Unlock()
	if c.complete {
		c.noteConfig(c.resolver.LastGood())
	}
	if !reflect.DeepEqual(before.Problems, r.Problems) {
		for _, p := range r.Problems {
			c.log.Error("a configured value is not valid", "problem", p.String())
		}
	}
	if !reflect.DeepEqual(before.Unsupported, r.Unsupported) {
		for _, u := range r.Unsupported {
			c.log.Warn("a configured field has no effect yet", "field", u)
		}
	}
	if o := &c.opened; o.MaxNetworks > 0 { // a map changes its size when the agent starts
		r.Settings.MaxNetworks, r.Settings.MaxFrontends, r.Settings.MaxBackends = o.MaxNetworks, o.MaxFrontends, o.MaxBackends
	}
	if !reflect.DeepEqual(c.model.Settings, r.Settings) {
		c.log.Info("settings in force", "settings", r.Settings)
		c.model.Settings = r.Settings
		c.dirty.Add(model.KindSettings | model.KindLocal)
	}
}

// noteTiers finds the policies without a tier anew when a batch, which the model has already, may
// have changed which these are.
func (c *cluster) noteTiers(b *watch.Batch) {
	if !b.Full && len(b.Tiers)+len(b.Policies)+len(b.Staged) == 0 {
		return
	}
	found := problems.MissingTiers(c.model)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap.tierless = found
}
