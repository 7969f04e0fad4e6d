// SPDX-License-Identifier: Apache-2.0

package nodecert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth"
)

// agent answers questions.
type agent struct{ http.Handler }

func (a agent) Ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, body))
	return w.Result(), nil
}

func of(h *Holder) agent {
	mux := http.NewServeMux()
	for pattern, handler := range h.Questions() {
		mux.HandleFunc(pattern, handler)
	}
	return agent{mux}
}

// signing signs by an authority for Hubble's API, at a time.
func signing(t *testing.T, now *time.Time) (s *Signer, roots *x509.CertPool) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: peerauth.HubbleName}
	k := &peerauth.Keeper{Kube: fake.NewClientset(&corev1.Secret{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta}), Namespace: meta.Namespace, Object: meta.Name,
		Domain: servername.Domain, Clients: true, Now: func() time.Time { return *now }}
	bundle, err := k.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return &Signer{Sign: k.SignRequest, Names: servername.Certified, Log: slog.New(slog.DiscardHandler)}, roots
}

// counts: does the certificate count for a name, for servers?
func counts(cert *tls.Certificate, roots *x509.CertPool, name string, now time.Time) error {
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

// An agent gets a certificate for its node, by which it proves itself for as long as it is asked
// from time to time, and asks for none before half of its life is over.
func TestCertificates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s, roots := signing(t, &now)
	h := &Holder{Name: servername.Of("n1.example"), Now: func() time.Time { return now }}
	if _, err := h.Certificate(); !errors.Is(err, ErrNone) {
		t.Errorf("at first: %v", err)
	}
	var before *tls.Certificate
	made := 0
	for range 48 {
		if err := s.once(t.Context(), "n1.example", of(h)); err != nil {
			t.Fatal(err)
		}
		cert, err := h.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		if cert != before {
			made++
		}
		before = cert
		for name, is := range map[string]bool{"n1-example." + servername.Domain: true, servername.Peers: true, "n2." + servername.Domain: false} {
			if err := counts(cert, roots, name, now.Add(time.Hour)); (err == nil) != is {
				t.Errorf("for %s: %v", name, err)
			}
		}
		now = now.Add(time.Hour)
	}
	if made < 4 || made > 6 {
		t.Errorf("%d certificates in two days", made)
	}
}

// Who wants none is not given one; an agent of a version before is left alone.
func TestNoCertificate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s, _ := signing(t, &now)
	none := &Holder{Now: time.Now}
	if err := s.once(t.Context(), "n1", of(none)); err != nil {
		t.Error(err)
	}
	if _, err := none.Certificate(); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	s.Keep(t.Context(), "n1", agent{http.NotFoundHandler()}) // returns
}

// What an agent is given in the place of its certificate it does not take, and keeps what it has.
func TestTakes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s, _ := signing(t, &now)
	h, other := &Holder{Name: servername.Of("n1"), Now: func() time.Time { return now }}, &Holder{Name: servername.Of("n1"), Now: func() time.Time { return now }}
	if err := errors.Join(s.once(t.Context(), "n1", of(h)), s.once(t.Context(), "n1", of(other))); err != nil {
		t.Fatal(err)
	}
	before, err := h.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	late := now.Add(100 * 24 * time.Hour)
	for name, c := range map[string]struct {
		text []byte
		now  time.Time
	}{
		"nothing": {nil, now}, "no certificate": {[]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"), now}, "of another key": {encode(other.cert.Certificate), now},
		"expired": {encode(before.Certificate), late}, "large": {bytes.Repeat([]byte{'x'}, certificateMost+1), now},
	} {
		was := now
		now = c.now
		resp, err := of(h).Ask(t.Context(), http.MethodPut, Path, bytes.NewReader(c.text))
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v, %s", name, err, resp.Status)
		}
		now = was
		if is, err := h.Certificate(); err != nil || is != before {
			t.Errorf("%s: it has another one: %v", name, err)
		}
	}
}

// An agent whose node was compromised asks for the name of another node, of all, or of the
// controller, and to be a client or an authority: it gets its node's name alone, for a server.
func TestHostileRequests(t *testing.T) {
	hostile.Record(t, "an agent gets a certificate by which it answers hubble-relay as another node", hostile.Node, hostile.ControlPlane, hostile.Both)
	now := time.Now()
	s, roots := signing(t, &now)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wanted := []string{servername.Of("n2"), "*." + servername.Domain, "weir-controller.kube-system.svc"}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: wanted}, key)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	evil := agent{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = w.Write(request)
			return
		}
		got, err = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})}
	if err := s.once(t.Context(), "n1", evil); err != nil {
		t.Fatal(err)
	}
	cert, err := (&Holder{Name: servername.Of("n1"), Now: time.Now, key: key}).read(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range wanted {
		if err := counts(cert, roots, name, now); err == nil {
			t.Errorf("it counts for %s", name)
		}
	}
	if len(cert.Leaf.DNSNames) != 2 || cert.Leaf.IsCA || len(cert.Leaf.ExtKeyUsage) != 1 || cert.Leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || len(cert.Leaf.Subject.Organization) != 0 {
		t.Errorf("it is for %q, usage %v, authority %t", cert.Leaf.DNSNames, cert.Leaf.ExtKeyUsage, cert.Leaf.IsCA)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(request)
	forged[len(forged)-1] ^= 1
	for name, text := range map[string][]byte{"nothing": nil, "of another kind of key": other, "not signed by the key": forged} {
		request, got = text, nil
		if err := s.once(t.Context(), "n1", evil); err == nil || got != nil {
			t.Errorf("%s: %v, it got %d bytes", name, err, len(got))
		}
	}
}
