// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/ipam"
)

// Config is what a Controller needs.
type Config struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Settle is how long to wait for more changes before acting on one. Default 50 ms.
	Settle time.Duration
	// Resync is the interval at which everything is compared again. Default 1 min.
	Resync time.Duration
}

// Controller gives the addresses. One runs at a time; a second one does no harm.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	blocks   client.Resource[weirv1.IPAMBlock]
	recorded map[types.UID]string // what the last event about a Service said
	book     *book                // as the last round left it; nil: to be read again
	now      func() time.Time

	assigned, failed atomic.Int64
	writes, errs     prometheus.Counter
}

// New returns a Controller; nothing is sent before Run.
func New(cfg Config) *Controller {
	if cfg.Settle == 0 {
		cfg.Settle = 50 * time.Millisecond
	}
	if cfg.Resync == 0 {
		cfg.Resync = time.Minute
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "weir_controller", Name: name, Help: help})
	}
	return &Controller{cfg: cfg, log: cfg.Log, blocks: client.Blocks(cfg.Dynamic), recorded: map[types.UID]string{}, now: time.Now,
		writes: counter("load_balancer_writes_total", "Blocks and Services written for addresses of load balancers."),
		errs:   counter("load_balancer_errors_total", "Rounds of giving addresses to load balancers that failed in part.")}
}

// Register offers the controller's metrics.
func (c *Controller) Register(r prometheus.Registerer) {
	gauge := func(name, help string, v *atomic.Int64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_controller", Name: name, Help: help},
			func() float64 { return float64(v.Load()) })
	}
	r.MustRegister(c.writes, c.errs,
		gauge("load_balancer_addresses", "Addresses that Services have; counted by the leader.", &c.assigned),
		gauge("load_balancer_services_without_address", "Services that lack an address that they ask for; counted by the leader.", &c.failed))
}

// Run gives addresses until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	src := newSources(c.cfg)
	src.run(ctx)
	defer c.assigned.Store(0)
	defer c.failed.Store(0)
	resync := time.NewTicker(c.cfg.Resync)
	defer resync.Stop()
	for retry := time.Second; ; {
		next := (<-chan time.Time)(nil)
		if src.synced() {
			if err := c.round(ctx, src); err != nil && ctx.Err() == nil {
				c.errs.Inc()
				c.book = nil
				c.log.Warn("giving addresses to load balancers failed in part; trying again", "err", err)
				next, retry = time.After(retry), min(2*retry, c.cfg.Resync)
			} else {
				retry = time.Second
			}
		} else {
			next = time.After(20 * time.Millisecond)
		}
		select {
		case <-ctx.Done():
			src.wait()
			return
		case <-next:
			continue
		case <-resync.C:
			c.book = nil
			continue
		case <-src.wake:
		}
		select { // more changes come together
		case <-ctx.Done():
		case <-time.After(c.cfg.Settle):
		}
	}
}

// round brings blocks and Services in line once. What fails is left for the next round; nothing is
// given before the block that says so was written.
func (c *Controller) round(ctx context.Context, src *sources) error {
	v, services, err := src.view()
	if err != nil {
		return err
	}
	if c.book == nil {
		list, err := c.blocks.List(ctx)
		if err != nil {
			return err
		}
		c.book = newBook(list)
	}
	b := c.book
	want := map[types.UID]*wanted{}
	for _, s := range services {
		r := newRequest(s)
		if v.wants(s, r, len(b.of(s.UID)) > 0) {
			want[s.UID] = &wanted{service: s, request: r, assignment: assignment{addrs: b.of(s.UID)}}
		}
	}
	errs := []error{c.release(ctx, b, services, want)} // first, so that one who waits gets it
	for _, s := range services {
		if w := want[s.UID]; w != nil {
			w.assignment = v.assign(s, w.request, b)
		}
	}
	errs = append(errs, c.release(ctx, b, services, want))
	written := c.writeBlocks(ctx, b, &errs)
	c.count(b, want)
	errs = append(errs, c.retire(ctx, v, b, services, want))
	for _, w := range want {
		if slices.ContainsFunc(w.addrs, func(a netip.Addr) bool { return !written(a) }) {
			continue // the next round gives it one
		}
		errs = append(errs, serious(c.writeStatus(ctx, w)))
	}
	c.forget(services)
	return errors.Join(errs...)
}

