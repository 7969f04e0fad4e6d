package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/weir-net/weir/deploy"
)

var tierResource = v3.SchemeGroupVersion.WithResource("tiers")

// tieredResources are the kinds of policies that have tiers.
var tieredResources = []schema.GroupVersionResource{
	v3.SchemeGroupVersion.WithResource("networkpolicies"),
	v3.SchemeGroupVersion.WithResource("globalnetworkpolicies"),
	v3.SchemeGroupVersion.WithResource("stagednetworkpolicies"),
	v3.SchemeGroupVersion.WithResource("stagedglobalnetworkpolicies"),
}

// tierRetry is the time between two looks while a tier waits for its last policy to go, or a look failed.
const tierRetry = 2 * time.Second

// watchTiers puts the finalizer on each tier as soon as the tier is there, and takes it off a deleted one when no policy is in
// it any more, until ctx ends. Until then the tier, and with it what its policies say, stays in force.
func (c *Controller) watchTiers(ctx context.Context) {
	news := make(chan struct{}, 1)
	wake := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(c.cfg.Dynamic, 0).ForResource(tierResource).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }}); err != nil {
		c.log.Error("cannot follow tiers: they are kept with a delay", "error", err)
	}
	go informer.Run(ctx.Done())
	for {
		waiting, err := c.keepTiers(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("keeping tiers that have policies failed; trying again", "error", err)
		}
		next := c.cfg.Interval
		if waiting || err != nil {
			next = min(next, tierRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-time.After(next):
		}
	}
}

// keepTiers looks at all tiers once. waiting says that a deleted tier still has policies.
func (c *Controller) keepTiers(ctx context.Context) (waiting bool, err error) {
	list, err := c.cfg.Dynamic.Resource(tierResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // the definitions are older than this program, or gone
	}
	if err != nil {
		return false, fmt.Errorf("list Tiers: %w", err)
	}
	var errs []error
	var used map[string]string // by tier: a policy in it; read when a tier was deleted
	for i := range list.Items {
		tier := &list.Items[i]
		has := slices.Contains(tier.GetFinalizers(), deploy.TierFinalizer)
		if tier.GetDeletionTimestamp() == nil {
			if !has {
				tier.SetFinalizers(append(tier.GetFinalizers(), deploy.TierFinalizer))
				errs = append(errs, c.writeTier(ctx, tier))
			}
			continue
		}
		if !has {
			continue
		}
		if used == nil {
			if used, err = c.usedTiers(ctx); err != nil {
				return true, err
			}
		}
		if policy, inUse := used[tier.GetName()]; inUse {
			waiting = true
			c.sayTierStays(ctx, tier, policy, &errs)
			continue
		}
		tier.SetFinalizers(slices.DeleteFunc(tier.GetFinalizers(), func(f string) bool { return f == deploy.TierFinalizer }))
		errs = append(errs, c.writeTier(ctx, tier))
	}
	return waiting, errors.Join(errs...)
}

// sayTierStays writes once why a deleted tier is still there.
func (c *Controller) sayTierStays(ctx context.Context, tier *unstructured.Unstructured, policy string, errs *[]error) {
	key := "tier " + string(tier.GetUID())
	if c.tiersTold[key] {
		return
	}
	message := "the tier was deleted and still has policies, such as " + policy + ": it stays in force until the last of them is gone or in another tier"
	c.log.Warn(message, "tier", tier.GetName())
	if err := c.event(ctx, tier, "TierHasPolicies", message); err != nil {
		*errs = append(*errs, err)
		return
	}
	c.tiersTold[key] = true
}

func (c *Controller) writeTier(ctx context.Context, tier *unstructured.Unstructured) error {
	_, err := c.cfg.Dynamic.Resource(tierResource).Update(ctx, tier, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it changed, or went: the next look, which its event begins, finds it as it is then
	}
	if err != nil {
		return fmt.Errorf("write the finalizers of Tier %s: %w", tier.GetName(), err)
	}
	return nil
}

// usedTiers returns a policy of each tier that has one. A kind that is not there has none.
func (c *Controller) usedTiers(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
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
				if tier, _, _ := unstructured.NestedString(u.Object, "spec", "tier"); tier != "" && out[tier] == "" {
					out[tier] = u.GetKind() + " " + cache.NewObjectName(u.GetNamespace(), u.GetName()).String()
				}
			}
			if opts.Continue = list.GetContinue(); opts.Continue == "" {
				break
			}
		}
	}
	return out, nil
}
