// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/relay/live"
)

// refusing is a controller, or an API server, that does not answer a question.
func refusing(code int, reason metav1.StatusReason, cause string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "because"}
		if cause != "" {
			s.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseType(cause), Message: "because"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(s)
	}
}

func TestByController(t *testing.T) {
	a, s := newAsker(t, http.NotFoundHandler())
	var paths []string
	a.Report = func(_, path string) { paths = append(paths, path) }
	s.live = func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %v", r.Method, r.URL.RequestURI(), body, err)
	}
	for _, c := range []struct {
		q    wire.Question
		want string
	}{
		{wire.Question{Path: "/status"}, "GET " + live.Root + "/agents/a/status  <nil>"},
		{wire.Question{Path: "/events?pod=x%2Fy&type=drop"}, "GET " + live.Root + "/agents/a/events?pod=x%2Fy&type=drop  <nil>"},
		{wire.Question{Path: "/why", Body: "{}"}, "POST " + live.Root + "/agents/a/why {} <nil>"},
	} {
		var out bytes.Buffer
		if err := a.Ask(t.Context(), "a", c.q, &out); err != nil || out.String() != c.want {
			t.Errorf("%s: %q %v", c.q.Path, out.String(), err)
		}
	}
	if want := []string{"live", "live", "live"}; !slices.Equal(s.seen, want) || len(paths) != 3 || paths[0] != "by the controller" {
		t.Errorf("asked by %q, said %q", s.seen, paths)
	}
}

// Where the controller does not answer, or the user has not the right to ask it, the agent is asked
// by exec; an answer of the agent is one, by either way.
func TestByExecWhereTheControllerDoesNot(t *testing.T) {
	for _, c := range []struct {
		name     string
		live     http.HandlerFunc
		noExec   bool
		is       error
		says     []string
		byAnExec bool
	}{
		{"no right", refusing(http.StatusForbidden, metav1.StatusReasonForbidden, ""), false, nil, nil, true},
		{"no right to anything", refusing(http.StatusForbidden, metav1.StatusReasonForbidden, ""), true, ErrNoRight,
			[]string{"the verb get on agents/status in group live.weir.dev", "weir-viewer", "pods/exec"}, false},
		{"not connected", refusing(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, live.CauseNoAgent), false, nil, nil, true},
		{"not connected, and no exec", refusing(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, live.CauseNoAgent), true, ErrNoAgent, []string{"because", "pods/exec"}, false},
		{"no controller", refusing(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, ""), false, nil, nil, true},
		{"no group", nil, false, nil, nil, true},
		{"refused", refusing(http.StatusConflict, metav1.StatusReasonConflict, live.CauseRefused), false, ErrRefused, []string{"because"}, false},
		{"too old", refusing(http.StatusNotImplemented, metav1.StatusReasonUnknown, live.CauseUnknown), false, ErrTooOld, []string{"upgrade"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s := newAsker(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "from the agent") }))
			s.live = c.live
			if c.noExec {
				s.refuse = forbidden("pods/exec is forbidden")
			}
			var out bytes.Buffer
			err := a.Ask(t.Context(), "a", wire.Question{Path: "/status"}, &out)
			if !errors.Is(err, c.is) || c.is == nil && err != nil {
				t.Errorf("got %v, want %v", err, c.is)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
			if (out.String() == "from the agent") != c.byAnExec {
				t.Errorf("out %q", out.String())
			}
		})
	}
}

// An answer that ends early is not asked for again: a part of it was written.
func TestAnswerThatEndsEarly(t *testing.T) {
	a, s := newAsker(t, http.NotFoundHandler())
	s.live = func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "first")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	var out bytes.Buffer
	if err := a.Ask(t.Context(), "a", wire.Question{Path: "/events"}, &out); err == nil || out.String() != "first" || !slices.Equal(s.seen, []string{"live"}) {
		t.Errorf("%v, %q, asked by %q", err, out.String(), s.seen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.live = func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}
	if err := a.Ask(ctx, "a", wire.Question{Path: "/events"}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
