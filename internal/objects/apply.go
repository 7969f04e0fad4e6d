// SPDX-License-Identifier: Apache-2.0

// Package objects writes Kubernetes objects of whatever kind by server-side apply (KEP-555), and
// goes on where an API server cannot answer for a moment.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/sleep"
)

// Resource is the access to the resource that an object is one of, in its namespace where it has
// one.
func Resource(d dynamic.Interface, u *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	if ns := u.GetNamespace(); ns != "" {
		return d.Resource(gvr).Namespace(ns)
	}
	return d.Resource(gvr)
}

// Describe names an object for people: its kind, its namespace where it has one, its name.
func Describe(u *unstructured.Unstructured) string {
	if u.GetNamespace() != "" {
		return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
	}
	return u.GetKind() + " " + u.GetName()
}

// retryFor is for how long an object is applied again after an error that passes.
const retryFor = 2 * time.Minute

// Apply makes an object what u says, by server-side apply, which may be repeated. While no API
// server answers, or it says that it cannot now, it says so to out and tries again for retryFor:
// the network of the node that this runs on may be changing at this very moment, or the API server
// be starting.
func Apply(ctx context.Context, out io.Writer, d dynamic.Interface, u *unstructured.Unstructured, manager string) error {
	until := time.Now().Add(retryFor)
	for wait := time.Second; ; wait = min(2*wait, 10*time.Second) {
		_, err := Resource(d, u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
		if err == nil {
			return nil
		}
		err = fmt.Errorf("apply %s: %w", Describe(u), err)
		if !passes(err) || time.Now().After(until) {
			return err
		}
		fmt.Fprintf(out, "%v; trying again\n", err)
		if sleep.For(ctx, wait) != nil {
			return err
		}
	}
}

// ApplyAll applies objects in their order, up to the first that fails.
func ApplyAll(ctx context.Context, out io.Writer, d dynamic.Interface, all []*unstructured.Unstructured, manager string) error {
	for _, u := range all {
		if err := Apply(ctx, out, d, u, manager); err != nil {
			return err
		}
	}
	return nil
}

// passes reports whether the same request may succeed later: it had no answer, or one that says so.
func passes(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
