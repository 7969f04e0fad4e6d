// SPDX-License-Identifier: Apache-2.0

// Package watch reads the cluster's objects from the API server, converts them into the model's
// values and hands them on in batches. It keeps the values only, not the objects: informers would
// hold the cluster twice.
//
// Nothing is handed on before everything was read once. While the API server is away the watch goes
// on with what it knows, tries again at least every two seconds, and catches up. What is wrong in
// an object is reported as a problem that names the object and the field; the rest of the object
// counts.
package watch

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/api/client"
	egressv3 "github.com/weir-net/weir/api/egress/v3"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/bgp"
)

// Config is what a Watcher needs.
type Config struct {
	Core    client.Core
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Claims are what was known at the end of another run of the addresses of Nodes, by name.
	Claims map[string]NodeClaims
}

// Sink receives a batch. While it is busy changes are squashed into the next one. It is called by
// one goroutine.
type Sink func(ctx context.Context, b *Batch)

// Watcher follows the cluster.
type Watcher struct {
	core    client.Core
	log     *slog.Logger
	health  *health
	sources []*source
	pods    remembered[podEntry]
	spaces  remembered[spaceEntry]

	wake chan struct{} // capacity 1: pending is not empty

	reading sync.WaitGroup     // sources at work
	stop    context.CancelFunc // ends them; nil before Start

	mu       sync.Mutex
	pending  *Batch
	synced   bool
	problems problems
	nodes    map[string]*model.Node
	statuses map[string]*Published
	poolAge  map[string]metav1.Time
	ranges   map[string]*ServiceCIDR
	reserved map[string]*Reservation
	claims   *Claims
}

// source is one watched resource.
type source struct {
	resource string
	optional bool // a CRD, that may not be installed yet
	run      func(context.Context)
	handled  func() bool // the initial objects were recorded
	// definition has to be there before anything is asked for; nil = none.
	definition *definition
}

// New returns a Watcher; nothing is sent before Run.
func New(cfg Config) (*Watcher, error) {
	w := &Watcher{
		core: cfg.Core, log: cfg.Log, health: newHealth(cfg.Log), wake: make(chan struct{}, 1), pending: &Batch{},
		problems: problems{byObject: map[string][]weirv1.Problem{}},
		nodes:    map[string]*model.Node{}, statuses: map[string]*Published{}, poolAge: map[string]metav1.Time{},
		ranges: map[string]*ServiceCIDR{}, reserved: map[string]*Reservation{},
		claims: NewClaims(cfg.Claims),
	}
	w.addCore(cfg.Core)
	if err := firstError(w.addCRDs(cfg.Dynamic), w.addPolicies(cfg.Dynamic)); err != nil {
		return nil, err
	}
	return w, nil
}

// Start begins to read the cluster, until ctx or Run ends; what is read waits for Run. Who has
// something else to do before Run saves the time that reading takes.
func (w *Watcher) Start(ctx context.Context) {
	ctx, w.stop = context.WithCancel(ctx)
	for _, s := range w.sources {
		w.reading.Go(func() { s.run(ctx) })
	}
}

// AwaitRead waits until everything was read once. What Start began goes on when ctx ends before.
func (w *Watcher) AwaitRead(ctx context.Context) error { return w.waitSynced(ctx) }

