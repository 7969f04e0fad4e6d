// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/weir-net/weir/deploy"
)

// releaseFinalizers takes the controller's finalizers off all tiers and pools: without a controller
// one that is deleted would stay for ever, and with it its definition.
func releaseFinalizers(ctx context.Context, d dynamic.Interface) error {
	tiers := schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "tiers"}
	for resource, finalizer := range map[schema.GroupVersionResource]string{tiers: deploy.TierFinalizer, poolResource: deploy.PoolFinalizer} {
		list, err := d.Resource(resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		for i := range list.Items {
			name := list.Items[i].GetName()
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				u, err := d.Resource(resource).Get(ctx, name, metav1.GetOptions{})
				if err != nil || !slices.Contains(u.GetFinalizers(), finalizer) {
					return err
				}
				u.SetFinalizers(slices.DeleteFunc(u.GetFinalizers(), func(f string) bool { return f == finalizer }))
				_, err = d.Resource(resource).Update(ctx, u, metav1.UpdateOptions{})
				return err
			})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("take the finalizer off %s %s: %w", resource.Resource, name, err)
			}
		}
	}
	return nil
}
