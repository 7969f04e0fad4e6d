// SPDX-License-Identifier: Apache-2.0

package objects

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
	"k8s.io/client-go/rest"
)

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
	if err := Apply(t.Context(), &out, d, u, "test"); err != nil || asked != 3 {
		t.Errorf("after %d attempts: %v", asked, err)
	}
	if said := strings.Count(out.String(), "apply ConfigMap kube-system/a: "); said != 2 || strings.Count(out.String(), "trying again\n") != 2 {
		t.Errorf("it said %q", out.String())
	}
	asked, refuse = 0, true
	if err := Apply(t.Context(), &out, d, u, "test"); !apierrors.IsForbidden(err) || asked != 1 {
		t.Errorf("after %d attempts: %v", asked, err)
	}
}
