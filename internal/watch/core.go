package watch

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/weir-net/weir/internal/model"
)

// lister is what every typed client offers.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error)
}

// asObject widens a list function's result; a failed one must not become a non-nil interface.
func asObject[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		l, err := list(ctx, o)
		if err != nil {
			return nil, err
		}
		return l, nil
	}
}

func addTyped[L runtime.Object, O interface {
	metav1.Object
	runtime.Object
}, V any](w *Watcher, api lister[L], example O, k kind[O, V]) (*source, error) {
	p := &patient{resource: k.resource, health: w.health, list: asObject(api.List), watch: api.Watch}
	s := w.addSource(p, example, false)
	return s, handle(w, s, k)
}

func (w *Watcher) addSource(p *patient, example runtime.Object, optional bool) *source {
	informer := cache.NewSharedIndexInformerWithOptions(p.listWatch(), example, cache.SharedIndexInformerOptions{ObjectDescription: p.resource})
	// Both can fail only on an informer that runs already.
	_ = informer.SetTransform(strip)
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		w.log.Debug("a watch ended", "resource", p.resource, "err", err)
	})
	s := &source{resource: p.resource, optional: optional, informer: informer}
	w.sources = append(w.sources, s)
	return s
}

func (w *Watcher) addCore(k kubernetes.Interface) error {
	namespaces, err1 := addTyped(w, k.CoreV1().Namespaces(), &corev1.Namespace{}, kind[*corev1.Namespace, model.Namespace]{
		resource: "namespaces", object: "Namespace", convert: ConvertNamespace,
		record: func(b *Batch, n model.Name, _ *corev1.Namespace, now, _ *model.Namespace) {
			put(&b.Namespaces, n.Name, now)
		},
	})
	pods, err2 := addTyped(w, k.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, kind[*corev1.Pod, model.Pod]{
		resource: "pods", object: "Pod", convert: ConvertPod,
		record: func(b *Batch, n model.Name, _ *corev1.Pod, now, _ *model.Pod) { put(&b.Pods, n, now) },
	})
	_, err3 := addTyped(w, k.CoreV1().Nodes(), &corev1.Node{}, kind[*corev1.Node, model.Node]{
		resource: "nodes", object: "Node", convert: ConvertNode,
		record: func(b *Batch, n model.Name, _ *corev1.Node, now, _ *model.Node) {
			if now == nil {
				delete(w.nodes, n.Name)
				put(&b.Nodes, n.Name, (*model.Node)(nil))
				return
			}
			w.nodes[n.Name] = now
			w.recordNode(b, n.Name)
		},
	})
	_, err4 := addTyped(w, k.CoreV1().Services(metav1.NamespaceAll), &corev1.Service{}, kind[*corev1.Service, model.Service]{
		resource: "services", object: "Service", convert: ConvertService,
		record: func(b *Batch, n model.Name, _ *corev1.Service, now, _ *model.Service) { put(&b.Services, n, now) },
	})
	_, err5 := addTyped(w, k.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), &discoveryv1.EndpointSlice{}, kind[*discoveryv1.EndpointSlice, model.EndpointSlice]{
		resource: "endpointslices", object: "EndpointSlice", convert: ConvertEndpointSlice,
		record: func(b *Batch, n model.Name, _ *discoveryv1.EndpointSlice, now, _ *model.EndpointSlice) {
			put(&b.Slices, n, now)
		},
	})
	_, err6 := addTyped(w, k.NetworkingV1().NetworkPolicies(metav1.NamespaceAll), &networkingv1.NetworkPolicy{}, kind[*networkingv1.NetworkPolicy, model.Policy]{
		resource: "networkpolicies", object: "NetworkPolicy", convert: ConvertNetworkPolicy,
		record: func(b *Batch, n model.Name, _ *networkingv1.NetworkPolicy, now, _ *model.Policy) {
			put(&b.Policies, n, now)
		},
	})
	if err := firstError(err1, err2, err3, err4, err5, err6); err != nil {
		return err
	}
	w.pods, w.spaces = pods.informer, namespaces.informer
	return nil
}
