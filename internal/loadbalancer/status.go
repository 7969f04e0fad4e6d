// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition of a Service that lacks an address that it asks for: status False, with the reason in
// words. It is removed when all is well.
const Condition = "weir.dev/LoadBalancerAddress"

// The reasons of events about Services.
const (
	reasonNone     = "NoLoadBalancerAddress"
	reasonAssigned = "LoadBalancerAddress"
)

// writeStatus makes a Service's status say what it has, and why it lacks something.
func (c *Controller) writeStatus(ctx context.Context, w *wanted) error {
	s := w.service.DeepCopy()
	changed := setIngress(s, w.addrs)
	switch {
	case len(w.addrs) > 0:
		changed = addFinalizer(s) || changed
	case changed || ofOurClass(s): // it lost its addresses
		changed = dropFinalizer(s) || changed
	}
	if message := strings.Join(w.errs, "; "); message != "" {
		changed = apimeta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{Type: Condition, Status: metav1.ConditionFalse,
			Reason: reasonNone, Message: message, ObservedGeneration: s.Generation}) || changed
		c.record(ctx, s, corev1.EventTypeWarning, reasonNone, message)
	} else if apimeta.RemoveStatusCondition(&s.Status.Conditions, Condition) {
		changed = true
		delete(c.recorded, s.UID)
	}
	if !changed {
		return nil
	}
	c.writes.Inc()
	if _, err := c.cfg.Kube.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the status of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	if len(w.addrs) > 0 && !sameAddrs(w.service, w.addrs) {
		c.log.Info("a load balancer has its addresses", "service", s.Namespace+"/"+s.Name, "addresses", join(w.addrs))
		c.record(ctx, s, corev1.EventTypeNormal, reasonAssigned, "assigned "+join(w.addrs))
	}
	return nil
}

// setIngress makes the ingress points those of addrs, and reports whether that changed them.
func setIngress(s *corev1.Service, addrs []netip.Addr) bool {
	if sameAddrs(s, addrs) {
		return false
	}
	vip := corev1.LoadBalancerIPModeVIP
	s.Status.LoadBalancer.Ingress = nil
	for _, a := range addrs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &vip})
	}
	return true
}

func sameAddrs(s *corev1.Service, addrs []netip.Addr) bool {
	return slices.EqualFunc(s.Status.LoadBalancer.Ingress, addrs, func(in corev1.LoadBalancerIngress, a netip.Addr) bool {
		return in.IP == a.String() && in.Hostname == "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP)
	})
}

func join(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// record writes an event about a Service, the same one not twice in a row. An event that cannot be
// written is logged: it holds nothing up.
func (c *Controller) record(ctx context.Context, s *corev1.Service, kind, reason, message string) {
	if c.recorded[s.UID] == reason+message {
		return
	}
	if c.recorded[s.UID] = reason + message; kind == corev1.EventTypeNormal {
		delete(c.recorded, s.UID)
	} else {
		c.log.Warn("a load balancer lacks an address", "service", s.Namespace+"/"+s.Name, "reason", message)
	}
	now := metav1.NewTime(c.now())
	_, err := c.cfg.Kube.CoreV1().Events(s.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", s.Name, now.UnixNano()), Namespace: s.Namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID,
			ResourceVersion: s.ResourceVersion},
		Reason: reason, Message: message, Type: kind, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "weir-controller"},
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot write an event about a Service", "service", s.Namespace+"/"+s.Name, "err", err)
	}
}
