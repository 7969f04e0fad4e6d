// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/peerauth"
	page "github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/metrics"
)

func TestOrigins(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"https://weir.example.com": true, "https://10.0.0.1:8443": true, "http://weir.example.com": false, "https://weir.example.com/": false,
		"weir.example.com": false, "https://": false, "https://a@b": false, "https://a?b": false} {
		if err := CheckOrigin(text); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// kept are records of connections between namespaces. As agents of other versions, it does not know
// filters by namespaces.
type kept []*flows.Flow

func (k kept) Records(_ context.Context, f flows.Filter, _ int) (*ask.Found, error) {
	found := &ask.Found{From: "the store of flow records"}
	f.Namespaces = nil
	for _, r := range k {
		if f.Wants(r) {
			found.Flows = append(found.Flows, r)
		}
	}
	return found, nil
}

func connection(from, to string) *flows.Flow {
	return &flows.Flow{Start: time.Unix(50, 0), End: time.Unix(100, 0), Node: "n1", Verdict: flows.Denied, Protocol: "tcp",
		Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: from, Pod: "client-of-" + from, Labels: map[string]string{"of": from}},
		Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Namespace: to, Pod: "server-of-" + to, Port: 80, Labels: map[string]string{"of": to}},
		Ingress:     &events.End{Rule: &events.Rule{Kind: "NetworkPolicy", Name: to + "/in"}}, Rule: &events.Rule{Kind: "NetworkPolicy", Name: to + "/in"}}
}

