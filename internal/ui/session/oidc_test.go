// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/oidc"
	"github.com/weir-net/weir/internal/ui/oidc/oidctest"
)

// navigates is how a browser asks that follows a redirection from another site.
func navigates(r *http.Request) {
	r.Header.Del("Origin")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Sec-Fetch-Mode", "navigate")
	r.Header.Set("Sec-Fetch-Dest", "document")
}

// atIssuer follows a browser to the issuer, and returns the path to which that sends it back, and
// the cookie that it brings there.
func atIssuer(t *testing.T, s *served, issuer *oidctest.Issuer) (path string, begun *http.Cookie) {
	t.Helper()
	r := s.ask(http.MethodGet, ui.OIDCPath, "", "")
	to := r.Header.Get("Location")
	if r.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, issuer.URL) || len(r.Cookies()) != 1 {
		t.Fatalf("%d, to %q, cookies %v", r.StatusCode, to, r.Cookies())
	}
	client := issuer.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	got, err := client.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	path, is := strings.CutPrefix(got.Header.Get("Location"), origin)
	if !is {
		t.Fatalf("the issuer sends the browser to %q", got.Header.Get("Location"))
	}
	return path, r.Cookies()[0]
}

// comesBack is the answer to a browser that comes back from the issuer: where it is sent, and the
// cookie of its session.
func comesBack(s *served, path string, begun *http.Cookie) (to, session string) {
	r := s.ask(http.MethodGet, path, "", "", navigates, func(r *http.Request) { r.AddCookie(begun) })
	for _, c := range r.Cookies() {
		if c.Name == Cookie {
			session = c.Value
		}
	}
	return r.Header.Get("Location"), session
}

// A user who logs in at the issuer has a session as one with a token has, for longer than the
// issuer's first token counts.
func TestOIDC(t *testing.T) {
	t.Parallel()
	issuer := oidctest.Start(t)
	s := serveAt(t, issuer)
	issuer.Set("ann", 5*time.Minute, false, "")
	path, begun := atIssuer(t, s, issuer)
	to, ann := comesBack(s, path, begun)
	if to != "/" || ann == "" {
		t.Fatalf("sent to %q with session %q", to, ann)
	}
	says := func(want string) {
		t.Helper()
		if got := text(t, s.ask(http.MethodGet, ui.SessionPath, "", ann)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	says(`{"login":true,"oidc":true,"user":"ann"}`)
	first := s.token
	s.now = s.now.Add(2 * time.Minute)
	if says(`{"login":true,"oidc":true,"user":"ann"}`); s.token != first {
		t.Error("there is a later token long before the first one ends")
	}
	s.now = s.now.Add(2 * time.Minute)
	if says(`{"login":true,"oidc":true,"user":"ann"}`); s.token == first {
		t.Error("there is no later token just before the first one ends")
	}
	if r := s.ask(http.MethodGet, "/api/cluster", "", ann); r.StatusCode != http.StatusOK || !strings.Contains(text(t, r), "cluster of ann") {
		t.Errorf("a question with the later token: %d", r.StatusCode)
	}
	// Without an issuer that answers the session goes on when it does again.
	issuer.Set("ann", 5*time.Minute, true, "")
	s.now = s.now.Add(4 * time.Minute)
	if r := s.ask(http.MethodGet, "/api/cluster", "", ann); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("while the issuer is away: %d", r.StatusCode)
	}
	issuer.Set("ann", time.Hour, false, "")
	says(`{"login":true,"oidc":true,"user":"ann"}`)
}

// TestHostileLaterTokenOfAnother: a session is never another user's, whoever the issuer says it is.
func TestHostileLaterTokenOfAnother(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a session that began at an issuer (OpenID Connect) becomes another user's by a later token", hostile.Browser, hostile.ControlPlane, hostile.Both)
	issuer := oidctest.Start(t)
	s := serveAt(t, issuer)
	issuer.Set("ann", 5*time.Minute, false, "")
	path, begun := atIssuer(t, s, issuer)
	_, ann := comesBack(s, path, begun)
	issuer.Becomes("bob")
	s.now = s.now.Add(4 * time.Minute)
	if r := s.ask(http.MethodGet, "/api/cluster", "", ann); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d %s", r.StatusCode, text(t, r))
	}
}

// What did not end in a log-in says so at the page, and begins no session.
func TestOIDCFails(t *testing.T) {
	t.Parallel()
	issuer := oidctest.Start(t)
	s := serveAt(t, issuer)
	_, begun := atIssuer(t, s, issuer)
	if to, session := comesBack(s, ui.OIDCCallbackPath, begun); to != "/#login=begun" || session != "" {
		t.Errorf("without a code: sent to %q, session %q", to, session)
	}
	issuer.Set("", time.Hour, false, "")
	if to, session := logsIn(t, s, issuer); to != "/#login=refused" || session != "" {
		t.Errorf("a user who refuses: sent to %q, session %q", to, session)
	}
	issuer.Set("ann", time.Hour, false, "")
	s.now = s.now.Add(2 * time.Hour) // the API server's clock: its word counts
	if to, session := logsIn(t, s, issuer); to != "/#login=token" || session != "" {
		t.Errorf("a token that the API server does not take: sent to %q, session %q", to, session)
	}
	issuer.Set("ann", time.Hour, true, "")
	if r := serveAt(t, issuer).ask(http.MethodGet, ui.OIDCPath, "", ""); r.Header.Get("Location") != "/#login=away" {
		t.Errorf("an issuer that is away: sent to %q", r.Header.Get("Location"))
	}
}

