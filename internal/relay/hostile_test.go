// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/agents"
	"github.com/weir-net/weir/internal/relay/live"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// place is a controller that serves, alongside an API server that is played: a token says "NODE
// POD", and the user viewer may ask everything.
type place struct {
	*Relay
	t      *testing.T
	addr   string
	bundle string
	proxy  tls.Certificate // of the API server

	mu   sync.Mutex
	gone map[string]bool // tokens that count no longer
	// connected is called with each agent that connects, unless it is nil.
	connected func(context.Context, *agents.Agent)
}

func newPlace(t *testing.T, every time.Duration) *place {
	t.Helper()
	return newPlaceOf(t, every, nil)
}

// newPlaceOf has another budget of connections than usual, unless it is nil.
func newPlaceOf(t *testing.T, every time.Duration, conns *httplimit.Budget) *place {
	t.Helper()
	p := &place{t: t, gone: map[string]bool{}}
	var published map[string]string
	p.proxy, published = frontProxyOf(t)
	own := metav1.ObjectMeta{Namespace: "kube-system", Name: peerauth.ObjectName}
	kube := fake.NewClientset(&corev1.Secret{ObjectMeta: own}, &corev1.ConfigMap{ObjectMeta: own},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: published})
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.TokenReview{Status: p.review(a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview))}, nil
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).Spec
		w := asked.ResourceAttributes
		may := (asked.User == "viewer" || asked.User == "viewer of n1" && w.Name == "n1") && w.Group == live.Group && w.Resource == live.Resource && live.Verbs()["/"+w.Subresource] == w.Verb && w.Name != ""
		return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: may}}, nil
	})
	keeper := &peerauth.Keeper{Kube: kube, Namespace: "kube-system", Domain: "kube-system.svc", Now: time.Now}
	bundle, err := keeper.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.bundle = string(bundle)
	log := slog.New(slog.DiscardHandler)
	serving := &peerauth.Serving{Kube: kube, Namespace: "kube-system", Name: tunnel.ServerName, Log: log, Now: time.Now}
	front := &peerauth.FrontProxy{Kube: kube, Log: log, Now: time.Now}
	if err := errors.Join(serving.Refresh(t.Context()), front.Refresh(t.Context())); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	p.Relay = New(Config{Kube: kube, Log: log, Proxy: front, Reviewer: peerauth.NewReviewer(kube, agentUser, tunnel.Audience),
		StoreReviewer: peerauth.NewReviewer(kube, storeUser, tunnel.Audience), ReviewEvery: every,
		Connected: func(ctx context.Context, a *agents.Agent) {
			p.mu.Lock()
			do := p.connected
			p.mu.Unlock()
			if do != nil {
				do(ctx, a)
			}
		}})
	if conns != nil {
		p.conns = conns
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, l, serving.Config()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return p
}

func (p *place) review(r *authenticationv1.TokenReview) authenticationv1.TokenReviewStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	user, token := agentUser, r.Spec.Token
	if rest, is := strings.CutPrefix(token, "store:"); is {
		user, token = storeUser, rest
	}
	node, pod, ok := strings.Cut(token, " ")
	return authenticationv1.TokenReviewStatus{Authenticated: ok && !p.gone[r.Spec.Token], Audiences: r.Spec.Audiences, User: authenticationv1.UserInfo{Username: user,
		Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {node}, "authentication.kubernetes.io/pod-uid": {pod}}}}
}

