// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

var tierResource = v3.SchemeGroupVersion.WithResource("tiers")

// tieredResources are the kinds of policies that have tiers.
var tieredResources = []schema.GroupVersionResource{
	v3.SchemeGroupVersion.WithResource("networkpolicies"),
	v3.SchemeGroupVersion.WithResource("globalnetworkpolicies"),
	v3.SchemeGroupVersion.WithResource("stagednetworkpolicies"),
	v3.SchemeGroupVersion.WithResource("stagedglobalnetworkpolicies"),
}

// policiesOfTiers returns a policy of each tier that has one: until it has none the tier, and with
// it what its policies say, stays in force. A kind that is not there has none.
func (c *Controller) policiesOfTiers(ctx context.Context) (func(*unstructured.Unstructured) (string, error), error) {
	used := map[string]string{}
	for _, r := range tieredResources {
		opts := metav1.ListOptions{Limit: 500}
		for {
			list, err := c.cfg.Dynamic.Resource(r).List(ctx, opts)
			if apierrors.IsNotFound(err) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", r.Resource, err)
			}
			for i := range list.Items {
				u := &list.Items[i]
				if tier, _, _ := unstructured.NestedString(u.Object, "spec", "tier"); tier != "" && used[tier] == "" {
					used[tier] = u.GetKind() + " " + cache.NewObjectName(u.GetNamespace(), u.GetName()).String()
				}
			}
			if opts.Continue = list.GetContinue(); opts.Continue == "" {
				break
			}
		}
	}
	return func(tier *unstructured.Unstructured) (string, error) { return used[tier.GetName()], nil }, nil
}