func logsIn(t *testing.T, s *served, issuer *oidctest.Issuer) (to, session string) {
	t.Helper()
	path, begun := atIssuer(t, s, issuer)
	return comesBack(s, path, begun)
}

// TestHostileIssuersAnswerByOtherPage: other sites lead a browser neither to the issuer nor, but as
// the issuer does, back: not by a frame, an image or a form, and not with what another browser
// asked for.
func TestHostileIssuersAnswerByOtherPage(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a web page of another origin logs a user in as somebody else by an answer of the issuer (OpenID Connect) that another browser asked for", hostile.Browser, hostile.ControlPlane, hostile.Both)
	issuer := oidctest.Start(t)
	s := serveAt(t, issuer)
	path, begun := atIssuer(t, s, issuer)
	for name, c := range map[string]struct {
		path   string
		change func(*http.Request)
	}{
		"begin":      {ui.OIDCPath, navigates},
		"in a frame": {path, func(r *http.Request) { navigates(r); r.Header.Set("Sec-Fetch-Dest", "iframe") }},
		"as an image": {path, func(r *http.Request) {
			navigates(r)
			r.Header.Set("Sec-Fetch-Mode", "no-cors")
			r.Header.Set("Sec-Fetch-Dest", "image")
		}},
		"by a form": {path, func(r *http.Request) { navigates(r); r.Method = http.MethodPost }},
	} {
		if r := s.ask(http.MethodGet, c.path, "", "", c.change, func(r *http.Request) { r.AddCookie(begun) }); r.StatusCode != http.StatusForbidden || len(r.Cookies()) > 0 {
			t.Errorf("%s: %d, cookies %v", name, r.StatusCode, r.Cookies())
		}
	}
	_, other := atIssuer(t, s, issuer)
	if to, session := comesBack(s, path, other); to != "/#login=begun" || session != "" {
		t.Errorf("with what another browser asked for: sent to %q, session %q", to, session)
	}
	none := serve(t)
	for _, path := range []string{ui.OIDCPath, ui.OIDCCallbackPath} {
		if r := none.ask(http.MethodGet, path, "", "", func(r *http.Request) { r.AddCookie(begun) }); r.StatusCode != http.StatusNotFound {
			t.Errorf("%s without an issuer: %d", path, r.StatusCode)
		}
	}
}

// TestOIDCOfAPIServer logs in at an issuer whose tokens a real API server takes, and asks that with
// the user's token and rights.
func TestOIDCOfAPIServer(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	issuer := oidctest.Start(t)
	api := apitest.Start(t, "--oidc-issuer-url="+issuer.URL, "--oidc-client-id="+oidctest.ClientID, "--oidc-ca-file="+issuer.CA(t), "--oidc-username-claim=sub", "--oidc-username-prefix=oidc:", "--oidc-signing-algs=ES256")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}}
	if _, err := api.Clients.Kube.RbacV1().ClusterRoles().Create(context.Background(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ann"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "oidc:ann"}}}
	if _, err := api.Clients.Kube.RbacV1().ClusterRoleBindings().Create(context.Background(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, now: time.Now()}
	log := slog.New(slog.DiscardHandler)
	var theirs *clientset.Clients
	s.keeper = New(access.New(api.Clients.Kube), func(token string, u *peerauth.User) (_ ui.Source, err error) {
		cfg := rest.AnonymousClientConfig(api.Config)
		cfg.Host, cfg.Insecure, cfg.BearerToken = api.Config.Host, true, token
		theirs, err = clientset.New(cfg, "test")
		return answering{user: u.Name}, err
	}, oidc.New(issuer.Dir(t)), log)
	s.page = ui.New(ui.Config{Origins: []string{origin}, Access: s.keeper.Access, Session: s.keeper, Log: log})
	issuer.Set("ann", time.Hour, false, "")
	// The API server asks an issuer for its keys in the background after its start.
	var to, session string
	apitest.Eventually(t, time.Minute, "log-in", func() error {
		to, session = logsIn(t, s, issuer)
		if to != "/" {
			return errTo(to)
		}
		return nil
	})
	if got := text(t, s.ask(http.MethodGet, ui.SessionPath, "", session)); got != `{"login":true,"oidc":true,"user":"oidc:ann"}` {
		t.Error(got)
	}
	apitest.Eventually(t, time.Minute, "the user's rights", func() error { // which the API server learns of by a watch
		_, err := theirs.Kube.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
		return err
	})
	if _, err := theirs.Kube.CoreV1().Secrets("default").List(context.Background(), metav1.ListOptions{}); err == nil {
		t.Error("the user may list Secrets")
	}
}

type errTo string

func (e errTo) Error() string { return "the browser is sent to " + string(e) }
