// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/hostile"
)

const issuer = "https://kubernetes.default.svc"

// signer signs tokens as an API server does.
type signer struct {
	t   *testing.T
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	s := &signer{t: t}
	var err1, err2 error
	s.rsa, err1 = rsa.GenerateKey(rand.Reader, 2048)
	s.ec, err2 = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return s
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// set is what it shows of its keys.
func (s *signer) set() []byte {
	point, err := s.ec.PublicKey.Bytes()
	if err != nil {
		s.t.Fatal(err)
	}
	text, _ := json.Marshal(map[string]any{"keys": []any{
		map[string]string{"kty": "RSA", "kid": "r", "use": "sig", "alg": "RS256", "n": b64(s.rsa.N.Bytes()), "e": b64(big.NewInt(int64(s.rsa.E)).Bytes())},
		map[string]string{"kty": "EC", "kid": "e", "use": "sig", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])},
		map[string]string{"kty": "OKP", "kid": "o", "crv": "Ed25519", "x": "AAAA"},
	}})
	return text
}

// token is that of node n1's agent, for ten minutes, with some claims changed.
func (s *signer) token(alg string, change map[string]any) string {
	now := time.Now().Unix()
	c := map[string]any{"iss": issuer, "sub": agentUser, "aud": []string{audience}, "exp": now + 600, "nbf": now, "iat": now,
		"kubernetes.io": map[string]any{"namespace": "kube-system", "node": map[string]string{"name": "n1", "uid": "node-1"}, "pod": map[string]string{"name": "weir-node-x", "uid": "uid-1"}}}
	for k, v := range change {
		c[k] = v
	}
	payload, _ := json.Marshal(c)
	header, _ := json.Marshal(map[string]string{"alg": alg, "kid": map[string]string{"RS256": "r", "ES256": "e"}[alg]})
	signed := b64(header) + "." + b64(payload)
	sum := sha256.Sum256([]byte(signed))
	var sig []byte
	var err error
	switch alg {
	case "RS256":
		sig, err = rsa.SignPKCS1v15(rand.Reader, s.rsa, crypto.SHA256, sum[:])
	case "ES256":
		var r, v *big.Int
		if r, v, err = ecdsa.Sign(rand.Reader, s.ec, sum[:]); err == nil {
			sig = append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...)
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return signed + "." + b64(sig)
}

// site is a Reviewer of an API server that may be away.
type site struct {
	*Reviewer
	signer *signer
	away   error
	asked  int
	lives  map[Peer]bool
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{signer: newSigner(t), lives: map[Peer]bool{{Node: "n1", PodUID: "uid-1"}: true}}
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.asked++
		return true, &authenticationv1.TokenReview{Status: *saysOf(func(*authenticationv1.TokenReviewStatus) {})}, s.away
	})
	s.Reviewer = NewReviewer(kube, agentUser, audience)
	s.Offline = &Offline{log: slog.New(slog.DiscardHandler), now: time.Now, lives: func(p Peer) bool { return s.lives[p] },
		get: func(_ context.Context, path string) ([]byte, error) {
			if s.away != nil {
				return nil, s.away
			}
			if strings.HasSuffix(path, "jwks") {
				return s.signer.set(), nil
			}
			return json.Marshal(map[string]string{"issuer": issuer})
		}}
	return s
}

