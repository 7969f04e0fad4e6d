// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
)

const (
	agentUser = "system:serviceaccount:kube-system:weir-node"
	audience  = serverName
)

// saysOf is what an API server says of an agent's token, changed.
func saysOf(change func(*authenticationv1.TokenReviewStatus)) *authenticationv1.TokenReviewStatus {
	s := &authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{audience}, User: authenticationv1.UserInfo{Username: agentUser,
		Extra: map[string]authenticationv1.ExtraValue{extraNode: {"n1"}, extraPod: {"uid-1"}}}}
	change(s)
	return s
}

func reviewer(t *testing.T, s *authenticationv1.TokenReviewStatus) *Reviewer {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if len(asked.Spec.Audiences) != 1 || asked.Spec.Audiences[0] != audience {
			t.Errorf("asked for the audiences %q", asked.Spec.Audiences)
		}
		return true, &authenticationv1.TokenReview{Status: *s}, nil
	})
	return NewReviewer(kube, agentUser, audience)
}

var caller = netip.MustParseAddr("192.0.2.1")

func TestHostileTokens(t *testing.T) {
	got, err := reviewer(t, saysOf(func(*authenticationv1.TokenReviewStatus) {})).Review(t.Context(), caller, "token")
	if err != nil || got != (Peer{Node: "n1", PodUID: "uid-1"}) {
		t.Fatalf("an agent's token: %+v %v", got, err)
	}
	for _, attack := range []struct {
		name, actor string
		change      func(*authenticationv1.TokenReviewStatus)
	}{
		{"a token that has expired, or whose pod is gone, answers for a node", hostile.Node, func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }},
		{"a token for the API server that was stolen answers for a node", hostile.Node, func(s *authenticationv1.TokenReviewStatus) {
			s.Audiences = []string{"https://kubernetes.default.svc"}
		}},
		{"an API server that knows no audiences takes every token for an agent's", hostile.Operator, func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }},
		{"a tenant's service account answers for a node", hostile.Tenant, func(s *authenticationv1.TokenReviewStatus) {
			s.User.Username = "system:serviceaccount:shop:weir-node"
		}},
		{"a token of the agents' account that names no node answers for every node", hostile.Node, func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, extraNode) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			hostile.Record(t, attack.name, attack.actor, hostile.ControlPlane, hostile.Both)
			if p, err := reviewer(t, saysOf(attack.change)).Review(t.Context(), caller, "token"); !errors.Is(err, ErrToken) {
				t.Errorf("taken as %+v: %v", p, err)
			}
		})
	}
}

// A caller with many wrong tokens neither asks the API server for each at once, nor keeps other
// callers from being asked about.
func TestHostileManyTokens(t *testing.T) {
	hostile.Record(t, "one caller with many wrong tokens keeps the API server busy and agents waiting", hostile.Pod, hostile.ControlPlane, hostile.Both)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		asked <- struct{}{}
		if review.Spec.Token != "good" {
			<-release
		}
		review.Status = *saysOf(func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = review.Spec.Token == "good" })
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	r := NewReviewer(kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}), agentUser, audience)
	held := make(chan error, 1)
	go func() {
		_, err := r.Review(context.Background(), caller, "bad")
		held <- err
	}()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for range 50 {
		if _, err := r.Review(ctx, caller, "bad"); !errors.Is(err, ErrBusy) {
			close(release)
			t.Fatalf("asked about while another was under way: %v", err)
		}
	}
	if _, err := r.Review(ctx, netip.MustParseAddr("192.0.2.2"), "good"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	close(release)
	if err := <-held; !errors.Is(err, ErrToken) {
		t.Errorf("the first: %v", err)
	}
	if n := len(asked); n != 1 {
		t.Errorf("%d more questions, want 1", n)
	}
}

// Pods with an address each send wrong tokens, and the API server is slow: agents of nodes are
// asked about all the same.
func TestHostileTokensOfManyPods(t *testing.T) {
	hostile.Record(t, "wrong tokens of many pods keep nodes' agents from connecting", hostile.Pod, hostile.ControlPlane, hostile.Both)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.31.1.8"}}}}
	r := NewReviewer(fake.NewClientset(node), agentUser, audience)
	for i := range 2 * maxReviews {
		if got, want := r.begin(t.Context(), netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})), i < maxReviews; got != want {
			t.Errorf("question %d of pods: %v", i, got)
		}
	}
	if !r.begin(t.Context(), netip.MustParseAddr("::ffff:172.31.1.8")) {
		t.Error("a node's agent is not asked about")
	}
	if r.begin(t.Context(), netip.MustParseAddr("172.31.1.9")) {
		t.Error("what is no node's address counts as one")
	}
	for i := range maxReviews {
		r.end(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}))
	}
	if !r.begin(t.Context(), netip.MustParseAddr("10.244.1.1")) {
		t.Error("places are not given back")
	}
}

