// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/oidc"
	"github.com/weir-net/weir/internal/ui/oidc/oidctest"
	"github.com/weir-net/weir/internal/ui/session"
	"github.com/weir-net/weir/internal/ui/source"
	"github.com/weir-net/weir/test/ui/browser"
)

// loggedIn serves the page with log-in, by TLS: of the tokens "token-NAME".
// The user "all" sees the flows of all namespaces, others those of the one that they are named for.
func loggedIn(t *testing.T, of *recorded) *httptest.Server { return loggedInAt(t, of, nil) }

// loggedInAt is loggedIn where users log in at an issuer, too; nil = they do not.
func loggedInAt(t *testing.T, of *recorded, issuer *oidctest.Issuer) *httptest.Server {
	t.Helper()
	var at *oidc.Issuer
	if issuer != nil {
		at = oidc.New(issuer.Dir(t))
	}
	kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "batch"}})
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.Status.User.Username, r.Status.Authenticated = strings.CutPrefix(r.Spec.Token, "token-")
		if issuer != nil && !r.Status.Authenticated {
			r.Status.User.Username, _, r.Status.Authenticated = issuer.Subject(r.Spec.Token)
		}
		return true, r, nil
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		r.Status.Allowed = r.Spec.User == "all" || r.Spec.User == r.Spec.ResourceAttributes.Namespace
		return true, r, nil
	})
	log, guard := slog.New(slog.DiscardHandler), access.New(kube)
	sessions := session.New(guard, func(_ string, u *peerauth.User) (ui.Source, error) {
		return scopedSource{recorded: of, records: source.Scoped{From: of, Guard: guard, User: u}}, nil
	}, at, log)
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = ui.New(ui.Config{Origins: []string{"https://" + server.Listener.Addr().String()}, Access: sessions.Access, Session: sessions, Log: log})
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// TestLogIn logs in and out in a browser: with a token that does not count, as a user of one
// namespace, and as one who sees all.
func TestLogIn(t *testing.T) {
	server := loggedIn(t, shop(200))
	p := browser.Start(t, server.Certificate()).Open(t, server.URL+"/flows", wide, high)
	logIn := func(token string) {
		p.Type("input[name=token]", token)
		p.Keys(kb.Enter)
	}
	nothing := func(when string) {
		t.Helper()
		p.Has("main", "Log in")
		if text := p.Text("body"); strings.Contains(text, "pg-") || strings.Contains(text, "worker1") || p.Count(".filters") > 0 {
			t.Errorf("%s, the page shows\n%s", when, text)
		}
	}
	nothing("before the log-in")
	if os.Getenv(browser.ModulesVariable) != "" {
		q := browser.Start(t, server.Certificate()).Open(t, server.URL+"/flows", wide, high)
		q.Unguarded()
		q.Go(server.URL + "/flows")
		q.Has("main", "Log in")
		for _, dark := range []bool{false, true} {
			q.Dark(dark)
			q.Accessible("the log-in")
		}
	}
	logIn("wrong")
	p.Has("[role=alert]", "does not take this token")
	p.Is(`document.querySelector("input[name=token]").value === ""`)
	nothing("after a wrong token")

	logIn("token-shop")
	p.Has("header .user", "shop")
	p.Is(`document.querySelectorAll(".rows .row").length > 0`)
	p.Has(".rows", "shop/cart")
	p.Type("input[name=from]", "batch/report") // to db, which are not the user's
	p.Keys(kb.Enter)
	p.Has("main", "Nothing in this time matches")
	var kept string
	if p.Eval(`document.cookie + JSON.stringify(sessionStorage) + JSON.stringify(localStorage)`, &kept); strings.Contains(kept, "token-") || strings.Contains(kept, session.Cookie) {
		t.Errorf("a script can read %s", kept)
	}
	p.Go(server.URL + "/flows")
	p.Has(".rows", "shop/cart")                                   // the session goes on
	if text := p.Text("main"); strings.Contains(text, "batch/") { // of which all goes to db
		t.Errorf("the user of shop sees %s", text)
	}
	p.Click("button.logout")
	nothing("after the log-out")
	p.Eval("history.back()", nil)
	nothing("after going back")

	logIn("token-all")
	p.Has("header .user", "all")
	p.Go(server.URL + "/flows?from=batch%2Freport")
	p.Has(".rows", "batch/report")
	p.Click("button.logout")
	nothing("after the second log-out")

	// Nobody sees anything who may list flows nowhere.
	logIn("token-nobody")
	p.Has("header .user", "nobody")
	p.Has("main", "the verb list on flows in group live.weir.dev is needed")
	p.Faultless()
}

// TestLogInAtIssuer logs in at an issuer of OpenID Connect, which is another site: by a link, and
// back by redirections. Who is refused there learns why on the page.
func TestLogInAtIssuer(t *testing.T) {
	issuer := oidctest.Start(t)
	server := loggedInAt(t, shop(200), issuer)
	p := browser.Start(t, server.Certificate(), issuer.Certificate()).Open(t, server.URL+"/flows", wide, high)
	issuer.Set("", time.Hour, false, "")
	p.Click("main a.button")
	p.Has("[role=alert]", "The issuer did not log you in")
	p.Is(`location.hash === ""`)
	issuer.Set("shop", time.Hour, false, "")
	p.Click("main a.button")
	p.Has("header .user", "shop")
	p.Go(server.URL + "/flows")
	p.Has(".rows", "shop/cart")
	var kept string
	if p.Eval(`document.cookie + JSON.stringify(sessionStorage) + JSON.stringify(localStorage) + location.href`, &kept); strings.Contains(kept, "eyJ") || strings.Contains(kept, session.Cookie) || strings.Contains(kept, oidc.Cookie) {
		t.Errorf("a script can read %s", kept)
	}
	p.Click("button.logout")
	p.Has("main", "Log in")
	p.Faultless()
}

// scopedSource is a recorded source of which a user sees a part of the records.
type scopedSource struct {
	*recorded
	records source.Scoped
}

func (s scopedSource) Records(ctx context.Context, f flows.Filter, most int) (*ask.Found, error) {
	return s.records.Records(ctx, f, most)
}
