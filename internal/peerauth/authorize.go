// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Allowed asks the API server whether a user may do something. The API server has asked itself
// before it handed the request on; a certificate of its front proxy that is in other hands is not
// enough to read anything, so.
func Allowed(ctx context.Context, kube kubernetes.Interface, u *User, what authorizationv1.ResourceAttributes) (bool, error) {
	return allowed(ctx, kube, u, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &what})
}

// AllowedPath asks the API server whether a user may do something at a path, which is no resource.
func AllowedPath(ctx context.Context, kube kubernetes.Interface, u *User, path, verb string) (bool, error) {
	return allowed(ctx, kube, u, authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb}})
}

func allowed(ctx context.Context, kube kubernetes.Interface, u *User, what authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	what.User, what.UID, what.Groups, what.Extra = u.Name, u.UID, u.Groups, u.Extra
	got, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: what}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask the API server for the rights of %s: %w", u.Name, err)
	}
	return got.Status.Allowed && !got.Status.Denied, nil
}
