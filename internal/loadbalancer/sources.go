// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// sources follows the objects that an assignment is made from. It is apart from internal/watch
// because the controller needs few kinds, and those of Services whole.
type sources struct {
	wake                         chan struct{} // capacity 1
	informers                    []cache.SharedIndexInformer
	services                     corelisters.ServiceLister
	namespaces                   corelisters.NamespaceLister
	pools, reservations, configs cache.Indexer
	running                      sync.WaitGroup
}

func newSources(cfg Config) *sources {
	s := &sources{wake: make(chan struct{}, 1)}
	core := informers.NewSharedInformerFactory(cfg.Kube, 0).Core().V1()
	s.services, s.namespaces = core.Services().Lister(), core.Namespaces().Lister()
	s.add(core.Services().Informer(), isLoadBalancer)
	s.add(core.Namespaces().Informer(), func(any) bool { return true })
	own := dynamicinformer.NewDynamicSharedInformerFactory(cfg.Dynamic, 0)
	dynamic := func(resource string) cache.Indexer {
		i := own.ForResource(v3.SchemeGroupVersion.WithResource(resource)).Informer()
		s.add(i, func(any) bool { return true })
		return i.GetIndexer()
	}
	s.pools, s.reservations, s.configs = dynamic("ippools"), dynamic("ipreservations"), dynamic("kubecontrollersconfigurations")
	return s
}

// add follows an informer; objects that do not matter wake nobody.
func (s *sources) add(i cache.SharedIndexInformer, matters func(any) bool) {
	kick := func(objects ...any) {
		if !slices.ContainsFunc(objects, matters) {
			return
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	// Can fail only on an informer that has ended.
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { kick(o) }, UpdateFunc: func(o, n any) { kick(o, n) }, DeleteFunc: func(o any) { kick(o) }})
	s.informers = append(s.informers, i)
}

// isLoadBalancer reports whether an object is a Service that may have an address, or had one.
func isLoadBalancer(o any) bool {
	s, ok := o.(*corev1.Service)
	return !ok || s.Spec.Type == corev1.ServiceTypeLoadBalancer || hasFinalizer(s) // !ok: deleted while nobody watched
}

func (s *sources) run(ctx context.Context) {
	for _, i := range s.informers {
		s.running.Go(func() { i.RunWithContext(ctx) })
	}
}

func (s *sources) wait() { s.running.Wait() }

func (s *sources) synced() bool {
	return !slices.ContainsFunc(s.informers, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
}

// view returns what an assignment is made from now, and the Services, the oldest first.
func (s *sources) view() (*view, []*corev1.Service, error) {
	services, err := s.services.List(labels.Everything())
	if err != nil {
		return nil, nil, fmt.Errorf("list Services: %w", err)
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int { return older(a, b) })
	spaces, err := s.namespaces.List(labels.Everything())
	if err != nil {
		return nil, nil, fmt.Errorf("list namespaces: %w", err)
	}
	byName := map[string]map[string]string{}
	for _, n := range spaces {
		byName[n.Name] = n.Labels
	}
	pools := decodeAll[v3.IPPool](s.pools)
	slices.SortFunc(pools, func(a, b *v3.IPPool) int { return older(a, b) })
	var models []model.Pool
	for _, p := range pools {
		if m, _ := watch.ConvertPool(p); m != nil {
			models = append(models, *m)
		}
	}
	var reserved []netip.Prefix
	for _, r := range decodeAll[v3.IPReservation](s.reservations) {
		m, _ := watch.ConvertReservation(r)
		reserved = append(reserved, m.CIDRs...)
	}
	configs := decodeAll[v3.KubeControllersConfiguration](s.configs)
	return newView(modeOf(configs), models, reserved, byName), services, nil
}

// modeOf reads the KubeControllersConfiguration "default". Without one every Service is served; one
// without spec.controllers.loadBalancer turns the controller off.
func modeOf(configs []*v3.KubeControllersConfiguration) Mode {
	for _, c := range configs {
		switch {
		case c.Name != "default":
		case c.Spec.Controllers.LoadBalancer == nil:
			return Off
		case c.Spec.Controllers.LoadBalancer.AssignIPs == v3.RequestedServicesOnly:
			return Requested
		}
	}
	return All
}

func older(a, b metav1.Object) int {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if c := ta.Time.Compare(tb.Time); c != 0 {
		return c
	}
	if c := strings.Compare(a.GetNamespace(), b.GetNamespace()); c != 0 {
		return c
	}
	return strings.Compare(a.GetName(), b.GetName())
}

// decodeAll leaves out what cannot be read: nodes report it as a problem of the object.
func decodeAll[T any](in cache.Indexer) []*T {
	var out []*T
	for _, o := range in.List() {
		v := new(T)
		if u, ok := o.(*unstructured.Unstructured); ok && runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v) == nil {
			out = append(out, v)
		}
	}
	return out
}
