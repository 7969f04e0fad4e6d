// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/hostile"
)

const (
	namespace  = "kube-system"
	domain     = namespace + ".svc"
	serverName = "weir-controller." + domain
)

// kept is a cluster with a clock, the leader's keeper, and two instances that serve.
type kept struct {
	kube   *fake.Clientset
	now    time.Time
	keeper *Keeper
	serve  [2]*Serving
}

func newKept() *kept {
	name := metav1.ObjectMeta{Namespace: namespace, Name: ObjectName}
	k := &kept{kube: fake.NewClientset(&corev1.Secret{ObjectMeta: name}, &corev1.ConfigMap{ObjectMeta: name}), now: time.Unix(1.8e9, 0)}
	now := func() time.Time { return k.now }
	k.keeper = &Keeper{Kube: k.kube, Namespace: namespace, Domain: domain, Now: now}
	for i := range k.serve {
		k.serve[i] = &Serving{Kube: k.kube, Namespace: namespace, Name: serverName, Log: slog.New(slog.DiscardHandler), Now: now}
	}
	return k
}

// ensure does the leader's work, and returns what agents read.
func (k *kept) ensure(t *testing.T) []byte {
	t.Helper()
	bundle, err := k.keeper.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	published, err := k.kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), ObjectName, metav1.GetOptions{})
	if err != nil || published.Data[BundleKey] != string(bundle) {
		t.Fatalf("published: %v %q", err, published.Data)
	}
	return bundle
}

// verify checks what an instance serves by a bundle.
func (k *kept) verify(s *Serving, bundle []byte) error {
	cert, err := s.Config().GetCertificate(nil)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: serverName, CurrentTime: k.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

// For three years agents that read what is published half a day late believe each instance,
// whichever looks first, and the authorities change meanwhile.
func TestRenewalIsNoticedByNobody(t *testing.T) {
	t.Parallel()
	k := newKept()
	late := k.ensure(t)
	seen := map[string]bool{}
	const step = 12 * time.Hour
	for range int(3 * 365 * 24 * time.Hour / step) {
		for i, s := range k.serve {
			if err := s.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := k.verify(s, late); err != nil {
				t.Fatalf("%s, instance %d: %v", k.now, i, err)
			}
		}
		seen[string(late)] = true
		late = k.ensure(t)
		k.now = k.now.Add(step)
	}
	if n := bytes.Count(late, []byte("BEGIN CERTIFICATE")); n < 1 || n > 3 || len(seen) < 5 {
		t.Errorf("%d authorities at the end, %d bundles", n, len(seen))
	}
}

// A leader that was away for long makes a new authority, and so does one whose Secret was emptied:
// nothing counts that expired.
func TestAuthorityAfterALongTime(t *testing.T) {
	t.Parallel()
	k := newKept()
	first := k.ensure(t)
	k.now = k.now.Add(2 * authorityLife)
	if err := k.serve[0].Refresh(t.Context()); err == nil {
		t.Error("an expired authority signed")
	}
	second := k.ensure(t)
	if err := k.serve[0].Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k.verify(k.serve[0], second) != nil || k.verify(k.serve[0], first) == nil {
		t.Error("the new authority does not count, or the old one does")
	}
}

// What is no list of authorities is left as it is: a new one would be trusted by nobody yet.
func TestSecretThatCannotBeRead(t *testing.T) {
	t.Parallel()
	k := newKept()
	k.ensure(t)
	secrets := k.kube.CoreV1().Secrets(namespace)
	good, err := secrets.Get(t.Context(), ObjectName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := string(good.Data[SecretKey])
	key := text[strings.Index(text, "-----BEGIN PRIVATE"):]
	other, err := newAuthority(k.now, domain, false)
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{"cut off": text[:len(text)/2], "no key": string(authorities{other}.bundle()), "another key": string(authorities{other}.bundle()) + key,
		"a key alone": key, "something behind": text + "x"} {
		good.Data[SecretKey] = []byte(bad)
		if _, err := secrets.Update(t.Context(), good, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := k.keeper.Ensure(t.Context()); err == nil {
			t.Errorf("%s: taken", what)
		}
		if now, err := secrets.Get(context.Background(), ObjectName, metav1.GetOptions{}); err != nil || string(now.Data[SecretKey]) != bad {
			t.Errorf("%s: it was overwritten (%v)", what, err)
		}
	}
}

// Whoever has an authority's key has the names of Weir's namespace, and no other.
func TestHostileAuthorityForOtherNames(t *testing.T) {
	hostile.Record(t, "the key of Weir's authority makes certificates for other servers", hostile.Controller, hostile.ControlPlane, hostile.Both)
	k := newKept()
	bundle := k.ensure(t)
	as, err := read(t.Context(), k.kube, namespace, ObjectName)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, name := range []string{"kubernetes.default.svc", "db.shop.svc", "example.com"} {
		cert, err := as[0].issue(k.now, name, servingLife)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: k.now}); err == nil {
			t.Errorf("a certificate for %s counts", name)
		}
	}
}
