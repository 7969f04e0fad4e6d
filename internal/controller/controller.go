// SPDX-License-Identifier: Apache-2.0

// Package controller does for the whole cluster what no node can do for itself: it gives back the
// blocks of nodes that are gone, removes their NodeStatus, points at pools that overlap, makes the
// first pool of a new installation and the objects that clients expect, says in the status of
// cluster-wide policies whether they are enforced as written, and in that of pools whether
// addresses are given of them, shows clients the addresses of load balancers, keeps tiers that have
// policies and pools that have addresses, writes events about Services that ask for what they may
// not have and about objects that are not in force as written, keeps the certificate authorities of
// Weir's own connections, and has parts that give addresses to load balancers
// (internal/loadbalancer), that look after the fan-out (package fanout), and by which virtual
// machines keep their addresses (package kubevirt). One instance leads at a time.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/controller/bgp"
	"github.com/weir-net/weir/internal/controller/fanout"
	"github.com/weir-net/weir/internal/controller/kubevirt"
	"github.com/weir-net/weir/internal/controller/srcdst"
	"github.com/weir-net/weir/internal/loadbalancer"
	"github.com/weir-net/weir/internal/peerauth"
)

// Config is what a Controller needs.
type Config struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Identity distinguishes instances; Namespace holds the Lease.
	Identity, Namespace string
	// PodCIDR and VXLANMode are the first pools' (deploy.Options); an empty PodCIDR makes none.
	PodCIDR, VXLANMode string
	// Environ has the form of os.Environ: FELIX_… are the agents' settings, as far as they were
	// given to the controller too.
	Environ []string
	// FanOutMinNodes is the number of nodes from which on there is a fan-out.
	FanOutMinNodes fanout.MinNodes
	// Agents are those of the nodes, which the controller asks for virtual machines.
	Agents kubevirt.Agents
	// PolicyDefaults has the webhook of internal/admission know the controller's certificates.
	PolicyDefaults bool
	// Grace is how long a node must be gone until what it had is given back.
	Grace time.Duration
	// Interval is the time between two looks at the cluster.
	Interval time.Duration
}

// DefaultGrace and DefaultInterval are what the deployment uses. A node object that is made anew,
// as some clouds do on a restart, finds its blocks as they were.
const (
	DefaultGrace    = 5 * time.Minute
	DefaultInterval = 30 * time.Second
)

// Controller is the cluster-wide part of Weir.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	blocks   client.Resource[weirv1.IPAMBlock]
	statuses client.Resource[weirv1.NodeStatus]
	// gone is since when each node that something belongs to is known to be missing.
	gone map[string]time.Time
	// reported are the overlaps that the log has.
	reported map[string]bool
	now      func() time.Time
	// warned is what was logged once and for all.
	warned map[string]bool
	// alive is when the last look ended, Unix seconds; 0 = not leading.
	alive   atomic.Int64
	metrics metrics
	// balancers gives addresses to Services while this instance leads.
	balancers *loadbalancer.Controller
	// fanout looks after the fan-out while this instance leads.
	fanout   *fanout.Controller
	bgp      *bgp.Controller    // likewise after the nodes with a BGP process
	srcdst   *srcdst.Controller // and after the source/destination checks of EC2
	kubevirt *kubevirt.Controller
	refusals serviceRefusals
	// notInForce is what was said of objects that are not in force as written.
	notInForce notInForce
	peers      *peerauth.Keeper
}

// metrics count what was done.
type metrics struct {
	leader           prometheus.GaugeFunc
	looks, failures  prometheus.Counter
	blocks, statuses prometheus.Counter
}

// Register offers the controller's metrics.
func (c *Controller) Register(r prometheus.Registerer) {
	r.MustRegister(c.metrics.leader, c.metrics.looks, c.metrics.failures, c.metrics.blocks, c.metrics.statuses)
	c.balancers.Register(r)
	c.fanout.Register(r)
	c.bgp.Register(r)
	c.srcdst.Register(r)
}

func newMetrics(c *Controller) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "weir_controller", Name: name, Help: help})
	}
	return metrics{
		leader: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_controller", Name: "leader", Help: "1 while this instance leads."},
			func() float64 {
				if c.alive.Load() == 0 {
					return 0
				}
				return 1
			}),
		looks:    counter("reconciles_total", "Rounds of reconciliation."),
		failures: counter("reconcile_errors_total", "Rounds of reconciliation that failed in part."),
		blocks:   counter("blocks_released_total", "Blocks of nodes that are gone that were given back."),
		statuses: counter("node_statuses_deleted_total", "NodeStatuses of nodes that are gone that were removed."),
	}
}