// proxied makes certificates of authorities, and what the API server publishes.
type proxied struct {
	t    *testing.T
	now  time.Time
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newProxied(t *testing.T) *proxied {
	t.Helper()
	p := &proxied{t: t, now: time.Unix(1.8e9, 0)}
	p.cert, p.key = p.sign("front-proxy-ca", nil, true, 24*time.Hour)
	return p
}

func (p *proxied) sign(name string, usage []x509.ExtKeyUsage, ca bool, life time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: p.now.Add(-time.Hour), NotAfter: p.now.Add(life), ExtKeyUsage: usage,
		IsCA: ca, BasicConstraintsValid: true}
	parent, by := template, key
	if p.cert != nil {
		parent, by = p.cert, p.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	return cert, key
}

func (p *proxied) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw}))
}

func (p *proxied) publishes() map[string]string {
	return map[string]string{"requestheader-client-ca-file": p.pem(), "client-ca-file": "another", "requestheader-allowed-names": `["front-proxy-client"]`,
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`}
}

func (p *proxied) front(data map[string]string) (*FrontProxy, error) {
	trust, err := readProxyTrust(data)
	return &FrontProxy{Now: func() time.Time { return p.now }, trust: trust}, err
}

// forged is a request that says that an administrator asks.
func forged(certs ...*x509.Certificate) *http.Request {
	return &http.Request{TLS: &tls.ConnectionState{PeerCertificates: certs}, Header: http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-A%2fb": {"c"}}}
}

func TestHostileForgedUsers(t *testing.T) {
	p := newProxied(t)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	front, err := p.front(p.publishes())
	if err != nil {
		t.Fatal(err)
	}
	good, _ := p.sign("front-proxy-client", client, false, time.Hour)
	if u, err := front.User(forged(good)); err != nil || u.Name != "admin" || len(u.Groups) != 1 || u.Extra["a/b"][0] != "c" {
		t.Fatalf("the API server's: %+v %v", u, err)
	}
	user, _ := p.sign("alice", client, false, time.Hour)
	server, _ := p.sign("front-proxy-client", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, false, time.Hour)
	old, _ := p.sign("front-proxy-client", client, false, -time.Minute)
	foreign, _ := newProxied(t).sign("front-proxy-client", client, false, time.Hour)
	for _, attack := range []struct {
		name, actor string
		shows       []*x509.Certificate
	}{
		{"a pod asks the controller as a user that it names, without a certificate", hostile.Pod, nil},
		{"a host asks the controller as a user that it names, with a certificate of its own authority", hostile.Link, []*x509.Certificate{foreign}},
		{"a user with a certificate of the front proxy's authority asks as another user", hostile.Tenant, []*x509.Certificate{user}},
		{"an expired certificate of the front proxy is used to ask as any user", hostile.Node, []*x509.Certificate{old}},
		{"a server's certificate of the front proxy's authority is used to ask as any user", hostile.Node, []*x509.Certificate{server}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			hostile.Record(t, attack.name, attack.actor, hostile.ControlPlane, hostile.Both)
			if u, err := front.User(forged(attack.shows...)); !errors.Is(err, ErrNotProxied) {
				t.Errorf("taken for %+v: %v", u, err)
			}
		})
	}
}

// An API server whose users have certificates of the authority of its front proxy: each of them
// could say to be anybody.
func TestHostileSharedFrontProxy(t *testing.T) {
	hostile.Record(t, "users whose certificates are of the front proxy's authority ask as anybody", hostile.Operator, hostile.ControlPlane, hostile.Both)
	p := newProxied(t)
	data := p.publishes()
	data["client-ca-file"], data["requestheader-allowed-names"] = data["requestheader-client-ca-file"], "[]"
	front, err := p.front(data)
	user, _ := p.sign("alice", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, false, time.Hour)
	if u, asked := front.User(forged(user)); err == nil || asked == nil {
		t.Errorf("taken: %+v %v", u, err)
	}
	for _, key := range []string{"requestheader-client-ca-file", "requestheader-username-headers"} {
		data := p.publishes()
		delete(data, key)
		if _, err := p.front(data); err == nil {
			t.Errorf("without %s: taken", key)
		}
	}
}