// frontProxyOf makes the certificate of an API server, and what it publishes.
func frontProxyOf(t *testing.T) (tls.Certificate, map[string]string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "front-proxy-client"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, map[string]string{"requestheader-client-ca-file": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`}
}

// ask asks as the API server does for a user; certs are what the caller shows.
func (p *place) ask(user, node, question string, certs ...tls.Certificate) (*http.Response, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(p.bundle))
	transport := &http.Transport{TLSClientConfig: &tls.Config{ServerName: tunnel.ServerName, RootCAs: roots, Certificates: certs}, ForceAttemptHTTP2: true, DisableKeepAlives: true}
	method := http.MethodGet
	if question == "/why" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, "https://"+p.addr+live.Path(node, question), strings.NewReader(""))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"X-Remote-User": {user}, "X-Remote-Group": {"system:masters"}}
	return transport.RoundTrip(req)
}

// answered is what a user gets.
func (p *place) answered(user, node, question string, certs ...tls.Certificate) (int, string) {
	p.t.Helper()
	resp, err := p.ask(user, node, question, certs...)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// connect has an agent answer for as long as the test lasts; the channel says how its connection
// ended.
func (p *place) connect(token string, handler http.Handler) chan error {
	p.t.Helper()
	node, _, _ := strings.Cut(token, " ")
	a := newStandIn(p.t, node, p.addr, p.bundle, token)
	if handler != nil {
		a.handler = handler
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	before := p.of(node)
	go func() { ended <- a.once(ctx) }()
	p.t.Cleanup(cancel)
	await.That(p.t, "the agent of "+node, func() error {
		if now := p.of(node); now == nil || now == before {
			return errors.New("it is not connected")
		}
		return nil
	})
	return ended
}

func (p *place) of(node string) *agents.Agent { return p.Relay.agents.Now(node) }

func TestQuestions(t *testing.T) {
	t.Parallel()
	p := newPlace(t, 0)
	p.connect("n1 pod-1", nil)
	for question, want := range map[string]string{"/status": "status of n1", "/why": "why of n1: ",
		"/bgproutes?prefix=10.0.0.0/8&peer=192.0.2.9&other=x": "routes of n1: peer=192.0.2.9&prefix=10.0.0.0%2F8&sent="} {
		if code, text := p.answered("viewer", "n1", question, p.proxy); code != http.StatusOK || text != want {
			t.Errorf("%s: %d %q", question, code, text)
		}
	}
	resp, err := p.ask("viewer", "n1", "/events", p.proxy)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("events of n1: pod=&type=\n"))
	if _, err := io.ReadFull(resp.Body, line); err != nil || string(line) != "events of n1: pod=&type=\n" {
		t.Errorf("events: %q %v", line, err)
	}
	resp.Body.Close()
	if code, text := p.answered("viewer", "n1", "", p.proxy); code != http.StatusNotFound || !strings.Contains(text, `"NotFound"`) {
		t.Errorf("no question: %d %s", code, text)
	}
}

func TestHostileQuestions(t *testing.T) {
	p := newPlace(t, 0)
	p.connect("n1 pod-1", nil)
	for _, attack := range []struct {
		name, actor, user, question string
		shows                       []tls.Certificate
		code                        int
	}{
		{"a user without the right asks the controller", hostile.Tenant, "tenant", "/status", []tls.Certificate{p.proxy}, http.StatusForbidden},
		{"a pod asks the controller as a user that it names, without a certificate", hostile.Pod, "viewer", "/status", nil, http.StatusUnauthorized},
		{"a viewer asks for an agent's token", hostile.Tenant, "viewer", tunnel.TokenPath, []tls.Certificate{p.proxy}, http.StatusNotFound},
	} {
		t.Run(attack.name, func(t *testing.T) {
			hostile.Record(t, attack.name, attack.actor, hostile.ControlPlane, hostile.Both)
			if code, text := p.answered(attack.user, "n1", attack.question, attack.shows...); code != attack.code {
				t.Errorf("%d %s, want %d", code, text, attack.code)
			}
		})
	}
}

// A node has the connection that its token names, whatever else it says, and takes no other's away.
func TestHostileNodeForAnother(t *testing.T) {
	hostile.Record(t, "a compromised node answers for another node", hostile.Node, hostile.ControlPlane, hostile.Both)
	p := newPlace(t, 0)
	p.connect("n1 pod-1", nil)
	p.connect("n2 pod-2", answers("n1, as n2 says", newStandIn(t, "n2", p.addr, p.bundle, "n1 pod-1").folder))
	if code, text := p.answered("viewer", "n1", "/status", p.proxy); code != http.StatusOK || text != "status of n1" {
		t.Errorf("%d %s", code, text)
	}
}

// An agent of a pod that is gone is left, and so is one that shows the token of another.
func TestHostileTokenThatCountsNoLonger(t *testing.T) {
	for _, attack := range []struct{ name, token string }{
		{"a node goes on answering when its agent's pod is gone", "n1 pod-1"}, {"a connected agent changes to another node's token", "n2 pod-2"},
	} {
		t.Run(attack.name, func(t *testing.T) {
			hostile.Record(t, attack.name, hostile.Node, hostile.ControlPlane, hostile.Both)
			p := newPlace(t, 10*time.Millisecond)
			later := newStandIn(t, "n1", p.addr, p.bundle, attack.token)
			ended := p.connect("n1 pod-1", answers("n1", later.folder))
			p.mu.Lock()
			p.gone["n1 pod-1"] = true
			p.mu.Unlock()
			select {
			case <-ended:
			case <-time.After(await.Patience):
				t.Error("it is connected still")
			}
		})
	}
}

// Whoever is between an agent and the controller does not get the token.
func TestHostileControllerOfAnother(t *testing.T) {
	hostile.Record(t, "a host on the link takes agents' tokens as their controller", hostile.Link, hostile.ControlPlane, hostile.Both)
	real, other := newPlace(t, 0), newPlace(t, 0)
	a := newStandIn(t, "n1", other.addr, real.bundle, "n1 pod-1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.once(ctx) }()
	await.That(t, "the end of the connection", func() error {
		if other.of("n1") != nil {
			cancel()
			t.Fatal("it has the token")
		}
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("it ended with %v", err)
			}
			return nil
		default:
			return errors.New("it goes on")
		}
	})
	cancel()
}

// What a node answers is bounded, and is words.
func TestHostileAnswers(t *testing.T) {
	p := newPlace(t, 0)
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for piece := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	t.Run("without an end", func(t *testing.T) {
		hostile.Record(t, "a compromised node answers without an end", hostile.Node, hostile.ControlPlane, hostile.Both)
		p.connect("n1 pod-1", endless)
		resp, err := p.ask("viewer", "n1", "/status", p.proxy)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 2*maxAnswer)); err == nil || n > maxAnswer {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		hostile.Record(t, "a compromised node sends who asks elsewhere, or controls their terminal", hostile.Node, hostile.ControlPlane, hostile.Both)
		p.connect("n2 pod-2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://evil.example")
			w.Header().Set("Set-Cookie", "a=b")
			w.WriteHeader(http.StatusTemporaryRedirect)
			io.WriteString(w, "\x1b]0;owned\a\r\nno")
		}))
		resp, err := p.ask("viewer", "n2", "/status", p.proxy)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusConflict || resp.Header.Get("Location")+resp.Header.Get("Set-Cookie") != "" || strings.Contains(string(text), "u001b") {
			t.Errorf("%d %v %s %v", resp.StatusCode, resp.Header, text, err)
		}
	})
}

// A user that asks for events and does not read makes the agent wait; nothing piles up in between.
func TestHostileReaderThatDoesNotRead(t *testing.T) {
	hostile.Record(t, "a user who reads nothing makes the controller hold a node's events", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	p := newPlace(t, 0)
	var sent atomic.Int64
	p.connect("n1 pod-1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for piece := make([]byte, 16<<10); r.Context().Err() == nil; {
			n, err := w.Write(piece)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	resp, err := p.ask("viewer", "n1", "/events", p.proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// Buffers of two TCP connections and two streams, at most; the client's own is 4 MiB.
	const most = 48 << 20
	last := int64(-1)
	await.That(t, "the agent to wait", func() error {
		time.Sleep(300 * time.Millisecond)
		now := sent.Load()
		if now > most {
			t.Fatalf("%d bytes are held", now)
		}
		if now != last {
			last = now
			return fmt.Errorf("it goes on after %d bytes", now)
		}
		return nil
	})
	// And others are answered by the same agent, meanwhile.
	p.connect("n2 pod-2", nil)
	if code, text := p.answered("viewer", "n2", "/status", p.proxy); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
}

// Connections that say nothing are bounded.
func TestHostileIdleConnections(t *testing.T) {
	hostile.Record(t, "idle connections of one pod occupy the controller's port", hostile.Pod, hostile.ControlPlane, hostile.Both)
	p := newPlace(t, 0)
	var err error
	var last net.Conn
	for range 3 * maxConnsPerSource {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 7)}}
		if last, err = d.Dial("tcp", p.addr); err != nil {
			break
		}
		defer last.Close()
	}
	if err == nil { // refused after it was made
		_ = last.SetReadDeadline(time.Now().Add(await.Patience))
		_, err = last.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("all were let in: %v", err)
	}
	p.connect("n1 pod-1", nil)
	if code, text := p.answered("viewer", "n1", "/status", p.proxy); code != http.StatusOK {
		t.Errorf("another caller: %d %s", code, text)
	}
}

// However many pods open connections, an agent that has proved who it is keeps its own.
func TestHostileConnectionsOfAgentsStay(t *testing.T) {
	hostile.Record(t, "idle connections of many pods end those of agents with the controller", hostile.Pod, hostile.ControlPlane, hostile.Both)
	const most = 8
	p := newPlaceOf(t, 0, httplimit.NewBudget(most, most))
	p.connect("n1 pod-1", nil)
	before := p.of("n1")
	for i := range 3 * most {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}}
		c, err := d.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if code, text := p.answered("viewer", "n1", "/status", p.proxy); code != http.StatusOK || p.of("n1") != before {
		t.Errorf("%d %s", code, text)
	}
}

// A node has one connection, however many it makes with its token.
func TestHostileConnectionsOfOneNode(t *testing.T) {
	hostile.Record(t, "a compromised node keeps any number of connections with the controller", hostile.Node, hostile.ControlPlane, hostile.Both)
	p := newPlace(t, 0)
	first := p.connect("n1 pod-1", nil)
	p.connect("n1 pod-1", nil)
	select {
	case <-first:
	case <-time.After(await.Patience):
		t.Error("the connection before is kept")
	}
	if code, text := p.answered("viewer", "n1", "/status", p.proxy); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
}
