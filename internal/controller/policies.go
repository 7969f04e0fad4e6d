// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/watch"
)

// policyResources are the kinds of policies whose status has conditions.
var policyResources = []schema.GroupVersionResource{
	{Group: "policy.networking.k8s.io", Version: "v1alpha2", Resource: "clusternetworkpolicies"},
	{Group: "policy.networking.k8s.io", Version: "v1alpha1", Resource: "adminnetworkpolicies"},
	{Group: "policy.networking.k8s.io", Version: "v1alpha1", Resource: "baselineadminnetworkpolicies"},
}

// The condition that says whether agents enforce a policy as it is written. It is about what the
// object says, found by the code with which agents read it, and not about any node's progress.
const (
	conditionAccepted  = "Accepted"
	reasonAsWritten    = "EnforcedAsWritten"
	reasonFailsClosed  = "PartlyFailsClosed"
	messageAsWritten   = "every field is enforced as it is written"
	maxMessage         = 4096 // bytes; the API takes 32,768
	messageMore        = "; …"
	conditionsOfStatus = "conditions"
)

// reportPolicies writes the condition of each policy where it is not what it should be. Kinds that
// are not installed have none.
func (c *Controller) reportPolicies(ctx context.Context) error {
	var errs []error
	for _, r := range policyResources {
		list, err := c.cfg.Dynamic.Resource(r).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", r.Resource, err))
			continue
		}
		for i := range list.Items {
			if err := c.reportPolicy(ctx, r, &list.Items[i]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (c *Controller) reportPolicy(ctx context.Context, r schema.GroupVersionResource, u *unstructured.Unstructured) error {
	conditions, err := conditionsOf(u)
	if err != nil {
		return fmt.Errorf("read the conditions of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	want := accepted(u)
	want.LastTransitionTime = metav1.NewTime(c.now())
	if !meta.SetStatusCondition(&conditions, want) {
		return nil
	}
	list := make([]any, len(conditions))
	for i := range conditions {
		if list[i], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&conditions[i]); err != nil {
			return fmt.Errorf("write the conditions of %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	if err := unstructured.SetNestedSlice(u.Object, list, "status", conditionsOfStatus); err != nil {
		return fmt.Errorf("write the conditions of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	_, err = c.cfg.Dynamic.Resource(r).UpdateStatus(ctx, u, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it changed, or went: the next look finds it as it is then
	}
	if err != nil {
		return fmt.Errorf("write the status of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// accepted is the condition that a policy should have.
func accepted(u *unstructured.Unstructured) metav1.Condition {
	out := metav1.Condition{Type: conditionAccepted, Status: metav1.ConditionTrue, ObservedGeneration: u.GetGeneration(),
		Reason: reasonAsWritten, Message: messageAsWritten}
	problems := watch.Check(u)
	if len(problems) == 0 {
		return out
	}
	out.Status, out.Reason = metav1.ConditionFalse, reasonFailsClosed
	var text strings.Builder
	for i, p := range problems {
		s := p.Field + ": " + p.Message
		if i > 0 {
			s = "; " + s
		}
		if text.Len()+len(s) > maxMessage {
			text.WriteString(messageMore)
			break
		}
		text.WriteString(s)
	}
	out.Message = text.String()
	return out
}

func conditionsOf(u *unstructured.Unstructured) ([]metav1.Condition, error) {
	list, _, err := unstructured.NestedSlice(u.Object, "status", conditionsOfStatus)
	if err != nil {
		return nil, err
	}
	out := make([]metav1.Condition, len(list))
	for i := range list {
		m, ok := list[i].(map[string]any)
		if !ok {
			return nil, errors.New("not an object")
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
