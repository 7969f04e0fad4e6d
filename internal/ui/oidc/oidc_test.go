// SPDX-License-Identifier: Apache-2.0

package oidc_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/ui/oidc"
	"github.com/weir-net/weir/internal/ui/oidc/oidctest"
)

const callback = "https://weir.example.com/api/session/oidc/callback"

// begun is a log-in up to where the issuer sends the browser back: the request with which it comes.
func begun(t *testing.T, at *oidc.Issuer, issuer *oidctest.Issuer) *http.Request {
	t.Helper()
	w := httptest.NewRecorder()
	if err := at.Begin(w, httptest.NewRequest(http.MethodGet, "/", nil), callback); err != nil {
		t.Fatal(err)
	}
	client := issuer.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	got, err := client.Get(w.Header().Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	to := got.Header.Get("Location")
	if got.StatusCode != http.StatusFound || !strings.HasPrefix(to, callback+"?") {
		t.Fatalf("the issuer answers %s, %q", got.Status, to)
	}
	r := httptest.NewRequest(http.MethodGet, to, nil)
	for _, c := range w.Result().Cookies() {
		if !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("cookie %+v", c)
		}
		r.AddCookie(c)
	}
	return r
}

func end(at *oidc.Issuer, r *http.Request) (*oidc.Tokens, error) {
	return at.End(httptest.NewRecorder(), r, callback)
}

// A log-in ends with the user's ID token, which is exchanged for later ones as long as the issuer
// gives these.
func TestLogIn(t *testing.T) {
	t.Parallel()
	issuer := oidctest.Start(t)
	at := oidc.New(issuer.Dir(t))
	issuer.Set("alice", 10*time.Minute, false, "")
	tokens, err := end(at, begun(t, at, issuer))
	if err != nil {
		t.Fatal(err)
	}
	first := tokens.ID
	for range 2 {
		if user, until, ok := issuer.Subject(tokens.ID); !ok || user != "alice" || !until.Equal(tokens.Expires) {
			t.Errorf("the token is %s's until %v, known as %v", user, until, tokens.Expires)
		}
		if tokens, err = at.Refresh(context.Background(), tokens); err != nil {
			t.Fatal(err)
		}
	}
	if tokens.ID == first {
		t.Error("the later token is the first one")
	}
	issuer.Set("alice", time.Minute, true, "")
	if _, err := at.Refresh(context.Background(), tokens); err == nil || errors.Is(err, oidc.ErrRefused) {
		t.Errorf("of an issuer that is away: %v", err)
	}
}

// What is no answer to what this browser began logs nobody in.
func TestRefused(t *testing.T) {
	t.Parallel()
	issuer := oidctest.Start(t)
	at := oidc.New(issuer.Dir(t))
	without := func(r *http.Request) *http.Request {
		out := httptest.NewRequest(http.MethodGet, r.URL.String(), nil)
		return out
	}
	with := func(r *http.Request, name, value string) *http.Request {
		q := r.URL.Query()
		q.Set(name, value)
		out := httptest.NewRequest(http.MethodGet, callback+"?"+q.Encode(), nil)
		for _, c := range r.Cookies() {
			out.AddCookie(c)
		}
		return out
	}
	for name, c := range map[string]struct {
		change func(*http.Request) *http.Request
		want   error
	}{
		"without the cookie of the browser": {without, oidc.ErrBegun},
		"with a state that was not given":   {func(r *http.Request) *http.Request { return with(r, "state", "x") }, oidc.ErrBegun},
		"with an empty state":               {func(r *http.Request) *http.Request { return with(r, "state", "") }, oidc.ErrBegun},
		"with a code that was not given":    {func(r *http.Request) *http.Request { return with(r, "code", "x") }, oidc.ErrRefused},
		"with the issuer's error":           {func(r *http.Request) *http.Request { return with(r, "error", "access_denied") }, oidc.ErrRefused},
		"with the code of another log-in of somebody": {func(r *http.Request) *http.Request {
			return with(r, "code", begun(t, at, issuer).URL.Query().Get("code"))
		}, oidc.ErrRefused},
		"with a cookie of no log-in": {func(r *http.Request) *http.Request {
			out := without(r)
			out.AddCookie(&http.Cookie{Name: oidc.Cookie, Value: ".."})
			return out
		}, oidc.ErrBegun},
	} {
		if got, err := end(at, c.change(begun(t, at, issuer))); got != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	again := begun(t, at, issuer)
	if _, err := end(at, again); err != nil {
		t.Fatal(err)
	}
	if _, err := end(at, again); !errors.Is(err, oidc.ErrRefused) {
		t.Errorf("a code counts twice: %v", err)
	}
	r := begun(t, at, issuer)
	issuer.Set("alice", time.Hour, false, "of another log-in")
	if _, err := end(at, r); !errors.Is(err, oidc.ErrRefused) {
		t.Errorf("a token of another log-in: %v", err)
	}
	r = begun(t, at, issuer)
	issuer.Set("alice", -time.Minute, false, "")
	if _, err := end(at, r); !errors.Is(err, oidc.ErrRefused) {
		t.Errorf("a token that has ended: %v", err)
	}
	issuer.Set("", time.Hour, false, "")
	if _, err := end(at, begun(t, at, issuer)); !errors.Is(err, oidc.ErrRefused) {
		t.Errorf("a user who refuses: %v", err)
	}
}

// Settings are read for each log-in; what is wrong with them is said, and nobody is sent anywhere.
func TestSettings(t *testing.T) {
	t.Parallel()
	issuer := oidctest.Start(t)
	dir := issuer.Dir(t)
	at := oidc.New(dir)
	begin := func() (string, error) {
		w := httptest.NewRecorder()
		err := at.Begin(w, httptest.NewRequest(http.MethodGet, "/", nil), callback)
		return w.Header().Get("Location"), err
	}
	change := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	if q := mustParse(t, to).Query(); q.Get("redirect_uri") != callback || q.Get("code_challenge_method") != "S256" {
		t.Errorf("the browser is sent to %s", to)
	}
	for _, bad := range []struct{ name, text, want string }{
		{"issuer", "http://issuer.example.com", "URL of https"},
		{"issuer", "", "URL of https"},
		{"issuer", issuer.URL + "/other", "ask the issuer"},
		{"client-id", "", "client-id"},
		{"ca.crt", "no certificate", "no certificate"},
	} {
		was, err := os.ReadFile(filepath.Join(dir, bad.name))
		if err != nil {
			t.Fatal(err)
		}
		change(bad.name, bad.text)
		if to, err := begin(); to != "" || err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s %q: sent to %q, %v", bad.name, bad.text, to, err)
		}
		change(bad.name, string(was))
	}
	change("client-id", "another")
	if to, err := begin(); err != nil || mustParse(t, to).Query().Get("client_id") != "another" {
		t.Errorf("after a change: %s, %v", to, err)
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
