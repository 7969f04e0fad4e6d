// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/weir-net/weir/deploy"
)

// keeper keeps the objects of a kind that others depend on, by a finalizer: what was deleted stays
// in force until nothing uses it.
type keeper struct {
	c         *Controller
	resource  schema.GroupVersionResource
	finalizer string
	retry     time.Duration // between two looks while an object waits, or a look failed
	reason    string        // of the event that says what it waits for
	condition string        // in the status, which says that it is deleted
	// users returns what uses a deleted object, "" when nothing does. It is asked once for each
	// look at which there is such an object.
	users    func(context.Context) (func(*unstructured.Unstructured) (string, error), error)
	message  func(user string) string
	reported map[string]bool // by UID: that the object waits
}

func (c *Controller) keepers() []*keeper {
	return []*keeper{
		{c: c, resource: tierResource, finalizer: deploy.TierFinalizer, retry: 2 * time.Second, reason: "TierHasPolicies", condition: "Ready", users: c.policiesOfTiers,
			message: func(user string) string {
				return "the tier was deleted and still has policies, such as " + user + ": it stays in force until the last of them is gone or in another tier"
			}},
		{c: c, resource: poolResource, finalizer: deploy.PoolFinalizer, retry: 5 * time.Second, reason: "PoolHasAddresses", condition: conditionAllocatable, users: c.addressesOfPools,
			message: func(user string) string {
				return "the pool was deleted and is still used, such as by " + user + ": nothing more is given of it, and it stays until that is gone"
			}},
	}
}

// run puts the finalizer on each object as soon as the object is there, and takes it off a deleted
// one when nothing uses it any more, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	news := make(chan struct{}, 1)
	wake := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(k.c.cfg.Dynamic, 0).ForResource(k.resource).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, UpdateFunc: func(any, any) { wake() }}); err != nil {
		k.c.log.Error("cannot follow "+k.resource.Resource+": they are kept with a delay", "error", err)
	}
	go informer.Run(ctx.Done())
	for {
		waiting, err := k.look(ctx)
		if err != nil && ctx.Err() == nil {
			k.c.log.Warn("keeping "+k.resource.Resource+" that are in use failed; trying again", "error", err)
		}
		next := k.c.cfg.Interval
		if waiting || err != nil {
			next = min(next, k.retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-time.After(next):
		}
	}
}

// look looks at all objects once. waiting says that one was deleted and is still used.
func (k *keeper) look(ctx context.Context) (waiting bool, err error) {
	list, err := k.c.cfg.Dynamic.Resource(k.resource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // the definitions are older than this program, or gone
	}
	if err != nil {
		return false, fmt.Errorf("list %s: %w", k.resource.Resource, err)
	}
	var errs []error
	var user func(*unstructured.Unstructured) (string, error)
	for i := range list.Items {
		u := &list.Items[i]
		has := slices.Contains(u.GetFinalizers(), k.finalizer)
		if u.GetDeletionTimestamp() == nil {
			if !has {
				u.SetFinalizers(append(u.GetFinalizers(), k.finalizer))
				errs = append(errs, k.write(ctx, u))
			}
			continue
		}
		if !has {
			continue
		}
		if user == nil {
			if user, err = k.users(ctx); err != nil {
				return true, err
			}
		}
		by, err := user(u)
		if err != nil || by != "" {
			waiting = true
			errs = append(errs, err)
			if by != "" {
				errs = append(errs, k.say(ctx, u, by), k.c.setCondition(ctx, k.resource, u, metav1.Condition{Type: k.condition, Status: metav1.ConditionFalse, Reason: reasonTerminating, Message: k.message(by)}))
			}
			continue
		}
		u.SetFinalizers(slices.DeleteFunc(u.GetFinalizers(), func(f string) bool { return f == k.finalizer }))
		errs = append(errs, k.write(ctx, u))
	}
	return waiting, errors.Join(errs...)
}

// say writes once why a deleted object is still there.
func (k *keeper) say(ctx context.Context, u *unstructured.Unstructured, user string) error {
	if k.reported[string(u.GetUID())] {
		return nil
	}
	k.c.log.Warn(k.message(user), "kind", u.GetKind(), "name", u.GetName())
	if err := k.c.event(ctx, u, k.reason, k.message(user)); err != nil {
		return err
	}
	if k.reported == nil {
		k.reported = map[string]bool{}
	}
	k.reported[string(u.GetUID())] = true
	return nil
}

func (k *keeper) write(ctx context.Context, u *unstructured.Unstructured) error {
	_, err := k.c.cfg.Dynamic.Resource(k.resource).Update(ctx, u, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it changed, or went: the next look, which its event begins, finds it as it is then
	}
	if err != nil {
		return fmt.Errorf("write the finalizers of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}
