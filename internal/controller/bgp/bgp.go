// SPDX-License-Identifier: Apache-2.0

// Package bgp says on which nodes a BGP process runs: on all of them while BGP is configured, and
// on none otherwise. It does so by a label of Nodes, which DaemonSet weir-bgp asks for. Whoever
// gives a Node the label with another value keeps the process away from it.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// Label is on Nodes with a BGP process.
	Label = "weir.dev/bgp"
	value = "true"
)

// Config is what a Controller needs.
type Config struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Interval is the time after which it looks again, for new Nodes.
	Interval time.Duration
	// Linger is how long processes stay when BGP is not configured any more: they end their
	// sessions meanwhile. 0 = half a minute.
	Linger time.Duration
}

// Controller looks after the label. One runs at a time; a second one does no harm.
type Controller struct {
	cfg   Config
	wake  chan struct{}
	inUse atomic.Bool
	// unused is since when BGP is not configured; of Run only.
	unused time.Time
}

// New returns a Controller; nothing is sent before Run.
func New(cfg Config) *Controller {
	if cfg.Linger == 0 {
		cfg.Linger = 30 * time.Second
	}
	return &Controller{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Register offers the controller's metrics.
func (c *Controller) Register(r prometheus.Registerer) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_controller", Name: "bgp_in_use",
		Help: "Whether BGP is configured, so that nodes run weir-bgp; said by the leader."}, func() float64 {
		if c.inUse.Load() {
			return 1
		}
		return 0
	}))
}

func (c *Controller) soon() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// page is how many Nodes are asked for at a time.
const page = 250

// Run looks after the label until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	defer c.inUse.Store(false)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c.cfg.Dynamic, 0)
	configs := factory.ForResource(v3.SchemeGroupVersion.WithResource("bgpconfigurations"))
	peers := factory.ForResource(v3.SchemeGroupVersion.WithResource("bgppeers"))
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { c.soon() }, UpdateFunc: func(any, any) { c.soon() }, DeleteFunc: func(any) { c.soon() }}
	one, err1 := configs.Informer().AddEventHandler(handler)
	two, err2 := peers.Informer().AddEventHandler(handler)
	if err := errors.Join(err1, err2); err != nil {
		c.cfg.Log.Error("cannot follow how BGP is configured", "err", err)
		return
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), one.HasSynced, two.HasSynced) {
		return
	}
	for {
		_, there, err := configs.Informer().GetStore().GetByKey("default")
		next := c.cfg.Interval
		if err == nil {
			next, err = c.look(ctx, there || len(peers.Informer().GetStore().ListKeys()) > 0)
		}
		if err != nil && ctx.Err() == nil {
			c.cfg.Log.Warn("saying where BGP processes run failed in part; trying again", "err", err)
			next = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		case <-c.wake:
		}
	}
}

// look compares once, and returns when to look again.
func (c *Controller) look(ctx context.Context, inUse bool) (time.Duration, error) {
	if c.inUse.Swap(inUse) != inUse {
		c.cfg.Log.Info("whether BGP is configured has changed", "inUse", inUse)
	}
	if inUse {
		c.unused = time.Time{}
		return c.cfg.Interval, c.label(ctx, "!"+Label, `"`+value+`"`)
	}
	if c.unused.IsZero() {
		c.unused = time.Now()
	}
	if left := c.cfg.Linger - time.Since(c.unused); left > 0 {
		return left, nil
	}
	return c.cfg.Interval, c.label(ctx, Label+"="+value, "null")
}

// label writes the label of the Nodes that a selector has.
func (c *Controller) label(ctx context.Context, selector, to string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, Label, to)
	var errs []error
	for more := ""; ; {
		nodes, err := c.cfg.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: page, Continue: more})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list Nodes: %w", err))...)
		}
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			if _, err := c.cfg.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("label %s of Node %s: %w", Label, name, err))
			}
		}
		if more = nodes.Continue; more == "" {
			return errors.Join(errs...)
		}
	}
}
