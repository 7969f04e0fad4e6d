// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/migrate/cilium"
	"github.com/weir-net/weir/internal/migrate/flannel"
	"github.com/weir-net/weir/internal/migrate/kuberouter"
	"github.com/weir-net/weir/internal/migrate/plan"
)

// Plugin is a network plugin other than Calico from which a cluster may come.
type Plugin struct {
	Name string
	// Apply: nodes are changed by weir migrate.
	Apply bool
	// Plan makes a plan from objects; those that it does not need are left out.
	Plan func([]*unstructured.Unstructured) (*plan.Plan, error)

	namespaces []string                      // of its DaemonSet and ConfigMap
	kinds      []schema.GroupVersionResource // of its own
}

// Plugins are all of them.
var Plugins = []Plugin{
	{Name: flannel.App, Apply: true, namespaces: flannel.Namespaces, Plan: planOf(flannel.FromObjects, flannel.New)},
	{Name: kuberouter.Name, namespaces: kuberouter.Namespaces, kinds: []schema.GroupVersionResource{{Version: "v1", Resource: "services"}},
		Plan: planOf(kuberouter.FromObjects, kuberouter.New)},
	{Name: cilium.Name, namespaces: cilium.Namespaces, kinds: cilium.Kinds(), Plan: planOf(cilium.FromObjects, cilium.New)},
}

func planOf[T any](read func([]*unstructured.Unstructured) (T, error), make func(T) *plan.Plan) func([]*unstructured.Unstructured) (*plan.Plan, error) {
	return func(objects []*unstructured.Unstructured) (*plan.Plan, error) {
		c, err := read(objects)
		if err != nil {
			return nil, err
		}
		return make(c), nil
	}
}

// Objects reads from the API server what a plan is made of.
func (p Plugin) Objects(ctx context.Context, c *clientset.Clients) ([]*unstructured.Unstructured, error) {
	l := &lister{clients: c}
	for _, gvr := range append([]schema.GroupVersionResource{{Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "pods"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}}, p.kinds...) {
		if err := l.list(ctx, gvr, ""); err != nil {
			return nil, err
		}
	}
	for _, namespace := range p.namespaces {
		for _, gvr := range []schema.GroupVersionResource{{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Version: "v1", Resource: "configmaps"}} {
			if err := l.list(ctx, gvr, namespace); err != nil {
				return nil, err
			}
		}
	}
	return l.objects, nil
}