// New returns a Controller; nothing is sent before Run.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg, log: cfg.Log, blocks: client.Blocks(cfg.Dynamic), statuses: client.NodeStatuses(cfg.Dynamic),
		gone: map[string]time.Time{}, reported: map[string]bool{}, warned: map[string]bool{}, now: time.Now,
		refusals: serviceRefusals{reported: map[types.UID]string{}}, notInForce: notInForce{said: map[types.UID]string{}}}
	c.peers = &peerauth.Keeper{Kube: cfg.Kube, Namespace: cfg.Namespace, Domain: cfg.Namespace + ".svc", Now: func() time.Time { return c.now() }}
	c.metrics = newMetrics(c)
	c.balancers = loadbalancer.New(loadbalancer.Config{Kube: cfg.Kube, Dynamic: cfg.Dynamic, Log: cfg.Log})
	c.bgp = bgp.New(bgp.Config{Kube: cfg.Kube, Dynamic: cfg.Dynamic, Log: cfg.Log, Interval: cfg.Interval})
	c.srcdst = srcdst.New(srcdst.Config{Kube: cfg.Kube, Dynamic: cfg.Dynamic, Log: cfg.Log, Environ: cfg.Environ, Interval: cfg.Interval, Connect: srcdst.Connect})
	c.kubevirt = kubevirt.New(kubevirt.Config{Kube: cfg.Kube, Dynamic: cfg.Dynamic, Log: cfg.Log, Agents: cfg.Agents, Interval: cfg.Interval})
	c.fanout = fanout.New(fanout.Config{Kube: cfg.Kube, Log: cfg.Log, Namespace: cfg.Namespace, MinNodes: cfg.FanOutMinNodes, Interval: cfg.Interval})
	return c
}

// Run waits until it leads, and then looks at the cluster until ctx ends or the lead is lost, which
// is an error: the process is to be started again.
func (c *Controller) Run(ctx context.Context) error {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: "weir-controller", Namespace: c.cfg.Namespace},
		Client:     c.cfg.Kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.cfg.Identity},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true, Name: "weir-controller",
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: c.lead,
			OnStoppedLeading: func() { c.log.Info("leads no longer") },
			OnNewLeader:      func(id string) { c.log.Info("the leader is known", "leader", id) },
		},
	})
	if err != nil {
		return fmt.Errorf("prepare the election of a leader: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New("lost the lease weir-controller: the API server was away, or another instance has it")
}

// Healthy reports whether the controller follows, or leads and gets its work done.
func (c *Controller) Healthy() error {
	last := c.alive.Load()
	if last == 0 {
		return nil
	}
	if age := c.now().Sub(time.Unix(last, 0)); age > 5*c.cfg.Interval+time.Minute {
		return fmt.Errorf("the last look at the cluster ended %s ago", age.Round(time.Second))
	}
	return nil
}

func (c *Controller) lead(ctx context.Context) {
	c.log.Info("leads")
	defer c.alive.Store(0)
	var background sync.WaitGroup
	background.Go(func() { c.balancers.Run(ctx) })
	background.Go(func() { c.fanout.Run(ctx) })
	background.Go(func() { c.bgp.Run(ctx) })
	background.Go(func() { c.srcdst.Run(ctx) })
	background.Go(func() { c.kubevirt.Run(ctx) })
	for _, k := range c.keepers() {
		background.Go(func() { k.run(ctx) })
	}
	defer background.Wait()
	tick := time.NewTicker(c.cfg.Interval)
	defer tick.Stop()
	for retry := time.Second; ; {
		c.alive.Store(c.now().Unix())
		next := tick.C
		if err := c.Reconcile(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("part of the work failed; trying again", "err", err)
			// On a new cluster the definitions may be a moment late.
			next = time.After(retry)
			retry = min(2*retry, c.cfg.Interval)
		} else {
			retry = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

// Reconcile looks at the cluster once and does what is due. Its parts do not hold each other up;
// the errors are joined.
func (c *Controller) Reconcile(ctx context.Context) error {
	c.metrics.looks.Inc()
	err := errors.Join(
		c.keepAuthorities(ctx),
		c.ensureDefaults(ctx),
		c.standing(ctx),
		c.reportPools(ctx),
		c.lookAtBlocks(ctx),
		c.reportPolicies(ctx),
		c.hostEndpoints(ctx),
		c.reportRefusals(ctx),
		c.reportNotInForce(ctx),
	)
	if err != nil {
		c.metrics.failures.Inc()
	}
	return err
}
