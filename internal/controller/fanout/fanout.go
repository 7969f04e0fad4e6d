// SPDX-License-Identifier: Apache-2.0

// Package fanout keeps the number of replicas of the fan-out by that of the nodes, and publishes
// by EndpointSlices which replicas are ready.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weir-net/weir/internal/fanout/names"
)

// Config is what a Controller needs.
type Config struct {
	Kube      kubernetes.Interface
	Log       *slog.Logger
	Namespace string
	MinNodes  MinNodes
	// Interval is the time after which everything is compared again.
	Interval time.Duration
}

// settle is how long to wait for more changes before acting on one.
const settle = 50 * time.Millisecond

// Controller looks after the fan-out. One runs at a time; a second one does no harm.
type Controller struct {
	cfg  Config
	log  *slog.Logger
	wake chan struct{}
	// nodes is how many there are; -1 = not known yet.
	nodes         atomic.Int64
	wanted, ready atomic.Int64
	// deployments are those of ReplicaSets: of what owned a pod at the last look.
	deployments map[owner]types.UID
}

// New returns a Controller; nothing is sent before Run.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1)}
	c.nodes.Store(-1)
	return c
}

// Register offers the controller's metrics.
func (c *Controller) Register(r prometheus.Registerer) {
	gauge := func(name, help string, v *atomic.Int64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "weir_controller", Name: name, Help: help},
			func() float64 { return float64(v.Load()) })
	}
	r.MustRegister(
		gauge("fanout_replicas", "Replicas of weir-fanout that are ready, which agents find; counted by the leader.", &c.ready),
		gauge("fanout_replicas_wanted", "Replicas of weir-fanout that there should be for the number of nodes; counted by the leader.", &c.wanted))
}

// SetNodes says how many nodes there are. It is safe for concurrent use.
func (c *Controller) SetNodes(n int) {
	if c.nodes.Swap(int64(n)) != int64(n) {
		c.soon()
	}
}

func (c *Controller) soon() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run looks after the fan-out until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	defer c.wanted.Store(0)
	defer c.ready.Store(0)
	factory := informers.NewSharedInformerFactoryWithOptions(c.cfg.Kube, 0, informers.WithNamespace(c.cfg.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "k8s-app=" + names.Name }))
	pods := factory.Core().V1().Pods()
	handler, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.soon() }, UpdateFunc: func(any, any) { c.soon() }, DeleteFunc: func(any) { c.soon() }})
	if err != nil {
		c.log.Error("cannot follow the pods of the fan-out", "err", err)
		return
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
			c.soon()
		}
	}()
	for retry := time.Second; ; {
		var known listers.PodNamespaceLister
		if handler.HasSynced() {
			known = pods.Lister().Pods(c.cfg.Namespace)
		}
		next := c.cfg.Interval
		if err := c.look(ctx, known); err != nil && ctx.Err() == nil {
			c.log.Warn("looking after the fan-out failed in part; trying again", "err", err)
			next, retry = retry, min(2*retry, c.cfg.Interval)
		} else {
			retry = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
			continue
		case <-c.wake:
		}
		select { // more changes come together
		case <-ctx.Done():
		case <-time.After(settle):
		}
	}
}

// look compares once. While pods, or how many nodes there are, are not known yet the slices stay as
// they are.
func (c *Controller) look(ctx context.Context, pods listers.PodNamespaceLister) error {
	scale, err := c.cfg.Kube.AppsV1().Deployments(c.cfg.Namespace).GetScale(ctx, names.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.wanted.Store(0)
		c.ready.Store(0)
		return nil // whoever removed it does not want it, and the slices go with it
	}
	if err != nil {
		return fmt.Errorf("get the scale of Deployment %s: %w", names.Name, err)
	}
	err = c.scale(ctx, scale)
	if pods == nil || c.nodes.Load() < 0 {
		return err
	}
	return errors.Join(err, c.publish(ctx, pods, scale.UID))
}

// scale writes the number of replicas where it is not what the number of nodes asks for.
func (c *Controller) scale(ctx context.Context, scale *autoscalingv1.Scale) error {
	nodes := int(c.nodes.Load())
	if nodes < 0 {
		return nil
	}
	have := int(scale.Spec.Replicas)
	want := c.cfg.MinNodes.replicas(nodes, have)
	c.wanted.Store(int64(want))
	if want == have {
		return nil
	}
	scale = scale.DeepCopy()
	scale.Spec.Replicas = int32(want)
	_, err := c.cfg.Kube.AppsV1().Deployments(c.cfg.Namespace).UpdateScale(ctx, names.Name, scale, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err):
		c.soon() // the Deployment changed meanwhile
		return nil
	case err != nil:
		return fmt.Errorf("scale Deployment %s to %d replicas: %w", names.Name, want, err)
	}
	c.log.Info("scaled the fan-out", "nodes", nodes, "replicas", want, "before", have)
	return nil
}

// publish writes which replicas of a Deployment are ready.
func (c *Controller) publish(ctx context.Context, pods listers.PodNamespaceLister, deployment types.UID) error {
	all, err := pods.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list the pods of the fan-out: %w", err)
	}
	owners := map[owner]types.UID{}
	var replicas []*corev1.Pod
	for _, p := range all {
		if !isReady(p) {
			continue
		}
		of, err := c.deploymentOf(ctx, p, owners)
		if err != nil {
			return err
		}
		if of == deployment {
			replicas = append(replicas, p)
		}
	}
	c.deployments = owners
	wanted := int(c.wanted.Load())
	if wanted == 0 {
		// A Deployment begins with one replica, and the last ones take a while to end: agents that
		// connected to such would soon be left without.
		replicas = nil
	}
	v4, v6 := endpoints(replicas)
	c.ready.Store(int64(max(len(v4), len(v6))))
	return errors.Join(c.write(ctx, sliceOf(c.cfg.Namespace, deployment, v4, wanted, false)), c.write(ctx, sliceOf(c.cfg.Namespace, deployment, v6, wanted, true)))
}