// serious drops the error of a write that came too late: the next change that is reported wakes the
// controller.
func serious(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// wanted is a Service of ours with what it is to have.
type wanted struct {
	service *corev1.Service
	request *request
	assignment
}

func (c *Controller) count(b *book, want map[types.UID]*wanted) {
	var failed int64
	for _, w := range want {
		if len(w.errs) > 0 {
			failed++
		}
	}
	c.assigned.Store(int64(len(b.holder)))
	c.failed.Store(failed)
}

// release frees what no Service has a use for. An address that a Service's status still names, or
// that its finalizer holds, is freed a round later, when the Service was written.
func (c *Controller) release(ctx context.Context, b *book, services []*corev1.Service, want map[types.UID]*wanted) error {
	known := map[types.UID]*corev1.Service{}
	for _, s := range services {
		known[s.UID] = s
	}
	var errs []error
	for uid, addrs := range b.byUID {
		w, s := want[uid], known[uid]
		for _, a := range slices.Clone(addrs) {
			h := b.holder[a]
			switch {
			case w != nil && slices.Contains(w.addrs, a):
				continue
			case s != nil && (s.Spec.Type == corev1.ServiceTypeLoadBalancer && names(s, a) || w == nil && hasFinalizer(s)):
				continue
			case s == nil:
				// The cache may be behind: ask before an address is taken from a Service.
				gone, err := c.gone(ctx, h)
				if err != nil {
					errs = append(errs, err)
				}
				if !gone {
					continue
				}
			}
			b.release(a)
			c.log.Info("an address of a load balancer is free again", "address", a, "service", h.Service.String())
		}
	}
	return errors.Join(errs...)
}

func (c *Controller) gone(ctx context.Context, h ipam.ServiceAddress) (bool, error) {
	s, err := c.cfg.Kube.CoreV1().Services(h.Service.Namespace).Get(ctx, h.Service.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look Service %s up again before its address %s is freed: %w", h.Service, h.Address, err)
	}
	return string(s.UID) != h.UID, nil
}

func names(s *corev1.Service, a netip.Addr) bool {
	return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		have, err := netip.ParseAddr(in.IP)
		return err == nil && have.Unmap() == a
	})
}

// writeBlocks writes the blocks that changed, and returns whether an address is entered for good.
func (c *Controller) writeBlocks(ctx context.Context, b *book, errs *[]error) func(netip.Addr) bool {
	var failed []netip.Prefix
	for cidr, p := range b.blocks {
		if !p.changed {
			continue
		}
		if err := c.writeBlock(ctx, b, cidr, p); err != nil {
			failed = append(failed, cidr)
			*errs = append(*errs, err)
		}
	}
	return func(a netip.Addr) bool {
		return !slices.ContainsFunc(failed, func(p netip.Prefix) bool { return p.Contains(a) })
	}
}

func (c *Controller) writeBlock(ctx context.Context, b *book, cidr netip.Prefix, p *page) (err error) {
	o := b.object(cidr, p)
	c.writes.Inc()
	switch {
	case p.object == nil && len(o.Spec.Allocations) == 0:
		delete(b.blocks, cidr) // given and freed in one round
		return nil
	case p.object == nil:
		p.object, err = c.blocks.Create(ctx, o)
	case len(o.Spec.Allocations) == 0:
		if err = c.blocks.Delete(ctx, o.Name, o.ResourceVersion); err == nil || apierrors.IsNotFound(err) {
			delete(b.blocks, cidr)
			return nil
		}
	default:
		p.object, err = c.blocks.Update(ctx, o)
	}
	p.changed = err != nil
	return err
}

// forget drops what is remembered of Services that are gone.
func (c *Controller) forget(services []*corev1.Service) {
	if len(c.recorded) == 0 {
		return
	}
	there := map[types.UID]bool{}
	for _, s := range services {
		there[s.UID] = true
	}
	for uid := range c.recorded {
		if !there[uid] {
			delete(c.recorded, uid)
		}
	}
}
