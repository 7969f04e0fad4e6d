// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/fanout/names"
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
			if err := apply(t.Context(), io.Discard, s.Clients.Dynamic, u, fieldManager); err != nil {
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

// TestApplyTriesAgain: a connection that ends without an answer and an API server that cannot now
// are tried again, and said; what the API server refuses is not.
func TestApplyTriesAgain(t *testing.T) {
	t.Parallel()
	status := func(w http.ResponseWriter, code int, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "`+string(reason)+`"}`)
	}
	asked, refuse := 0, false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch {
		case refuse:
			status(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		case asked == 1:
			panic(http.ErrAbortHandler)
		case asked == 2:
			status(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.Copy(w, r.Body)
		}
	}))
	t.Cleanup(server.Close)
	d, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	u.SetNamespace("kube-system")
	u.SetName("a")
	var out strings.Builder
	if err := apply(t.Context(), &out, d, u, fieldManager); err != nil || asked != 3 {
		t.Errorf("after %d attempts: %v", asked, err)
	}
	if said := strings.Count(out.String(), "apply ConfigMap kube-system/a: "); said != 2 || strings.Count(out.String(), "trying again\n") != 2 {
		t.Errorf("it said %q", out.String())
	}
	asked, refuse = 0, true
	if err := apply(t.Context(), &out, d, u, fieldManager); !apierrors.IsForbidden(err) || asked != 1 {
		t.Errorf("after %d attempts: %v", asked, err)
	}
}