// certificate writes a server's certificate and key into a folder, as the controller's keeper does
// into the Secret, and returns the authority.
func certificate(t *testing.T, s *apitest.Server, dir string) *x509.CertPool {
	t.Helper()
	keeper := &peerauth.Keeper{Kube: s.As("system:serviceaccount:kube-system:weir-controller", "").Kube, Namespace: deploy.Namespace, Domain: deploy.Namespace + ".svc", Now: time.Now}
	var bundle []byte
	apitest.Eventually(t, 0, "the certificate, with the controller's rights", func() (err error) {
		if bundle, err = keeper.Ensure(t.Context()); err == nil {
			err = keeper.Certify(t.Context(), "weir-ui-tls", "weir-ui.kube-system.svc")
		}
		secret, got := s.Clients.Kube.CoreV1().Secrets(deploy.Namespace).Get(t.Context(), "weir-ui-tls", metav1.GetOptions{})
		if err = errors.Join(err, got); err != nil {
			return err
		}
		for _, name := range []string{"tls.crt", "tls.key"} {
			if len(secret.Data[name]) == 0 {
				return fmt.Errorf("%s is empty", name)
			}
			if err := os.WriteFile(filepath.Join(dir, name), secret.Data[name], 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	return pool
}

// resigned is a token with other claims, signed by a key.
func resigned(t *testing.T, token string, key *rsa.PrivateKey, change func(claims map[string]any)) string {
	t.Helper()
	parts := strings.Split(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	claims := map[string]any{}
	if err = errors.Join(err, json.Unmarshal(text, &claims)); err != nil {
		t.Fatal(err)
	}
	change(claims)
	if text, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(text)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// TestHostilePageOfCluster has a real API server say whose tokens count and what their users may,
// with the rights that are installed: the page in the cluster answers nobody else, and shows a user
// of one namespace nothing of others.
func TestHostilePageOfCluster(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(dir, "sa.key")
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apitest.Start(t, "--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile)
	o := deploy.Defaults()
	o.UI = true
	objects, err := deploy.Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		switch u.GetKind() {
		case "DaemonSet", "Deployment", "PodDisruptionBudget", "APIService":
		default:
			s.Create(u)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		s.Create(apitest.Object("v1", "Namespace", name, nil))
	}
	accounts := s.Clients.Kube.CoreV1().ServiceAccounts
	token := func(namespace, name string, audiences ...string) string {
		var out string
		apitest.Eventually(t, 0, "a token of "+name, func() error {
			got, err := accounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
			if err == nil {
				out = got.Status.Token
			}
			return err
		})
		return out
	}
	user := func(name string) string {
		u := apitest.Object("v1", "ServiceAccount", name, nil)
		u.SetNamespace("a")
		s.Create(u)
		return token("a", name)
	}
	tenant, viewer, nobody, gone := user("tenant"), user("viewer"), user("nobody"), user("gone")
	of := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "a", Name: name}}
	}
	if _, err := s.Clients.Kube.RbacV1().RoleBindings("a").Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Subjects: of("tenant"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "weir-flows-viewer"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Clients.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Subjects: of("viewer"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "weir-viewer"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// The page, as the Deployment runs it: with the token of its service account.
	cfg := rest.AnonymousClientConfig(s.Config)
	cfg.BearerToken = token(deploy.Namespace, "weir-ui")
	cfg.QPS, cfg.Burst = serveQPS, serveBurst
	own, err := clientset.New(cfg, "weir-test")
	if err != nil {
		t.Fatal(err)
	}
	serve := &serving{certDir: dir, program: Program{Status: func(ctx context.Context, c *clientset.Clients) (*page.Cluster, error) {
		list, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return &page.Cluster{Components: []string{fmt.Sprint(len(list.Items), " nodes")}}, nil
	}}}
	roots := certificate(t, s, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const origin = "https://weir-ui.kube-system.svc"
	records := kept{connection("a", "a"), connection("a", "b"), connection("b", "a"), connection("b", "c"), connection("c", "c")}
	log := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		guard := access.New(own.Kube)
		users := serve.sessions(guard, records, cfg, deploy.Namespace, log)
		measured := metrics.New(users.Sessions)
		ended <- serve.serve(ctx, l, measured.Handler(guard, own.Kube, measured.Requests(handler(users, serveOrigins, log)), log), log)
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	browser := func() *http.Client {
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Client{Timeout: time.Minute, Jar: jar, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, l.Addr().String())
			}}}
	}
	do := func(c *http.Client, method, path, body string, header ...string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, origin+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	logIn := func(c *http.Client, token string) int {
		text, err := json.Marshal(map[string]string{"token": token})
		if err != nil {
			t.Fatal(err)
		}
		code, _ := do(c, http.MethodPost, page.SessionPath, string(text))
		return code
	}
	questions := [][3]string{{"GET", "/api/flows", ""}, {"GET", "/api/cluster", ""}, {"GET", "/api/policies", ""}, {"POST", "/api/why", `{"source":"a/x","target":"b/y:80"}`}}

	t.Run("tokens", func(t *testing.T) {
		hostile.Record(t, "a token for another audience, of another key, that has expired or was taken back logs in to the cluster's page", hostile.Browser, hostile.ControlPlane, hostile.Both)
		if err := accounts("a").Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		another, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		for what, token := range map[string]string{
			"nothing":            "",
			"another audience":   token("a", "viewer", "weir-controller.kube-system.svc"),
			"an agent's token":   token(deploy.Namespace, "weir-node", "weir-flows.kube-system.svc"),
			"a deleted account":  gone,
			"a text":             "admin",
			"no signature":       viewer[:strings.LastIndexByte(viewer, '.')+1],
			"another signature":  resigned(t, viewer, another, func(map[string]any) {}),
			"an expired one":     resigned(t, viewer, key, func(c map[string]any) { c["iat"], c["nbf"], c["exp"] = 1e9, 1e9, 1e9+600 }),
			"one of the future":  resigned(t, viewer, key, func(c map[string]any) { c["nbf"] = time.Now().Add(time.Hour).Unix() }),
			"another's identity": resigned(t, viewer, another, func(c map[string]any) { c["sub"] = "system:serviceaccount:kube-system:weir-ui" }),
		} {
			c := browser()
			code := logIn(c, token)
			for ; code == http.StatusTooManyRequests; code = logIn(c, token) { // one a second is looked at
				time.Sleep(200 * time.Millisecond)
			}
			if code != http.StatusUnauthorized {
				t.Errorf("%s: the log-in is answered by %d", what, code)
			}
			for _, q := range questions {
				for _, header := range [][]string{nil, {"Authorization", "Bearer " + token}} {
					code, text := do(c, q[0], q[1], q[2], header...)
					if code != http.StatusUnauthorized && (code != http.StatusTooManyRequests || header == nil) {
						t.Errorf("%s: %s: %d %s", what, q[1], code, text)
					}
				}
			}
		}
	})
	// Who guessed wrong often waits a little.
	person := func(token string) *http.Client {
		c := browser()
		apitest.Eventually(t, 0, "a log-in", func() error {
			if code := logIn(c, token); code != http.StatusOK {
				return fmt.Errorf("status %d", code)
			}
			return nil
		})
		return c
	}
	if key, is := resigned(t, viewer, key, func(map[string]any) {}), logIn(person(viewer), viewer); key == "" || is != http.StatusOK {
		t.Error("the test's key is not that of the API server")
	}
	t.Run("metrics", func(t *testing.T) {
		if code, text := do(browser(), "GET", metrics.Path, "", "Authorization", "Bearer "+tenant); code != http.StatusForbidden {
			t.Errorf("the tenant gets metrics: %d %s", code, text)
		}
		if _, err := s.Clients.Kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scrape"},
			Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{metrics.Path}, Verbs: []string{"get"}}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Clients.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "scrape"}, Subjects: of("viewer"),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "scrape"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		apitest.Eventually(t, 0, "the metrics", func() error {
			if code, text := do(browser(), "GET", metrics.Path, "", "Authorization", "Bearer "+viewer); code != http.StatusOK || !strings.Contains(text, "weir_ui_sessions") {
				return fmt.Errorf("%d %s", code, text)
			}
			return nil
		})
	})
	t.Run("namespaces", func(t *testing.T) {
		hostile.Record(t, "a user of one namespace reads on the cluster's page about flows, policies and nodes of others", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		c := person(tenant)
		code, text := do(c, "GET", "/api/flows", "")
		for _, want := range []string{`"client-of-a"`, `"server-of-a"`, `"server-of-b"`, `"client-of-b"`, "a/in"} {
			if code != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("the tenant does not see %s: %d %s", want, code, text)
			}
		}
		for _, secret := range []string{"of-c", "b/in", `"of":`} {
			if strings.Contains(text, secret) {
				t.Errorf("the tenant sees %s: %s", secret, text)
			}
		}
		for _, query := range []string{"policy=b/in", "from=c", "to=c", "from=b&to=c", "policy=in&to=b", "namespaces=c", "namespaces=b,c&to=c"} {
			if code, text := do(c, "GET", "/api/flows?"+query, ""); code != http.StatusOK || strings.Contains(text, `"verdict"`) {
				t.Errorf("the tenant asks for %s: %d %s", query, code, text)
			}
		}
		if code, text := do(c, "GET", "/api/cluster", ""); code != http.StatusForbidden || strings.Contains(text, "weir-ui\"") {
			t.Errorf("the tenant asks how nodes are: %d %s", code, text)
		}
		if code, text := do(c, "POST", "/api/why", `{"source":"b/x","target":"c/y:80"}`); code != http.StatusForbidden {
			t.Errorf("the tenant asks why: %d %s", code, text)
		}
		if code, text := do(c, "GET", "/api/policies", ""); code != http.StatusOK || !strings.Contains(text, "the right to list") {
			t.Errorf("the tenant's policies: %d %s", code, text)
		}
		for _, header := range []string{"Impersonate-User", "X-Remote-User"} {
			if code, text := do(c, "GET", "/api/flows", "", header, "system:admin"); code != http.StatusOK || strings.Contains(text, "of-c") {
				t.Errorf("%s: %d %s", header, code, text)
			}
		}
		c = person(nobody)
		for _, q := range questions {
			code, text := do(c, q[0], q[1], q[2])
			if wants := q[1] != "/api/policies"; wants && code != http.StatusForbidden || bytes.Contains([]byte(text), []byte("of-a")) {
				t.Errorf("nobody asks %s: %d %s", q[1], code, text)
			}
		}
	})
	c := person(viewer)
	if code, text := do(c, "GET", "/api/flows", ""); code != http.StatusOK || strings.Count(text, `"verdict"`) != len(records) {
		t.Errorf("who may see all: %d %s", code, text)
	}
	if code, text := do(c, "GET", "/api/cluster", ""); code != http.StatusOK || !strings.Contains(text, "0 nodes") {
		t.Errorf("who may see all: %d %s", code, text)
	}
	if code, _ := do(c, "DELETE", page.SessionPath, ""); code != http.StatusOK {
		t.Errorf("the log-out: %d", code)
	}
	if code, text := do(c, "GET", "/api/flows", ""); code != http.StatusUnauthorized {
		t.Errorf("after the log-out: %d %s", code, text)
	}
}
