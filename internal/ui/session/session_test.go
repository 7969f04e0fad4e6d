// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/oidc"
	"github.com/weir-net/weir/internal/ui/oidc/oidctest"
	why "github.com/weir-net/weir/internal/why/ask"
)

// answering answers each question with the user's name.
type answering struct {
	user string
	wait chan struct{} // nil = at once
}

func (a answering) Records(context.Context, flows.Filter, int) (*ask.Found, error) {
	if a.wait != nil {
		<-a.wait
	}
	return &ask.Found{From: "records of " + a.user}, nil
}

func (a answering) Cluster(context.Context) (*ui.Cluster, error) {
	return &ui.Cluster{Components: []string{"cluster of " + a.user}}, nil
}

func (a answering) Policies(context.Context) (*ui.Policies, error) {
	return &ui.Policies{Missing: []string{"policies of " + a.user}}, nil
}

func (a answering) Why(context.Context, ui.Question) (*why.Story, error) {
	return &why.Story{Source: "why of " + a.user}, nil
}

const (
	host   = "weir.example.com"
	origin = "https://" + host
)

// served is a page at which users of tokens "token-NAME" log in.
type served struct {
	t      *testing.T
	keeper *Keeper
	page   http.Handler
	now    time.Time
	token  string // by which questions of the latest session are asked
	wait   chan struct{}

	mu   sync.Mutex
	gone map[string]bool // tokens that count no more
	away error
}

func serve(t *testing.T) *served { return serveAt(t, nil) }

// serveAt is serve where users log in at an issuer, too; nil = they do not. Tokens of the issuer
// count until they end, by the time of the page.
func serveAt(t *testing.T, issuer *oidctest.Issuer) *served {
	t.Helper()
	s := &served{t: t, now: time.Unix(1e9, 0), gone: map[string]bool{}}
	var at *oidc.Issuer
	if issuer != nil {
		s.now, at = time.Now(), oidc.New(issuer.Dir(t))
	}
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.Status.User.Username, r.Status.Authenticated = strings.CutPrefix(r.Spec.Token, "token-")
		if issuer != nil && !r.Status.Authenticated {
			user, until, ok := issuer.Subject(r.Spec.Token)
			r.Status.User.Username, r.Status.Authenticated = user, ok && s.now.Before(until)
		}
		r.Status.Authenticated = r.Status.Authenticated && !s.gone[r.Spec.Token]
		return true, r, s.away
	})
	log := slog.New(slog.DiscardHandler)
	s.keeper = New(access.New(kube), func(token string, u *peerauth.User) (ui.Source, error) {
		if issuer == nil && token != "token-"+u.Name {
			t.Errorf("%s has the token %s", u.Name, token)
		}
		s.token = token
		return answering{u.Name, s.wait}, nil
	}, at, log)
	s.keeper.now = func() time.Time { return s.now }
	s.page = ui.New(ui.Config{Origins: []string{origin}, Access: s.keeper.Access, Session: s.keeper, Log: log})
	return s
}

// ask asks as the page in a browser does, but for what change does.
func (s *served) ask(method, path, body, cookie string, change ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = host
	r.Header.Set("Origin", origin)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if cookie != "" {
		r.AddCookie(&http.Cookie{Name: Cookie, Value: cookie})
	}
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	return w.Result()
}

// logIn returns the cookie.
func (s *served) logIn(user string) string {
	s.t.Helper()
	r := s.ask(http.MethodPost, ui.SessionPath, `{"token":" token-`+user+`\n"}`, "")
	if r.StatusCode != http.StatusOK || len(r.Cookies()) != 1 {
		s.t.Fatalf("%d: %s", r.StatusCode, text(s.t, r))
	}
	return r.Cookies()[0].Value
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

// questions are all that the page asks, with what is in the answer.
var questions = []struct{ method, path, body, says string }{
	{"GET", "/api/cluster", "", "cluster of "}, {"GET", "/api/policies", "", "policies of "}, {"GET", "/api/flows", "", "records of "},
	{"POST", "/api/why", `{"source":"a/b","target":"c/d:80"}`, "why of "},
}

// Each user gets answers of the user's own, until the log-out.
func TestLogIn(t *testing.T) {
	t.Parallel()
	s := serve(t)
	r := s.ask(http.MethodPost, ui.SessionPath, `{"token":"token-ann"}`, "")
	if got := text(t, r); r.StatusCode != http.StatusOK || got != `{"login":true,"user":"ann"}` {
		t.Fatalf("%d %s", r.StatusCode, got)
	}
	c := r.Cookies()[0]
	if c.Name != "__Host-weir-session" || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || len(c.Value) < 20 || strings.Contains(c.Value, "token") {
		t.Errorf("%+v", c)
	}
	ann, bob := c.Value, s.logIn("bob")
	for cookie, user := range map[string]string{ann: "ann", bob: "bob"} {
		for _, q := range questions {
			if r := s.ask(q.method, q.path, q.body, cookie); r.StatusCode != http.StatusOK || !strings.Contains(text(t, r), q.says+user) {
				t.Errorf("%s: %s: %d", user, q.path, r.StatusCode)
			}
		}
	}
	if r := s.ask(http.MethodDelete, ui.SessionPath, "", ann); r.StatusCode != http.StatusOK || r.Cookies()[0].MaxAge >= 0 {
		t.Errorf("log-out: %d %v", r.StatusCode, r.Cookies())
	}
	for _, q := range questions {
		if r := s.ask(q.method, q.path, q.body, ann); r.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s after the log-out: %d", q.path, r.StatusCode)
		}
	}
	for cookie, want := range map[string]string{ann: `{"login":true}`, bob: `{"login":true,"user":"bob"}`, "": `{"login":true}`} {
		if got := text(t, s.ask(http.MethodGet, ui.SessionPath, "", cookie)); got != want {
			t.Errorf("%s", got)
		}
	}
	if r := s.ask(http.MethodPut, ui.SessionPath, "", ann); r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%d", r.StatusCode)
	}
	// A proxy in front that logs users in.
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	for range 3 {
		if r := s.ask(http.MethodGet, "/api/cluster", "", "", bearer("token-eve")); !strings.Contains(text(t, r), "cluster of eve") {
			t.Errorf("%d", r.StatusCode)
		}
	}
	if n := len(s.keeper.sessions); n != 2 {
		t.Errorf("%d sessions", n)
	}
	if r := s.ask(http.MethodGet, "/api/cluster", "", bob, bearer("wrong")); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong token with somebody's cookie: %d", r.StatusCode)
	}
}

