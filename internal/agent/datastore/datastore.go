// SPDX-License-Identifier: Apache-2.0

// Package datastore follows whether ClusterInformation "default" says that the datastore is locked
// (datastoreReady: false, `calicoctl datastore migrate lock`): while it is, no pod gets a new
// address. Each agent has a watch for this one object, whoever it has the cluster from. While the
// API server is away what was known last counts, and without the object nothing is locked.
package datastore

import (
	"context"
	"log/slog"
	"sync/atomic"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Resource is that of ClusterInformation.
var Resource = v3.SchemeGroupVersion.WithResource("clusterinformations")

// Follower knows whether the datastore is locked. It is safe for concurrent use.
type Follower struct {
	api    dynamic.Interface
	log    *slog.Logger
	locked atomic.Bool
}

// New returns a Follower that knows of no lock; nothing is read before Run.
func New(api dynamic.Interface, log *slog.Logger) *Follower { return &Follower{api: api, log: log} }

// Locked reports whether no pod is to get a new address.
func (f *Follower) Locked() bool { return f.locked.Load() }

// Run follows the object until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	informer := dynamicinformer.NewFilteredDynamicInformer(f.api, Resource, "", 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", "default").String()
	}).Informer()
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		f.log.Debug("ClusterInformation default cannot be followed for the moment", "error", err)
	})
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: f.note, UpdateFunc: func(_, now any) { f.note(now) }, DeleteFunc: func(any) { f.set(false) }})
	}
	if err != nil {
		return err
	}
	informer.RunWithContext(ctx)
	return nil
}

func (f *Follower) note(o any) {
	if u, is := o.(*unstructured.Unstructured); is && u.GetName() == "default" {
		ready, said, err := unstructured.NestedBool(u.Object, "spec", "datastoreReady")
		f.set(err == nil && said && !ready)
	}
}

func (f *Follower) set(locked bool) {
	if f.locked.Swap(locked) != locked {
		f.log.Info("ClusterInformation default changed", "locked", locked)
	}
}
