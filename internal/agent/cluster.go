package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/agent/apiserver"
	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/announce"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

// cluster owns the model: everything that changes it goes through one goroutine, which computes the
// node's state and hands it to the loop.
type cluster struct {
	node    string
	loop    *dataplane.Loop
	log     *slog.Logger
	machine *machine.Watcher
	changed func()            // after a state was handed on
	pools   func(ipam.Config) // what the allocator follows changed
	// reached returns where API servers were reached; nil = nothing is known of it.
	reached func() []netip.AddrPort
	// announce is told what this node answers neighbours for, and which nodes it watches.
	announce func(announced, watched map[netip.Addr]bool)
	// noteClaims is called with Nodes that changed; full = with all that there are.
	noteClaims func(nodes map[string]*model.Node, full bool)

	queue chan func()
	ended chan struct{} // closed when run returns: nothing in queue is done any more

	// Of the goroutine only.
	model    *model.Cluster
	dirty    model.Dirty
	calc     *calc.Calculator
	resolver *config.Resolver
	complete bool // the whole cluster was read once
	gen      uint64
	waiting  []chan uint64
	guests   map[model.Name]*model.Pod // pods that an ADD brought before the watch did
	ipamConf ipamInputs
	// servers are the EndpointSlices of apiService, controllers those of controllerService.
	servers, controllers map[model.Name]*model.EndpointSlice
	opened               model.Settings // with the sizes of maps as the data plane was opened; 0 = what is configured
	overlaps             []calc.PoolOverlap

	mu   sync.Mutex
	snap snapshot
	owns map[netip.Addr][]*model.Pod // pods by the addresses that they are said to have
	// proxies are the pods of kube-proxy on this node.
	proxies map[string]bool
	// handling says who carries Services; beside eBPF that is Weir, and it stays zero.
	handling kubeproxy.Handling
}

// controllerService is the Service of Weir's controller.
var controllerService = model.Name{Namespace: "kube-system", Name: "weir-controller"}

// ipamInputs are what ipam.Config is made from.
type ipamInputs struct {
	order        []string
	reservations map[string]*watch.Reservation
	settings     watch.IPAMConfig
}

// snapshot is what others may look at. Values in it are never changed.
type snapshot struct {
	state    *nodestate.State
	config   config.Result
	lastGood map[string]string
	problems []weirv1.Problem // of objects
	overlaps []calc.PoolOverlap
	tierless []weirv1.Problem // policies whose tier does not exist
	refused  []calc.Refusal   // claims of nodes
	// gateways and serviceCIDRs are addresses that no pod gets.
	gateways     []netip.Addr
	serviceCIDRs []netip.Prefix
	machine      machine.Facts
	// hostEndpoints are those of this node, by name.
	hostEndpoints []*model.HostEndpoint
	nodeAddrs     [2]netip.Addr // IPv4, IPv6
	leaving       bool          // this node is about to be removed
	endpoints     int
	services      int
	apiServers    []string
	controllers   []string
	beat          time.Time // of the goroutine
}

// node is what problems of the node are about.
func (s snapshot) node(name string) problems.Node {
	return problems.Node{Name: name, State: s.state, Machine: s.machine, HostEndpoints: s.hostEndpoints}
}

