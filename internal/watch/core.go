// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/model"
)

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
}, V any](w *Watcher, api client.Lister[L], example O, k kind[O, V]) {
	p := &patient{resource: k.resource, health: w.health, list: asObject(api.List), watch: api.Watch}
	addSource(w, p, example, false, k)
}

func (w *Watcher) addCore(k client.Core) {
	addTyped(w, k.Namespaces, &corev1.Namespace{}, kind[*corev1.Namespace, model.Namespace]{
		resource: "namespaces", object: "Namespace", convert: ConvertNamespace,
		extra: newSpaceEntry, keep: w.spaces.keep,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Namespace) {
			put(&b.Namespaces, n.Name, now)
		},
	})
	addTyped(w, k.Pods, &corev1.Pod{}, kind[*corev1.Pod, model.Pod]{
		resource: "pods", object: "Pod", convert: ConvertPod, share: (*model.Shared).Pod,
		extra: newPodEntry, keep: w.pods.keep,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Pod) { put(&b.Pods, n, now) },
	})
	addTyped(w, k.Nodes, &corev1.Node{}, kind[*corev1.Node, model.Node]{
		resource: "nodes", object: "Node", convert: ConvertNode,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Node) {
			if now == nil {
				delete(w.nodes, n.Name)
				w.claims.Gone(n.Name)
				put(&b.Nodes, n.Name, (*model.Node)(nil))
				return
			}
			with := *now
			with.Since = w.claims.Note(now)
			w.nodes[n.Name] = &with
			w.recordNode(b, n.Name)
		},
	})
	addTyped(w, k.Services, &corev1.Service{}, kind[*corev1.Service, model.Service]{
		resource: "services", object: "Service", convert: ConvertService,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Service) { put(&b.Services, n, now) },
	})
	addTyped(w, k.Slices, &discoveryv1.EndpointSlice{}, kind[*discoveryv1.EndpointSlice, model.EndpointSlice]{
		resource: "endpointslices", object: "EndpointSlice", convert: ConvertEndpointSlice,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.EndpointSlice) {
			put(&b.Slices, n, now)
		},
	})
	addTyped(w, k.Accounts, &corev1.ServiceAccount{}, kind[*corev1.ServiceAccount, model.ServiceAccount]{
		resource: "serviceaccounts", object: "ServiceAccount", convert: ConvertServiceAccount,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.ServiceAccount) { put(&b.ServiceAccounts, n, now) },
	})
	addTyped(w, k.Policies, &networkingv1.NetworkPolicy{}, kind[*networkingv1.NetworkPolicy, model.Policy]{
		resource: "networkpolicies", object: "NetworkPolicy", convert: ConvertNetworkPolicy,
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Policy) {
			put(&b.Policies, model.PolicyID{Kind: model.KindNetworkPolicy, Name: n}, now)
		},
	})
}
