// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const conditionsOfStatus = "conditions"

// setCondition writes a condition into the status of an object where it is not what it should be.
func (c *Controller) setCondition(ctx context.Context, r schema.GroupVersionResource, u *unstructured.Unstructured, want metav1.Condition) error {
	conditions, err := conditionsOf(u)
	if err != nil {
		return fmt.Errorf("read the conditions of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	want.ObservedGeneration, want.LastTransitionTime = u.GetGeneration(), metav1.NewTime(c.now())
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
