// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	conditionAccepted = "Accepted"
	reasonAsWritten   = "EnforcedAsWritten"
	reasonFailsClosed = "PartlyFailsClosed"
	messageAsWritten  = "every field is enforced as it is written"
	maxMessage        = 4096 // bytes; the API takes 32,768
	messageMore       = "; …"
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
			errs = append(errs, c.setCondition(ctx, r, &list.Items[i], accepted(&list.Items[i])))
		}
	}
	return errors.Join(errs...)
}

// accepted is the condition that a policy should have.
func accepted(u *unstructured.Unstructured) metav1.Condition {
	out := metav1.Condition{Type: conditionAccepted, Status: metav1.ConditionTrue, Reason: reasonAsWritten, Message: messageAsWritten}
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
