// SPDX-License-Identifier: Apache-2.0

// Package client reaches the API server: connections tuned for an agent that must notice within
// seconds that the server is gone or back, and typed access to the kinds of weir.dev.
package client

import (
	"context"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// Clients are the two paths of an agent to the API server; both are safe for concurrent use.
type Clients struct {
	Core    Core
	Dynamic dynamic.Interface
}

// LoadConfig returns the configuration of a connection: from the kubeconfig file when one is named,
// else from the pod's service account and the ConfigMap weir-config, else from $KUBECONFIG or
// ~/.kube/config.
func LoadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		if cfg, err := inCluster(); err == nil {
			return cfg, nil
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w; name a kubeconfig file with --kubeconfig or $KUBECONFIG", err)
	}
	return cfg, nil
}

// New connects with a tuned copy of cfg. No request is sent yet.
func New(cfg *rest.Config, userAgent string) (*Clients, error) {
	tuned := Tune(cfg, userAgent)
	core, err := newCore(tuned)
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", cfg.Host, err)
	}
	dyn, err := dynamic.NewForConfig(tuned)
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", cfg.Host, err)
	}
	return &Clients{Core: core, Dynamic: dyn}, nil
}

// Tune returns a copy of cfg that notices a dead server within about 10 s (TCP keep-alive; HTTP/2's
// own check takes 45 s) and has no client-side rate limit: callers bound themselves, and the server
// has priority and fairness.
func Tune(cfg *rest.Config, userAgent string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = userAgent
	cfg.QPS = -1
	// The server warns at every request for a kind that is not enforced; `weir status` says it
	// once.
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{
			Timeout: 3 * time.Second,
			KeepAliveConfig: net.KeepAliveConfig{
				Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3,
			},
		}).DialContext
	}
	return cfg
}

// Resource is typed access to one cluster-wide resource.
type Resource[T any] struct {
	api  dynamic.ResourceInterface
	kind schema.GroupVersionKind
}

// Blocks gives access to the IPAMBlocks.
func Blocks(d dynamic.Interface) Resource[weirv1.IPAMBlock] {
	return Resource[weirv1.IPAMBlock]{d.Resource(weirv1.IPAMBlocks), weirv1.GroupVersion.WithKind("IPAMBlock")}
}

// NodeStatuses gives access to the NodeStatuses.
func NodeStatuses(d dynamic.Interface) Resource[weirv1.NodeStatus] {
	return Resource[weirv1.NodeStatus]{d.Resource(weirv1.NodeStatuses), weirv1.GroupVersion.WithKind("NodeStatus")}
}

// Get returns the object of a name. Errors are those of k8s.io/apimachinery/pkg/api/errors,
// wrapped.
func (r Resource[T]) Get(ctx context.Context, name string) (*T, error) {
	u, err := r.api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", r.kind.Kind, name, err)
	}
	return r.from(u)
}

// List returns all objects as the server has them now.
func (r Resource[T]) List(ctx context.Context) ([]T, error) {
	list, err := r.api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.kind.Kind, err)
	}
	out := make([]T, 0, len(list.Items))
	for i := range list.Items {
		v, err := r.from(&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, *v)
	}
	return out, nil
}

// Create creates the object; AlreadyExists when the name is taken.
func (r Resource[T]) Create(ctx context.Context, obj *T) (*T, error) {
	u, err := r.to(obj)
	if err != nil {
		return nil, err
	}
	got, err := r.api.Create(ctx, u, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create %s %s: %w", r.kind.Kind, u.GetName(), err)
	}
	return r.from(got)
}

// Update replaces the object; Conflict when its resourceVersion is set and no longer the newest.
func (r Resource[T]) Update(ctx context.Context, obj *T) (*T, error) {
	u, err := r.to(obj)
	if err != nil {
		return nil, err
	}
	got, err := r.api.Update(ctx, u, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update %s %s: %w", r.kind.Kind, u.GetName(), err)
	}
	return r.from(got)
}

// Apply makes the object what obj says, whether it exists or not (server-side apply, with force,
// under the field manager's name).
func (r Resource[T]) Apply(ctx context.Context, obj *T, manager string) error {
	u, err := r.to(obj)
	if err != nil {
		return err
	}
	if _, err := r.api.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true}); err != nil {
		return fmt.Errorf("apply %s %s: %w", r.kind.Kind, u.GetName(), err)
	}
	return nil
}

// Delete removes the object; with a resourceVersion only that version of it.
func (r Resource[T]) Delete(ctx context.Context, name, resourceVersion string) error {
	var opts metav1.DeleteOptions
	if resourceVersion != "" {
		opts.Preconditions = &metav1.Preconditions{ResourceVersion: &resourceVersion}
	}
	if err := r.api.Delete(ctx, name, opts); err != nil {
		return fmt.Errorf("delete %s %s: %w", r.kind.Kind, name, err)
	}
	return nil
}

func (r Resource[T]) from(u *unstructured.Unstructured) (*T, error) {
	var v T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", r.kind.Kind, u.GetName(), err)
	}
	return &v, nil
}

func (r Resource[T]) to(obj *T) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.kind.Kind, err)
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(r.kind)
	dropNulls(u.Object) // an unset metav1.Time becomes null, which schemas refuse
	return u, nil
}

func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e == nil {
				delete(v, k)
				continue
			}
			dropNulls(e)
		}
	case []any:
		for _, e := range v {
			dropNulls(e)
		}
	}
}
