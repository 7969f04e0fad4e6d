// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/deploy"
)

var (
	reservationResource = v3.SchemeGroupVersion.WithResource("ipreservations")
	poolResource        = v3.SchemeGroupVersion.WithResource("ippools")
	felixResource       = v3.SchemeGroupVersion.WithResource("felixconfigurations")
)

// ensureDefaults makes the first pools, one for each family that is asked for, and the
// FelixConfiguration "default", once: the latter, made last, says that this was done, so that a
// pool that somebody removed does not come back.
func (c *Controller) ensureDefaults(ctx context.Context) error {
	if c.cfg.PodCIDR == "" {
		return nil
	}
	_, err := c.cfg.Dynamic.Resource(felixResource).Get(ctx, "default", metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get FelixConfiguration default: %w", err)
	}
	first, felix, err := deploy.DefaultObjects(c.cfg.PodCIDR, c.cfg.VXLANMode)
	if err != nil {
		return fmt.Errorf("ConfigMap weir-config, pod_cidr: %w", err)
	}
	pools, err := c.cfg.Dynamic.Resource(poolResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	if onlyOf(first, pools.Items) {
		for _, pool := range first {
			_, err := c.cfg.Dynamic.Resource(poolResource).Create(ctx, pool, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("create IPPool %s with %s (pod_cidr of ConfigMap weir-config): %w", pool.GetName(), cidrOf(pool), err)
			}
			c.log.Info("made a first IPPool", "name", pool.GetName(), "cidr", cidrOf(pool))
		}
	}
	if _, err := c.cfg.Dynamic.Resource(felixResource).Create(ctx, felix, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create FelixConfiguration default: %w", err)
	}
	return nil
}

// onlyOf reports whether all pools that there are, are first ones: an earlier attempt was
// interrupted, if there are any.
func onlyOf(first []*unstructured.Unstructured, have []unstructured.Unstructured) bool {
	for i := range have {
		if !slices.ContainsFunc(first, func(p *unstructured.Unstructured) bool {
			return p.GetName() == have[i].GetName() && cidrOf(p) == cidrOf(&have[i])
		}) {
			return false
		}
	}
	return true
}

func cidrOf(pool *unstructured.Unstructured) string {
	text, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
	return text
}

type namedPool struct {
	object *unstructured.Unstructured
	cidr   netip.Prefix
}

// The condition that says whether addresses are given of a pool, with the names that Calico gives
// it and its reasons. It is about what the objects say; that agents refuse a pool which covers
// nodes is in their NodeStatus.
const (
	conditionAllocatable = "Allocatable"
	reasonAllocatable    = "OK"
	reasonOverlap        = "CIDROverlap"
	reasonDisabled       = "PoolDisabled"
	reasonTerminating    = "Terminating"
)

// reportPools says in the status of each pool whether addresses are given of it, but for those that
// are deleted (keeper), and writes an event for each that overlaps an older one: agents do not use
// it.
func (c *Controller) reportPools(ctx context.Context) error {
	list, err := c.cfg.Dynamic.Resource(poolResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	var pools []namedPool
	for i := range list.Items {
		u := &list.Items[i]
		if p, err := netip.ParsePrefix(cidrOf(u)); err == nil {
			pools = append(pools, namedPool{u, p.Masked()})
		}
	}
	slices.SortFunc(pools, func(a, b namedPool) int {
		ta, tb := a.object.GetCreationTimestamp(), b.object.GetCreationTimestamp()
		if d := ta.Time.Compare(tb.Time); d != 0 {
			return d
		}
		return strings.Compare(a.object.GetName(), b.object.GetName())
	})
	found := map[string]bool{}
	var errs []error
	for i, p := range pools {
		allocatable := metav1.Condition{Type: conditionAllocatable, Status: metav1.ConditionTrue, Reason: reasonAllocatable}
		if disabled, _, _ := unstructured.NestedBool(p.object.Object, "spec", "disabled"); disabled {
			allocatable.Status, allocatable.Reason, allocatable.Message = metav1.ConditionFalse, reasonDisabled, "spec.disabled is true"
		}
		for _, older := range pools[:i] {
			if !p.cidr.Overlaps(older.cidr) {
				continue
			}
			message := fmt.Sprintf("spec.cidr %s overlaps %s of the older IPPool %s; this pool is not used: delete it, or make another one with a cidr of its own",
				p.cidr, older.cidr, older.object.GetName())
			key := string(p.object.GetUID()) + "/" + string(older.object.GetUID())
			found[key] = true
			allocatable.Status, allocatable.Reason, allocatable.Message = metav1.ConditionFalse, reasonOverlap, message
			if c.reported[key] {
				break
			}
			c.log.Warn("IPPool "+p.object.GetName()+": "+message, "pool", p.object.GetName())
			if err := c.event(ctx, p.object, "PoolOverlaps", message); err != nil {
				errs = append(errs, err)
				break
			}
			c.reported[key] = true
			break
		}
		if p.object.GetDeletionTimestamp() == nil {
			errs = append(errs, c.setCondition(ctx, poolResource, p.object, allocatable))
		}
	}
	for key := range c.reported {
		if !found[key] {
			delete(c.reported, key)
		}
	}
	return errors.Join(errs...)
}

// event writes a warning about a cluster-wide object; such events live in namespace "default".
func (c *Controller) event(ctx context.Context, about *unstructured.Unstructured, reason, message string) error {
	now := metav1.NewTime(c.now())
	_, err := c.cfg.Kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ToLower(about.GetKind()) + "-", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: about.GetAPIVersion(), Kind: about.GetKind(), Name: about.GetName(),
			UID: about.GetUID(), ResourceVersion: about.GetResourceVersion()},
		Reason: reason, Message: message, Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "weir-controller"},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("write event %s about %s %s: %w", reason, about.GetKind(), about.GetName(), err)
	}
	return nil
}