// TestOfflineTokens holds that an agent is believed while the API server is away, for an hour after
// the keys were read, and that the API server is asked again when it is back.
func TestOfflineTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		s.away = errors.New("connection refused")
		go s.Offline.Run(ctx)
		synctest.Wait()
		if _, err := s.Review(ctx, caller, s.signer.token("RS256", nil)); err == nil || errors.Is(err, ErrToken) || !strings.Contains(err.Error(), "were not read") {
			t.Errorf("without keys: %v", err)
		}
		s.away = nil
		time.Sleep(keysRetry)
		synctest.Wait()
		s.away = errors.New("connection refused")
		time.Sleep(5 * time.Minute)
		s.asked = 0
		for _, alg := range []string{"RS256", "ES256"} {
			if got, err := s.Review(ctx, caller, s.signer.token(alg, nil)); err != nil || got != (Peer{Node: "n1", PodUID: "uid-1"}) {
				t.Errorf("%s: %+v %v", alg, got, err)
			}
		}
		if s.asked != 1 {
			t.Errorf("an API server that does not answer was asked %d times at once", s.asked)
		}
		time.Sleep(awayFor)
		s.away = apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", errors.New("no"))
		if _, err := s.Review(ctx, caller, s.signer.token("RS256", nil)); !apierrors.IsForbidden(err) {
			t.Errorf("an API server that refuses to say: %v", err)
		}
		s.away = nil
		if _, err := s.Review(ctx, caller, "one that it knows"); err != nil {
			t.Errorf("the API server is back: %v", err)
		}
		for _, away := range []error{apierrors.NewInternalError(errors.New("etcd")), apierrors.NewTooManyRequests("", 1), &apierrors.StatusError{}, errors.New("EOF")} {
			if answered(away) {
				t.Errorf("%v counts as an answer", away)
			}
		}
		s.away = &http.MaxBytesError{}
		time.Sleep(offlineFor)
		if _, err := s.Review(ctx, caller, s.signer.token("RS256", nil)); err == nil || errors.Is(err, ErrToken) || !strings.Contains(err.Error(), "last hour") {
			t.Errorf("after an hour: %v", err)
		}
	})
}

// Tokens count by themselves as far as they do with the API server.
func TestHostileTokensOffline(t *testing.T) {
	hostile.Record(t, "who has no token of an agent that lives connects to a fan-out while the API server is away", hostile.Node, hostile.ControlPlane, hostile.Both)
	s := newSite(t)
	if err := s.Offline.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.away = errors.New("connection refused")
	good := s.signer.token("ES256", nil)
	if _, err := s.Review(t.Context(), caller, good); err != nil {
		t.Fatal(err)
	}
	other := newSigner(t)
	now := time.Now().Unix()
	bound := func(namespace, node, pod string) map[string]any {
		return map[string]any{"kubernetes.io": map[string]any{"namespace": namespace, "node": map[string]string{"name": node}, "pod": map[string]string{"uid": pod}}}
	}
	parts := strings.Split(good, ".")
	unsigned := b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."
	// An algorithm with a shared secret, for which the public key is taken.
	confused := b64([]byte(`{"alg":"HS256","kid":"r"}`)) + "." + parts[1] + "." + parts[2]
	swapped := b64([]byte(`{"alg":"RS256","kid":"e"}`)) + "." + parts[1] + "." + parts[2]
	for what, token := range map[string]string{
		"rubbish": "a.b.c", "unsigned": unsigned, "HS256": confused, "RS256 of an EC key": swapped, "no signature": parts[0] + "." + parts[1] + ".",
		"claims of another one": parts[0] + "." + strings.Split(s.signer.token("ES256", map[string]any{"exp": now + 1e6}), ".")[1] + "." + parts[2],
		"another key":           other.token("ES256", nil), "another RSA key": other.token("RS256", nil),
		"issuer":     s.signer.token("RS256", map[string]any{"iss": "https://example.org"}),
		"audience":   s.signer.token("RS256", map[string]any{"aud": "https://kubernetes.default.svc"}),
		"account":    s.signer.token("RS256", map[string]any{"sub": "system:serviceaccount:shop:weir-node"}),
		"expired":    s.signer.token("RS256", map[string]any{"exp": now - 1}),
		"no end":     s.signer.token("RS256", map[string]any{"exp": nil}),
		"early":      s.signer.token("RS256", map[string]any{"nbf": now + 60}),
		"namespace":  s.signer.token("RS256", bound("shop", "n1", "uid-1")),
		"no node":    s.signer.token("RS256", bound("kube-system", "", "uid-1")),
		"no pod":     s.signer.token("RS256", bound("kube-system", "n1", "")),
		"pod gone":   s.signer.token("RS256", bound("kube-system", "n1", "uid-2")),
		"on another": s.signer.token("RS256", bound("kube-system", "n2", "uid-1")),
	} {
		if got, err := s.Review(t.Context(), caller, token); err == nil {
			t.Errorf("%s: taken for %+v", what, got)
		}
	}
	weak, _ := json.Marshal(map[string]any{"keys": []any{map[string]string{"kty": "RSA", "n": b64(make([]byte, 64)), "e": "AQAB"}}})
	if _, err := parseKeys(weak); err == nil {
		t.Error("a weak key was read")
	}
	if _, err := parseKeys([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}]}`)); err == nil {
		t.Error("a point that is on no curve was read")
	}
}
