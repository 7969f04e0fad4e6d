// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/objects"
)

// testFanOutReplicas: the fan-out begins without replicas, and a later installation leaves the
// number that the controller wrote.
func testFanOutReplicas(t *testing.T, s *apitest.Server, installed int) {
	t.Helper()
	deployments := s.Clients.Kube.AppsV1().Deployments(deploy.Namespace)
	want := []int32{0, 3}[installed]
	scale := func() int32 {
		t.Helper()
		has, err := deployments.GetScale(t.Context(), names.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return has.Spec.Replicas
	}
	if got := scale(); got != want {
		t.Errorf("after installation %d the fan-out is to have %d replicas, not %d", installed+1, got, want)
	}
	if installed > 0 {
		testBeginning(t, s, deployments)
		return
	}
	has, err := deployments.GetScale(t.Context(), names.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has.Spec.Replicas = 3
	if _, err := deployments.UpdateScale(t.Context(), names.Name, has, metav1.UpdateOptions{FieldManager: "weir-controller"}); err != nil {
		t.Fatal(err)
	}
}

// testBeginning makes the Deployment by each value of --fanout.
func testBeginning(t *testing.T, s *apitest.Server, deployments appsclient.DeploymentInterface) {
	t.Helper()
	for _, c := range []struct {
		fanOut string
		want   int32
	}{{"always", 1}, {"never", 0}, {"auto", 0}} {
		if err := deployments.Delete(t.Context(), names.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		f := &installFlags{Options: deploy.Defaults()}
		f.FanOut = c.fanOut
		all, err := deploy.Objects(f.Options)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range all {
			if u.GetKind() != "Deployment" || u.GetName() != names.Name {
				continue
			}
			if err := f.beginWithout(t.Context(), io.Discard, s.Clients.Dynamic, all); err != nil {
				t.Fatal(err)
			}
			if err := objects.Apply(t.Context(), io.Discard, s.Clients.Dynamic, u, fieldManager); err != nil {
				t.Fatal(err)
			}
		}
		d, err := deployments.Get(t.Context(), names.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if *d.Spec.Replicas != c.want {
			t.Errorf("--fanout=%s begins with %d replicas, want %d", c.fanOut, *d.Spec.Replicas, c.want)
		}
	}
}