// TestHostilePageWithoutLogIn: who has no session gets no answer, whatever is asked.
func TestHostilePageWithoutLogIn(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "somebody asks the cluster's page without a log-in, by a wrong token or a made-up cookie", hostile.Browser, hostile.ControlPlane, hostile.Both)
	s := serve(t)
	s.logIn("ann")
	for _, q := range questions {
		for what, change := range map[string]func(*http.Request){
			"nothing":            func(*http.Request) {},
			"an empty cookie":    func(r *http.Request) { r.Header.Set("Cookie", Cookie+"=") },
			"a made-up cookie":   func(r *http.Request) { r.Header.Set("Cookie", Cookie+"=AAAAAAAAAAAAAAAAAAAAAAAAAA") },
			"a token as cookie":  func(r *http.Request) { r.Header.Set("Cookie", Cookie+"=token-ann") },
			"another cookie":     func(r *http.Request) { r.Header.Set("Cookie", "weir-session=token-ann") },
			"a wrong token":      func(r *http.Request) { r.Header.Set("Authorization", "Bearer wrong") },
			"no token":           func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") },
			"another scheme":     func(r *http.Request) { r.Header.Set("Authorization", "Basic token-ann") },
			"a user as a header": func(r *http.Request) { r.Header.Set("Impersonate-User", "ann"); r.Header.Set("X-Remote-User", "ann") },
		} {
			r := s.ask(q.method, q.path, q.body, "", change)
			if got := text(t, r); r.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(got, `{"error":`) || strings.Contains(got, "ann") {
				t.Errorf("%s: %s: %d %s", q.path, what, r.StatusCode, got)
			}
		}
	}
	for _, body := range []string{"", "{", `{"token":""}`, `{"token":"wrong"}`, `{"tokens":"token-ann"}`, `{"token":"token-ann","user":"bob"}`, `["token-ann"]`, `{"token":"` + strings.Repeat("x", 70_000) + `"}`} {
		if r := s.ask(http.MethodPost, ui.SessionPath, body, ""); r.StatusCode < 400 || len(r.Cookies()) > 0 {
			t.Errorf("%.30s: %d", body, r.StatusCode)
		}
	}
}

