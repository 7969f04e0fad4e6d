// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	selection "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// definition follows whether a CustomResourceDefinition is there: one that many clusters do not
// have, and that comes and goes while the agent runs. While it is not there its resource is not
// asked for, and has no objects: that an API server answers "not found" alone says nothing, since
// one that starts does so for resources that it has.
type definition struct {
	mu      sync.Mutex
	known   bool
	present bool
	changed chan struct{} // closed at the next change
}

// set notes what is known now.
func (d *definition) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *definition) state() (known, present bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known, d.present, d.changed
}

// wait returns once the definition is there; gone is called when it is known not to be.
func (d *definition) wait(ctx context.Context, gone func()) error {
	for {
		known, present, changed := d.state()
		if present {
			return nil
		}
		if known {
			gone()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// define watches the CustomResourceDefinition of a name.
func (w *Watcher) define(d dynamic.Interface, name string) *definition {
	out := &definition{changed: make(chan struct{})}
	only := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = selection.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		return o
	}
	api := d.Resource(definitions)
	list := asObject(api.List)
	p := &patient{resource: definitions.Resource + "/" + name, health: w.health,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, only(o)) },
		watch: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return api.Watch(ctx, only(o))
		},
	}
	addSource(w, p, &unstructured.Unstructured{}, false, kind[*unstructured.Unstructured, struct{}]{
		resource: p.resource, object: "CustomResourceDefinition",
		convert: func(u *unstructured.Unstructured) (*struct{}, []weirv1.Problem) {
			if u.GetName() != name {
				return nil, nil
			}
			return &struct{}{}, nil
		},
		record: func(_ *Batch, _ model.Name, _ any, now, _ *struct{}) {
			out.set(func() { out.present = now != nil })
		},
		filled: func() { out.set(func() { out.known = true }) },
	})
	return out
}

// addDefined watches a resource whose CustomResourceDefinition may not be there.
func addDefined[V any](w *Watcher, d dynamic.Interface, gvr schema.GroupVersionResource, k kind[*unstructured.Unstructured, V]) error {
	k.resource = gvr.GroupResource().String()
	api := d.Resource(gvr)
	p := &patient{resource: k.resource, health: w.health, list: asObject(api.List), watch: api.Watch, definition: w.define(d, k.resource)}
	s := addSource(w, p, &unstructured.Unstructured{}, true, k)
	p.gone = func() {
		w.health.ok(k.resource)
		_ = s.Replace(nil, "") // of no objects none fails
	}
	return nil
}