// Run watches until ctx ends, beginning where Start did not. It returns ctx's error.
func (w *Watcher) Run(ctx context.Context, sink Sink) error {
	if w.stop == nil {
		w.Start(ctx)
	}
	defer w.reading.Wait()
	defer w.stop()
	if err := w.waitSynced(ctx); err != nil {
		return err
	}
	for first := true; ; first = false {
		if b := w.nextBatch(first); !b.Empty() {
			sink(ctx, b)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
	}
}

// Heard notes what became of a request to the API server that is not the watch's own. Status says
// that the server does not answer while one failed otherwise than by an answer.
func (w *Watcher) Heard(what string, err error) { w.health.heard(what, err) }

// Status says how the watch gets on with the API server.
func (w *Watcher) Status() Status {
	s := w.health.status()
	w.mu.Lock()
	s.Synced = w.synced
	w.mu.Unlock()
	return s
}

func (w *Watcher) waitSynced(ctx context.Context) error {
	if w.Status().Synced {
		return nil
	}
	start, reported := time.Now(), time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var waiting []string
		for _, s := range w.sources {
			if !s.handled() && !(s.optional && w.health.isAbsent(s.resource)) {
				waiting = append(waiting, s.resource)
			}
		}
		if len(waiting) == 0 {
			break
		}
		if time.Since(reported) > 5*time.Second {
			reported = time.Now()
			w.log.Info("still reading the cluster", "waiting for", strings.Join(waiting, " "), "for", time.Since(start).Round(time.Second))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	w.mu.Lock()
	w.synced = true
	w.mu.Unlock()
	w.log.Info("read the cluster", "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// note records changes for the next batch and wakes the deliverer.
func (w *Watcher) note(change func(b *Batch)) {
	w.mu.Lock()
	change(w.pending)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Watcher) nextBatch(first bool) *Batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.pending
	w.pending = &Batch{}
	b.Full = first
	if w.problems.changed || first {
		w.problems.changed = false
		b.Problems, b.ProblemsChanged = w.problems.all(), true
	}
	if len(b.Pools) > 0 {
		b.PoolOrder = w.poolOrder()
	}
	return b
}

// poolOrder lists the pools, the oldest first. w.mu is held.
func (w *Watcher) poolOrder() []string {
	names := make([]string, 0, len(w.poolAge))
	for n := range w.poolAge {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		ta, tb := w.poolAge[a], w.poolAge[b]
		if c := ta.Time.Compare(tb.Time); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return names
}

// kind connects one resource to the batch: how an object is converted, and where the value goes.
type kind[O metav1.Object, V any] struct {
	resource string
	object   string // kind, for messages
	convert  func(O) (*V, []weirv1.Problem)
	// share makes a value share what is equal in others; may be nil.
	share func(*model.Shared, *V)
	// extra is what else is needed of an object; may be nil.
	extra func(o O, v *V, found []weirv1.Problem) any
	// keep is called with the extra of every object that comes or changes, nil when it is gone; may
	// be nil.
	keep func(name model.Name, extra any)
	// record is called with w.mu held, with now nil for an object that is gone or is not carried;
	// before is the value that was recorded last, for those whose place depends on their content.
	record func(b *Batch, name model.Name, extra any, now, before *V)
	// filled is called after all objects were recorded; may be nil.
	filled func()
}

// typed adapts a conversion of a published type to the dynamic client's objects.
func typed[T, V any](object string, convert func(*T) (*V, []weirv1.Problem)) func(*unstructured.Unstructured) (*V, []weirv1.Problem) {
	return func(u *unstructured.Unstructured) (*V, []weirv1.Problem) {
		o, err := decode[T](u)
		if err != nil {
			f := newFinding(object, u)
			f.Add("", "", err.Error()+"; the object is not used", "correct it")
			return nil, f.List
		}
		return convert(o)
	}
}

func (w *Watcher) addCRDs(d dynamic.Interface) error {
	calico := v3.SchemeGroupVersion.WithResource
	return firstError(
		addDynamic(w, d, calico("ippools"), kind[*unstructured.Unstructured, model.Pool]{
			object: "IPPool", convert: typed("IPPool", ConvertPool),
			extra: func(o *unstructured.Unstructured, _ *model.Pool, _ []weirv1.Problem) any {
				return o.GetCreationTimestamp()
			},
			record: func(b *Batch, n model.Name, age any, now, _ *model.Pool) {
				if now == nil {
					delete(w.poolAge, n.Name)
				} else {
					w.poolAge[n.Name] = age.(metav1.Time)
				}
				put(&b.Pools, n.Name, now)
			}}),
		addDynamic(w, d, calico("ipreservations"), kind[*unstructured.Unstructured, Reservation]{
			object: "IPReservation", convert: typed("IPReservation", ConvertReservation),
			record: func(b *Batch, n model.Name, _ any, now, _ *Reservation) {
				if w.reserved[n.Name] = now; now == nil {
					delete(w.reserved, n.Name)
				}
				put(&b.Reservations, n.Name, now)
				b.Reserved, b.ReservedChanged = w.reservedRanges(), true
			}}),
		addDynamic(w, d, calico("ipamconfigurations"), kind[*unstructured.Unstructured, IPAMConfig]{
			object: "IPAMConfiguration", convert: typed("IPAMConfiguration", ConvertIPAMConfiguration),
			record: func(b *Batch, n model.Name, _ any, now, _ *IPAMConfig) {
				if n.Name != "default" {
					return
				}
				if b.IPAM = now; now == nil {
					b.IPAM = &IPAMConfig{StrictAffinity: true}
				}
			}}),
		addDynamic(w, d, calico("felixconfigurations"), kind[*unstructured.Unstructured, FelixConfig]{
			object: "FelixConfiguration", convert: ConvertFelixConfiguration,
			record: func(b *Batch, n model.Name, _ any, now, _ *FelixConfig) {
				put(&b.Configs, n.Name, now)
			}}),
		addDynamic(w, d, calico("bgpconfigurations"), kind[*unstructured.Unstructured, model.BGPConfig]{
			object: "BGPConfiguration", convert: typed("BGPConfiguration", bgp.ConvertConfiguration),
			record: func(b *Batch, n model.Name, _ any, now, _ *model.BGPConfig) { put(&b.BGPConfigs, n.Name, now) }}),
		addDynamic(w, d, calico("bgppeers"), kind[*unstructured.Unstructured, model.BGPPeer]{
			object: "BGPPeer", convert: typed("BGPPeer", bgp.ConvertPeer),
			record: func(b *Batch, n model.Name, _ any, now, _ *model.BGPPeer) { put(&b.BGPPeers, n.Name, now) }}),
		addDynamic(w, d, calico("bgpfilters"), kind[*unstructured.Unstructured, model.BGPFilter]{
			object: "BGPFilter", convert: typed("BGPFilter", bgp.ConvertFilter),
			record: func(b *Batch, n model.Name, _ any, now, _ *model.BGPFilter) { put(&b.BGPFilters, n.Name, now) }}),
		addDynamic(w, d, calico(egressv3.Resource), kind[*unstructured.Unstructured, model.EgressPolicy]{
			object: "EgressGatewayPolicy", convert: typed("EgressGatewayPolicy", ConvertEgressPolicy),
			record: func(b *Batch, n model.Name, _ any, now, _ *model.EgressPolicy) { put(&b.EgressPolicies, n.Name, now) }}),
		addDynamic(w, d, weirv1.IPAMBlocks, kind[*unstructured.Unstructured, model.Block]{
			object: "IPAMBlock", convert: typed("IPAMBlock", ConvertBlock),
			record: func(b *Batch, _ model.Name, _ any, now, before *model.Block) {
				if before != nil {
					put(&b.Blocks, before.CIDR, (*model.Block)(nil))
				}
				if now != nil {
					put(&b.Blocks, now.CIDR, now)
				}
			}}),
		addDynamic(w, d, weirv1.NodeStatuses, kind[*unstructured.Unstructured, Published]{
			object: "NodeStatus", convert: typed("NodeStatus", ConvertNodeStatus),
			record: func(b *Batch, n model.Name, _ any, now, _ *Published) {
				w.statuses[n.Name] = now
				if now == nil {
					delete(w.statuses, n.Name)
				}
				w.recordNode(b, n.Name)
			}}),
		// Of the API since Kubernetes 1.33; optional like a CRD.
		addDynamic(w, d, networkingv1.SchemeGroupVersion.WithResource("servicecidrs"), kind[*unstructured.Unstructured, ServiceCIDR]{
			object: "ServiceCIDR", convert: typed("ServiceCIDR", ConvertServiceCIDR),
			record: func(b *Batch, n model.Name, _ any, now, _ *ServiceCIDR) {
				if w.ranges[n.Name] = now; now == nil {
					delete(w.ranges, n.Name)
				}
				b.ServiceCIDRs, b.ServiceCIDRsChanged = w.serviceCIDRs(), true
			}}),
	)
}

// serviceCIDRs lists the ranges of cluster IPs. w.mu is held.
func (w *Watcher) serviceCIDRs() []netip.Prefix {
	var out []netip.Prefix
	for _, r := range w.ranges {
		out = append(out, r.CIDRs...)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// reservedRanges lists the ranges of all IPReservations. w.mu is held.
func (w *Watcher) reservedRanges() []netip.Prefix {
	var out []netip.Prefix
	for _, r := range w.reserved {
		out = append(out, r.CIDRs...)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// recordNode notes a node together with what was published about it. w.mu is held.
func (w *Watcher) recordNode(b *Batch, name string) {
	if n := w.nodes[name]; n != nil {
		put(&b.Nodes, name, AddNodeStatus(n, w.statuses[name]))
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func addDynamic[V any](w *Watcher, d dynamic.Interface, gvr schema.GroupVersionResource, k kind[*unstructured.Unstructured, V]) error {
	k.resource = gvr.GroupResource().String()
	api := d.Resource(gvr)
	p := &patient{resource: k.resource, health: w.health, list: asObject(api.List), watch: api.Watch}
	addSource(w, p, &unstructured.Unstructured{}, true, k)
	return nil
}