func newCluster(node string, loop *dataplane.Loop, resolver *config.Resolver, log *slog.Logger) *cluster {
	c := &cluster{
		node: node, loop: loop, log: log, queue: make(chan func(), 64), ended: make(chan struct{}),
		model: model.NewCluster(), calc: calc.New(), resolver: resolver, changed: func() {}, pools: func(ipam.Config) {},
		announce: func(_, _ map[netip.Addr]bool) {}, noteClaims: func(map[string]*model.Node, bool) {},
		guests: map[model.Name]*model.Pod{}, owns: map[netip.Addr][]*model.Pod{}, proxies: map[string]bool{},
		servers: map[model.Name]*model.EndpointSlice{}, controllers: map[model.Name]*model.EndpointSlice{},
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

// change runs f in the goroutine and returns the generation of the state that has its effect, when that
// was handed to the loop; not before the whole cluster was read.
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
			c.gen = c.loop.Submit(state, keys)
			if keys.Has(nodestate.TableAnnounced) {
				c.announce(state.Announced, state.Watched)
			}
			c.log.Debug("computed a state", "took", time.Since(began), "tables", keys.Tables)
		}
		c.publish(state)
		defer c.changed()
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

// noteNodeAddr reports a node address that changed. Flows that were translated to the old one end; all
// that is computed from it follows.
func (c *cluster) noteNodeAddr(s *nodestate.State) {
	c.mu.Lock()
	before, now := c.snap.nodeAddrs, [2]netip.Addr{s.Settings.Node, s.Settings.Node6}
	c.snap.nodeAddrs = now
	c.mu.Unlock()
	for i := range now {
		if before[i].IsValid() && before[i] != now[i] {
			c.log.Warn("the node's address changed; connections translated to the old one end", "from", before[i].String(), "to", now[i].String())
		}
	}
}

// publish renews what others see.
func (c *cluster) publish(state *nodestate.State) {
	containers := map[string]bool{}
	for _, ep := range c.model.Local.Endpoints {
		containers[ep.ContainerID+" "+ep.Interface] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap.state, c.snap.endpoints, c.snap.services = state, len(containers), len(c.model.Services)
	c.snap.refused = c.calc.Refused()
	c.snap.gateways, c.snap.serviceCIDRs = c.model.Local.Gateways, c.model.ServiceCIDRs
	c.snap.hostEndpoints = hostEndpointsOf(c.model, c.node)
	if own := c.model.Nodes[c.node]; own != nil {
		c.snap.leaving = own.Leaving
	}
	c.snap.apiServers, c.snap.controllers = apiserver.Addresses(c.servers), apiserver.Addresses(c.controllers)
}

// snapshot returns what is known now.
func (c *cluster) snapshot() snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snap
}

// applyBatch is the watch's sink.
func (c *cluster) applyBatch(ctx context.Context, b *watch.Batch) {
	if err := c.do(ctx, func() { c.merge(b) }); err != nil && ctx.Err() == nil {
		c.log.Error("a change of the cluster was lost", "error", err)
	}
}

func (c *cluster) merge(b *watch.Batch) {
	c.indexPods(b.Pods)
	c.dirty.Merge(b.Apply(c.model))
	c.noteTiers(b)
	if len(b.Nodes) > 0 {
		c.noteClaims(b.Nodes, b.Full)
	}
	for name := range b.Pods {
		delete(c.guests, name)
	}
	apiserver.UpdateSlices(apiserver.Service, c.servers, b.Slices)
	apiserver.UpdateSlices(controllerService, c.controllers, b.Slices)
	if b.Full {
		c.complete = true
		c.dirty.Merge(model.AllDirty())
		c.log.Info("the cluster is known", "nodes", len(c.model.Nodes), "pods", len(c.model.Pods), "services", len(c.model.Services), "policies", len(c.model.Policies))
	}
	// Once all is known, that there is none is known too, and what was remembered of one is forgotten.
	configured := b.Full && b.Configs["default"] == nil && c.resolver.Set("default", nil)
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
		c.snap.problems = b.Problems
		c.mu.Unlock()
	}
	_, ownNode := b.Nodes[c.node]
	if ownNode {
		c.dirty.Add(model.KindLocal)
	}
	c.configureIPAM(b, ownNode)
}

