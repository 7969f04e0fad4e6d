// SPDX-License-Identifier: Apache-2.0

// Package migrate reads from the API server what the plan of a migration to Weir is made of: the
// objects of the network plugin that is there, nodes and pods, and how that plugin is deployed. It
// changes nothing. What these mean is in the packages below it, one for each plugin.
package migrate

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/migrate/calico"
)

// pageSize bounds what one answer of the API server holds.
const pageSize = 500

// namespaces are those that Calico's manifests and its operator use.
var namespaces = []string{"kube-system", "calico-system"}

// Read reads what a plan is made of: the objects of crd.projectcalico.org/v1, the nodes and pods,
// and Calico's DaemonSet with its ConfigMap.
func Read(ctx context.Context, c *clientset.Clients) (*calico.Cluster, error) {
	gv := schema.GroupVersion{Group: calico.Group, Version: "v1"}
	resources, err := c.Kube.Discovery().ServerResourcesForGroupVersion(gv.String())
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("this cluster has no objects of %s: Calico does not run here, or keeps its objects in etcd", gv)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the kinds of %s: %w", gv, err)
	}
	l := &lister{clients: c}
	for _, r := range resources.APIResources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		if err := l.list(ctx, gv.WithResource(r.Name), ""); err != nil {
			return nil, err
		}
	}
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "pods"},
		{Group: "operator.tigera.io", Version: "v1", Resource: "installations"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	} {
		if err := l.list(ctx, gvr, ""); err != nil {
			return nil, err
		}
	}
	for _, namespace := range namespaces {
		for _, gvr := range []schema.GroupVersionResource{{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Version: "v1", Resource: "configmaps"}} {
			if err := l.list(ctx, gvr, namespace); err != nil {
				return nil, err
			}
		}
	}
	return calico.FromObjects(l.objects)
}

// lister lists objects of any kind.
type lister struct {
	clients *clientset.Clients
	objects []*unstructured.Unstructured
}

// list adds the objects of a kind; of one that is not served there are none.
func (l *lister) list(ctx context.Context, gvr schema.GroupVersionResource, namespace string) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		found, err := l.clients.Dynamic.Resource(gvr).Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
		}
		for i := range found.Items {
			l.objects = append(l.objects, &found.Items[i])
		}
		if options.Continue = found.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