// TestHostileLogInByOtherPage: a web page of somebody else logs nobody in or out, and asks nothing
// with the user's cookie.
func TestHostileLogInByOtherPage(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a web page of another origin asks the cluster's page with a user's session, or logs the user in as somebody else", hostile.Browser, hostile.ControlPlane, hostile.Both)
	s := serve(t)
	ann := s.logIn("ann")
	all := append(questions[:len(questions):len(questions)], struct{ method, path, body, says string }{"POST", ui.SessionPath, `{"token":"token-eve"}`, ""},
		struct{ method, path, body, says string }{"DELETE", ui.SessionPath, "", ""})
	for _, q := range all {
		for what, change := range map[string]func(*http.Request){
			"another origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
			"another port":   func(r *http.Request) { r.Header.Set("Origin", origin+":8443") },
			"no encryption":  func(r *http.Request) { r.Header.Set("Origin", "http://"+host) },
			"no origin":      func(r *http.Request) { r.Header.Del("Origin"); r.Header.Set("Sec-Fetch-Site", "cross-site") },
			"another host":   func(r *http.Request) { r.Host = "evil.example" },
		} {
			r := s.ask(q.method, q.path, q.body, ann, change)
			if got := text(t, r); r.StatusCode < 400 || len(r.Cookies()) > 0 || strings.Contains(got, "ann") {
				t.Errorf("%s %s: %s: %d %s", q.method, q.path, what, r.StatusCode, got)
			}
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		r := s.ask(method, ui.SessionPath, `{"token":"token-eve"}`, ann, func(r *http.Request) { r.Header.Del("Origin"); r.Header.Del("Sec-Fetch-Site") })
		if r.StatusCode != http.StatusForbidden || len(r.Cookies()) > 0 {
			t.Errorf("%s without an origin: %d", method, r.StatusCode)
		}
	}
	if r := s.ask(http.MethodGet, "/api/cluster", "", ann); r.StatusCode != http.StatusOK {
		t.Errorf("the session: %d", r.StatusCode)
	}
}

// TestHostileSessionOutlives: a session ends with its token, by time and when nobody uses it; it is
// not the next user's.
func TestHostileSessionOutlives(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a user whose token was taken back, or has expired, goes on with the session", hostile.Browser, hostile.ControlPlane, hostile.Both)
	s := serve(t)
	code := func(cookie string) int { return s.ask(http.MethodGet, "/api/cluster", "", cookie).StatusCode }
	ann := s.logIn("ann")
	s.gone["token-ann"] = true
	if got := code(ann); got != http.StatusOK {
		t.Errorf("within the minute: %d", got)
	}
	s.now = s.now.Add(reviewEvery)
	if got := code(ann); got != http.StatusUnauthorized {
		t.Errorf("a token that counts no more: %d", got)
	}
	s.gone["token-ann"] = false
	if got := code(ann); got != http.StatusUnauthorized {
		t.Errorf("a session that has ended goes on: %d", got)
	}
	bob := s.logIn("bob")
	s.now = s.now.Add(idle - time.Second)
	if got := code(bob); got != http.StatusOK {
		t.Errorf("in use: %d", got)
	}
	s.away = errors.New("away")
	s.now = s.now.Add(reviewEvery)
	if got := code(bob); got != http.StatusServiceUnavailable {
		t.Errorf("the API server is away: %d", got)
	}
	s.away = nil
	if got := code(bob); got != http.StatusOK {
		t.Errorf("it is back: %d", got)
	}
	s.now = s.now.Add(idle)
	if got := code(bob); got != http.StatusUnauthorized {
		t.Errorf("idle: %d", got)
	}
	eve := s.logIn("eve")
	for range int(longest/idle)*2 + 1 {
		s.now = s.now.Add(idle / 2)
		code(eve)
	}
	if got := code(eve); got != http.StatusUnauthorized {
		t.Errorf("after the longest time: %d", got)
	}
}

// TestHostileManySessions: sessions, questions at a time and wrong tokens are bounded.
func TestHostileManySessions(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a user of the cluster's page, or somebody who guesses tokens, takes its memory and the API server's time", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	s := serve(t)
	s.wait = make(chan struct{})
	bob := s.logIn("bob")
	var cookies []string
	for range mostOfUser + 1 {
		s.now = s.now.Add(time.Millisecond)
		cookies = append(cookies, s.logIn("ann"))
	}
	for i, want := range map[int]int{0: http.StatusUnauthorized, 1: http.StatusOK, mostOfUser: http.StatusOK} {
		if r := s.ask(http.MethodGet, "/api/cluster", "", cookies[i]); r.StatusCode != want {
			t.Errorf("session %d: %d", i, r.StatusCode)
		}
	}
	if n := len(s.keeper.sessions); n != mostOfUser+1 {
		t.Errorf("%d sessions", n)
	}
	var asked sync.WaitGroup
	for i := range askingOfUser {
		asked.Go(func() { s.ask(http.MethodGet, "/api/flows", "", cookies[i+1]) })
	}
	for busy := false; !busy; time.Sleep(time.Millisecond) {
		s.keeper.mu.Lock()
		busy = s.keeper.asking["ann"] == askingOfUser
		s.keeper.mu.Unlock()
	}
	if r := s.ask(http.MethodGet, "/api/cluster", "", cookies[5]); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more question: %d", r.StatusCode)
	}
	if r := s.ask(http.MethodGet, "/api/cluster", "", bob); r.StatusCode != http.StatusOK {
		t.Errorf("another user's: %d", r.StatusCode)
	}
	close(s.wait)
	asked.Wait()
	if r := s.ask(http.MethodGet, "/api/cluster", "", cookies[5]); r.StatusCode != http.StatusOK || s.keeper.total != 0 {
		t.Errorf("afterwards: %d", r.StatusCode)
	}
	refused := 0
	for i := range 100 {
		if r := s.ask(http.MethodPost, ui.SessionPath, fmt.Sprintf(`{"token":"guess-%d"}`, i), ""); r.StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused < 50 {
		t.Errorf("%d of 100 guesses are held up", refused)
	}
	if r := s.ask(http.MethodGet, "/api/cluster", "", bob); r.StatusCode != http.StatusOK {
		t.Errorf("a session, while somebody guesses: %d", r.StatusCode)
	}
}
