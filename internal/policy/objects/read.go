// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/objects"
)

// pageSize bounds what one answer of the API server holds.
const pageSize = 500

// Read reads the objects with the rights of the clients' user, who must be allowed to list all of
// them in the whole cluster: of less nobody could say what policy decides.
func Read(ctx context.Context, kube kubernetes.Interface, d dynamic.Interface) (*Cluster, error) {
	c := newCluster()
	core := kube.CoreV1()
	for _, read := range []func() error{
		func() error {
			return pages(ctx, "namespaces", core.Namespaces().List, func(l *corev1.NamespaceList) { each(l.Items, c.namespace) })
		},
		func() error {
			return pages(ctx, "nodes", core.Nodes().List, func(l *corev1.NodeList) { each(l.Items, c.node) })
		},
		func() error {
			return pages(ctx, "pods", core.Pods("").List, func(l *corev1.PodList) { each(l.Items, c.pod) })
		},
		func() error {
			return pages(ctx, "serviceaccounts", core.ServiceAccounts("").List, func(l *corev1.ServiceAccountList) { each(l.Items, c.account) })
		},
		func() error {
			return pages(ctx, "endpointslices", kube.DiscoveryV1().EndpointSlices("").List, func(l *discoveryv1.EndpointSliceList) { each(l.Items, c.slice) })
		},
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	resources := []schema.GroupVersionResource{calico.WithResource("ippools"), calico.WithResource("hostendpoints")}
	for _, k := range kinds {
		resources = append(resources, k.resource)
	}
	for _, r := range resources {
		var wrong error
		err := pages(ctx, r.GroupResource().String(), d.Resource(r).List, func(l *unstructured.UnstructuredList) {
			for i := range l.Items {
				if err := c.add(&l.Items[i]); err != nil && wrong == nil {
					wrong = err
				}
			}
		})
		if apierrors.IsNotFound(err) { // its definition is not installed: there are none
			continue
		}
		if err == nil {
			err = wrong
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func each[T any](items []T, f func(*T)) {
	for i := range items {
		f(&items[i])
	}
}

// list is a page of objects.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// pages hands on all objects of a resource, page by page.
func pages[L list](ctx context.Context, resource string, get func(context.Context, metav1.ListOptions) (L, error), give func(L)) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		l, err := get(ctx, options)
		switch {
		case apierrors.IsForbidden(err):
			return fmt.Errorf("the right to list %s in all namespaces is needed: %w", resource, err)
		case err != nil:
			return fmt.Errorf("list %s: %w", resource, err)
		}
		give(l)
		if options.Continue = l.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// Admit asks the API server what it would store for an object that is applied, and changes nothing:
// it refuses what it would refuse, and fills in what others wrote in the object that is there.
// unasked says why nobody was asked, where the user may not apply it; stored is then the object.
func Admit(ctx context.Context, d dynamic.Interface, u *unstructured.Unstructured) (stored *unstructured.Unstructured, unasked string, err error) {
	k, err := kindOf(u)
	if err != nil {
		return nil, "", err
	}
	to := u.DeepCopy()
	to.SetManagedFields(nil)
	to.SetResourceVersion("")
	api := dynamic.ResourceInterface(d.Resource(k.resource))
	if k.namespaced {
		api = d.Resource(k.resource).Namespace(u.GetNamespace())
	}
	stored, err = api.Apply(ctx, u.GetName(), to, applyOptions)
	switch {
	case apierrors.IsForbidden(err):
		return u, err.Error(), nil
	case err != nil:
		return nil, "", fmt.Errorf("apply %s: %w", objects.Describe(u), err)
	}
	return stored, "", nil
}
