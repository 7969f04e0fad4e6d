// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Finalizer is what every controller of load balancers puts on a Service that it serves (KEP-980),
// so that the Service outlives what was made for it. One controller serves a Service, so whoever
// serves it removes it.
//
// It is written with the status, as the cloud providers' controllers do: the API server takes
// metadata from an update of the status, so the right to change Services' specs is not needed.
const Finalizer = "service.kubernetes.io/load-balancer-cleanup"

func hasFinalizer(s *corev1.Service) bool { return slices.Contains(s.Finalizers, Finalizer) }

// addFinalizer reports whether it was missing.
func addFinalizer(s *corev1.Service) bool {
	if hasFinalizer(s) {
		return false
	}
	s.Finalizers = append(s.Finalizers, Finalizer)
	return true
}

// dropFinalizer reports whether it was there.
func dropFinalizer(s *corev1.Service) bool {
	n := len(s.Finalizers)
	s.Finalizers = slices.DeleteFunc(s.Finalizers, func(f string) bool { return f == Finalizer })
	return len(s.Finalizers) != n
}

// retire lets go of Services that are to have nothing of us any more: those that are being deleted,
// and those that are no load balancers now. Their addresses stay in the book until the finalizer
// was seen to be gone, so what is ours can be recognized also after a failure between.
func (c *Controller) retire(ctx context.Context, v *view, b *book, services []*corev1.Service, want map[types.UID]*wanted) error {
	var errs []error
	for _, s := range services {
		if want[s.UID] != nil || !hasFinalizer(s) || !v.served(s, b) {
			continue
		}
		if s.DeletionTimestamp == nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			continue // not ours for now only
		}
		s = s.DeepCopy()
		dropFinalizer(s)
		s.Status.LoadBalancer.Ingress = nil
		c.writes.Inc()
		if _, err := c.cfg.Kube.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{}); serious(err) != nil {
			errs = append(errs, fmt.Errorf("remove the finalizer of Service %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// served reports whether the finalizer of a Service is ours: another controller uses the same name.
func (v *view) served(s *corev1.Service, b *book) bool {
	return len(b.byUID[s.UID]) > 0 || ofOurClass(s) || slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		return err == nil && v.poolOf(a) != nil
	})
}