// resolve puts the configuration in force.
func (c *cluster) resolve() {
	r := c.resolver.Resolve()
	c.mu.Lock()
	before := c.snap.config
	c.snap.config, c.snap.lastGood = r, c.resolver.LastGood()
	c.mu.Unlock()
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

func (c *cluster) configureIPAM(b *watch.Batch, ownNode bool) {
	in := &c.ipamConf
	if len(b.Pools) > 0 {
		in.order = b.PoolOrder
	}
	for name, r := range b.Reservations {
		if r == nil {
			delete(in.reservations, name)
		} else {
			in.reservations[name] = r
		}
	}
	if b.IPAM != nil {
		in.settings = *b.IPAM
	}
	if !b.Full && !ownNode && len(b.Pools) == 0 && len(b.Reservations) == 0 && b.IPAM == nil {
		return
	}
	if b.Full { // before a block is taken of a pool that covers what nodes need
		c.refreshLocal()
		c.noteOverlaps(calc.PoolOverlaps(c.model))
	}
	c.configurePools()
}

// configurePools tells the allocator what it gives addresses of.
func (c *cluster) configurePools() {
	in := &c.ipamConf
	conf := ipam.Config{MaxBlocks: in.settings.MaxBlocks}
	for _, name := range in.order {
		if p := c.model.Pools[name]; p != nil {
			conf.Pools = append(conf.Pools, *p)
		}
	}
	for _, r := range in.reservations {
		conf.Reservations = append(conf.Reservations, r.CIDRs...)
	}
	if n := c.model.Nodes[c.node]; n != nil {
		conf.NodeLabels = n.Labels
	}
	c.withoutOverlaps(&conf)
	c.pools(conf)
}

// refreshLocal takes over what the machine has.
func (c *cluster) refreshLocal() {
	if !c.dirty.Has(model.KindLocal) || c.machine == nil {
		return
	}
	var node []netip.Addr
	if n := c.model.Nodes[c.node]; n != nil {
		node = append(node, n.NodeAddr())
		if c.model.CarriesIPv6() {
			node = append(node, n.NodeAddr6())
		}
		node = slices.DeleteFunc(node, func(a netip.Addr) bool { return !a.IsValid() })
	}
	pattern, err := regexp.Compile(c.model.Settings.DataIfaces)
	isUplink := func(name string) bool { return err == nil && pattern.MatchString(name) }
	m := c.machine.Facts(node, isUplink, c.model.Settings.InterfacePrefix)
	l := &c.model.Local
	by := c.servicesBy()
	l.KubeProxy, l.ProxyRules = by.Proxy, by.Mode != ""
	if c.reached != nil {
		l.APIServers = c.reached()
	}
	l.HostAddrs, l.Subnets, l.LinkMTU, l.Interfaces = m.Addrs, m.Subnets, m.MTU, m.Links
	l.Gateways, l.Neighbours = m.Gateways, c.machine.LinkAddresses(c.model.Nodes, m.Gateways)
	c.mu.Lock()
	before := c.snap.machine
	c.snap.machine = m
	c.mu.Unlock()
	if len(m.Missing) > 0 && (before.Addrs == nil || !slices.Equal(before.Missing, m.Missing)) {
		c.log.Error("no interface of this machine has an address that the Node object tells", "node", c.node, "address", fmt.Sprint(m.Missing),
			"addresses", fmt.Sprint(m.Addrs))
	}
}

// noteSilent is called when other watched nodes than before do not answer on the link.
func (c *cluster) noteSilent(silent map[netip.Addr]bool) {
	c.later(func() {
		c.model.Local.Silent = silent
		c.dirty.Add(model.KindLocal)
	})
}

// kubeProxy returns the name of a pod of kube-proxy on this node; ok is false while the cluster is not known.
func (c *cluster) kubeProxy() (name string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name = range c.proxies {
		break
	}
	return name, c.snap.state != nil
}

// noteHandling is called when somebody else than before carries Services on this node, or a kube-proxy comes or goes.
func (c *cluster) noteHandling(h kubeproxy.Handling) {
	c.mu.Lock()
	c.handling = h
	c.mu.Unlock()
	c.noteLocal()
}

// servicesBy says who carries Services on this node.
func (c *cluster) servicesBy() kubeproxy.Handling {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handling
}

// uplinks returns the uplinks with their subnets.
func (c *cluster) uplinks() []announce.Link {
	pattern, err := regexp.Compile(c.snapshot().config.Settings.DataIfaces)
	if err != nil || c.machine == nil {
		return nil
	}
	return c.machine.Uplinks(pattern.MatchString)
}

// noteLocal is called when the machine's interfaces or addresses changed.
func (c *cluster) noteLocal() {
	c.later(func() { c.dirty.Add(model.KindLocal) })
}

// indexPods keeps pods by address.
func (c *cluster) indexPods(changes map[model.Name]*model.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, now := range changes {
		if before := c.model.Pods[name]; before != nil {
			for _, a := range before.Addrs {
				if c.owns[a] = slices.DeleteFunc(c.owns[a], func(p *model.Pod) bool { return p.Name == name }); len(c.owns[a]) == 0 {
					delete(c.owns, a)
				}
			}
		}
		if c.isKubeProxy(now) {
			c.proxies[name.String()] = true
		} else {
			delete(c.proxies, name.String())
		}
		if now == nil || now.HostNetwork || now.Finished {
			continue
		}
		for _, a := range now.Addrs {
			c.owns[a] = append(c.owns[a], now)
		}
	}
}

// isKubeProxy reports whether a pod is a kube-proxy of this node, by the labels and names that kubeadm, static
// manifests and distributions give it.
func (c *cluster) isKubeProxy(p *model.Pod) bool {
	return p != nil && p.Node == c.node && !p.Finished && p.HostNetwork &&
		(p.Labels["k8s-app"] == "kube-proxy" || p.Labels["component"] == "kube-proxy" || strings.HasPrefix(p.Name.Name, "kube-proxy"))
}

// owner returns which pod has an address, and on which node; what other nodes say counts as far as it does in the state.
func (c *cluster) owner(a netip.Addr) (model.Name, string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.owns[a] {
		if !slices.ContainsFunc(c.snap.refused, func(r calc.Refusal) bool { return r.Object == "Pod "+p.Name.String() && r.Value == a.String() }) {
			return p.Name, p.Node, true
		}
	}
	return model.Name{}, "", false
}

// attach adds an endpoint, with its pod where the watch has not brought that yet.
func (c *cluster) attach(ctx context.Context, ep model.LocalEndpoint, pod *watch.AddPod) (uint64, error) {
	return c.change(ctx, func() {
		if pod != nil && !reflect.DeepEqual(c.model.Pods[ep.Pod], pod.Pod) {
			c.indexPods(map[model.Name]*model.Pod{ep.Pod: pod.Pod})
			c.model.Pods[ep.Pod], c.guests[ep.Pod] = pod.Pod, pod.Pod
			c.dirty.AddPod(ep.Pod)
		}
		if pod != nil && pod.Namespace != nil && c.model.Namespaces[ep.Pod.Namespace] == nil {
			c.model.Namespaces[ep.Pod.Namespace] = pod.Namespace
			c.dirty.Add(model.KindNamespaces)
		}
		for _, a := range ep.Addrs {
			c.model.Local.Endpoints[a] = &ep
		}
		c.dirty.Add(model.KindLocal)
	})
}

// detach forgets an endpoint, unless its addresses are another one's by now.
func (c *cluster) detach(ctx context.Context, ep model.LocalEndpoint) (uint64, error) {
	return c.change(ctx, func() {
		for a, have := range maps.Clone(c.model.Local.Endpoints) {
			if have.ContainerID == ep.ContainerID && have.Interface == ep.Interface {
				delete(c.model.Local.Endpoints, a)
				c.dirty.Add(model.KindLocal)
			}
		}
		// A pod that only the ADD knew and that was gone before the watch saw it.
		if guest := c.guests[ep.Pod]; guest != nil && c.model.Pods[ep.Pod] == guest {
			c.indexPods(map[model.Name]*model.Pod{ep.Pod: nil})
			delete(c.model.Pods, ep.Pod)
			delete(c.guests, ep.Pod)
			c.dirty.AddPod(ep.Pod)
		}
	})
}

// has reports whether an endpoint is part of the model as it is given.
func (c *cluster) has(ctx context.Context, ep model.LocalEndpoint) (bool, error) {
	found := len(ep.Addrs) > 0
	err := c.do(ctx, func() {
		for _, a := range ep.Addrs {
			have := c.model.Local.Endpoints[a]
			found = found && have != nil && have.ContainerID == ep.ContainerID && have.IfIndex == ep.IfIndex
		}
	})
	return found, err
}

// cniSettings are the values for new interfaces.
func (c *cluster) cniSettings() cni.Settings {
	s := c.snapshot()
	out := cni.Settings{InterfacePrefix: s.config.Settings.InterfacePrefix, RouteProtocol: podRouteProtocol}
	if s.state != nil {
		out.MTU, out.IPv6 = s.state.Settings.PodMTU, s.state.Settings.IPv6
	}
	return out
}

// podRouteProtocol is deviceRouteProtocol's default: boot.
const podRouteProtocol = 3

func (c *cluster) apiServers() []string        { return c.snapshot().apiServers }
func (c *cluster) lastGood() map[string]string { return c.snapshot().lastGood }

// policies counts the policies that apply to pods of this node.
func (s snapshot) policies() int {
	if s.state == nil {
		return 0
	}
	names := map[string]bool{}
	for _, r := range s.state.Rules.All() {
		if strings.HasSuffix(strings.TrimSuffix(r.Kind, ".projectcalico.org"), "Policy") && model.KindInForce(r.Kind) == r.Kind {
			names[r.Kind+" "+r.Name] = true
		}
	}
	return len(names)
}

// noteTiers finds the policies without a tier anew when a batch, which the model has already, may have changed which these are.
func (c *cluster) noteTiers(b *watch.Batch) {
	if !b.Full && len(b.Tiers)+len(b.Policies)+len(b.Staged) == 0 {
		return
	}
	found := problems.MissingTiers(c.model)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap.tierless = found
}
