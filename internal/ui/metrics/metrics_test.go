// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows/access"
)

// apiServer knows tokens "prometheus" and "somebody", of whom the first may get /metrics.
func apiServer() *fake.Clientset {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(a core.Action) (bool, runtime.Object, error) {
		r := a.(core.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if t := r.Spec.Token; t == "prometheus" || t == "somebody" {
			r.Status.Authenticated, r.Status.User.Username = true, t
		}
		return true, r, nil
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a core.Action) (bool, runtime.Object, error) {
		r := a.(core.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		of := r.Spec.NonResourceAttributes
		r.Status.Allowed = r.Spec.User == "prometheus" && of != nil && of.Path == "/metrics" && of.Verb == "get"
		return true, r, nil
	})
	return kube
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	kube, log := apiServer(), slog.New(slog.DiscardHandler)
	m := New(func() int { return 3 })
	page := m.Requests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	h := m.Handler(access.New(kube), kube, page, log)
	get := func(method, path string, header ...string) (int, string) {
		r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, path := range []string{"/", "/", "/other"} {
		get(http.MethodGet, path)
	}
	done := m.Stream()
	m.Stream()()
	ctx, gone := context.WithCancel(t.Context())
	for _, err := range []error{nil, errors.New("away")} {
		ask := m.Asks(func(context.Context, wire.Question, io.Writer) error { return err })
		if got := ask(ctx, wire.Question{}, &bytes.Buffer{}); !errors.Is(got, err) {
			t.Errorf("the error is %v", got)
		}
	}
	gone()
	_ = m.Asks(func(context.Context, wire.Question, io.Writer) error { return ctx.Err() })(ctx, wire.Question{}, &bytes.Buffer{})
	for name, c := range map[string]struct {
		code   int
		method string
		header []string
	}{
		"no token":          {http.StatusUnauthorized, http.MethodGet, nil},
		"a session":         {http.StatusUnauthorized, http.MethodGet, []string{"Cookie", "__Host-weir-session=x"}},
		"basic":             {http.StatusUnauthorized, http.MethodGet, []string{"Authorization", "Basic prometheus"}},
		"a wrong token":     {http.StatusUnauthorized, http.MethodGet, []string{"Authorization", "Bearer x"}},
		"without the right": {http.StatusForbidden, http.MethodGet, []string{"Authorization", "Bearer somebody"}},
		"another method":    {http.StatusMethodNotAllowed, http.MethodPost, []string{"Authorization", "Bearer prometheus"}},
	} {
		if code, text := get(c.method, Path, c.header...); code != c.code || strings.Contains(text, "weir_ui") {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	code, text := get(http.MethodGet, Path, "Authorization", "Bearer prometheus")
	for _, want := range []string{`weir_ui_requests_total{code="200"} 2`, `weir_ui_requests_total{code="404"} 1`, "weir_ui_streams 1", "weir_ui_sessions 3",
		"weir_ui_store_question_seconds_count 3", "weir_ui_store_questions_failed_total 1", "go_goroutines"} {
		if code != http.StatusOK || !strings.Contains(text, want+"\n") && want != "go_goroutines" {
			t.Errorf("%d: %q is not in\n%s", code, want, text)
		}
	}
	done()
}
