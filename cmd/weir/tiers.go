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

var tierResource = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "tiers"}

// releaseTiers takes the controller's finalizer off all tiers: without a controller a tier that is deleted would stay for ever.
func releaseTiers(ctx context.Context, d dynamic.Interface) error {
	list, err := d.Resource(tierResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list Tiers: %w", err)
	}
	for i := range list.Items {
		name := list.Items[i].GetName()
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			tier, err := d.Resource(tierResource).Get(ctx, name, metav1.GetOptions{})
			if err != nil || !slices.Contains(tier.GetFinalizers(), deploy.TierFinalizer) {
				return err
			}
			tier.SetFinalizers(slices.DeleteFunc(tier.GetFinalizers(), func(f string) bool { return f == deploy.TierFinalizer }))
			_, err = d.Resource(tierResource).Update(ctx, tier, metav1.UpdateOptions{})
			return err
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take the finalizer off Tier %s: %w", name, err)
		}
	}
	return nil
}
