// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A certificate in a Secret is believed by who reads the authorities half a day late, for two years
// in which these change; what is no certificate is replaced, and what is not installed is not made.
func TestCertify(t *testing.T) {
	t.Parallel()
	k := newKept()
	const object, name = "page-tls", "page." + domain
	late := k.ensure(t)
	if err := k.keeper.Certify(t.Context(), object, name); err != nil {
		t.Fatal(err)
	}
	if _, err := k.kube.CoreV1().Secrets(namespace).Get(t.Context(), object, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("it was made: %v", err)
	}
	secrets := k.kube.CoreV1().Secrets(namespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object}, Data: map[string][]byte{certKey: []byte("none"), "other": nil}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	updates := 0
	k.kube.PrependReactor("update", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.UpdateAction).GetObject().(*corev1.Secret).Name == object {
			updates++
		}
		return false, nil, nil
	})
	const step = 12 * time.Hour
	for range int(2 * 365 * 24 * time.Hour / step) {
		if err := k.keeper.Certify(t.Context(), object, name); err != nil {
			t.Fatal(err)
		}
		have, err := secrets.Get(t.Context(), object, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(have.Data[certKey], have.Data[privateKey])
		if err != nil {
			t.Fatalf("%s: %v", k.now, err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(late)
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: k.now.Add(step), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Fatalf("%s: %v", k.now, err)
		}
		late = k.ensure(t)
		k.now = k.now.Add(step)
	}
	if most := int(2*365*24*time.Hour/(certifiedLife/2)) + 10; updates < 50 || updates > most {
		t.Errorf("it was written %d times in two years", updates)
	}
	if err := k.keeper.Certify(t.Context(), object, "other."+domain); err != nil || updates == 0 {
		t.Error(err)
	}
	have, err := secrets.Get(t.Context(), object, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pair, err := tls.X509KeyPair(have.Data[certKey], have.Data[privateKey]); err != nil || pair.Leaf.VerifyHostname("other."+domain) != nil {
		t.Errorf("a certificate for another name stays: %v", err)
	}
	k.kube.PrependReactor("get", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.GetAction).GetName() != object {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), object, nil)
	})
	if err := k.keeper.Certify(t.Context(), object, name); err != nil {
		t.Errorf("without the right: %v", err)
	}
}

// A client's certificate is renewed likewise, and counts for clients alone, as those of servers of
// this authority count for servers; the authority of Weir's programs signs for no client.
func TestCertifyReader(t *testing.T) {
	t.Parallel()
	k := newKept()
	const of = "agents.example.com"
	for _, name := range []string{HubbleName, "agents", "reader"} {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
		if err := errors.Join(k.kube.Tracker().Add(&corev1.Secret{ObjectMeta: meta}), k.kube.Tracker().Add(&corev1.ConfigMap{ObjectMeta: meta})); err != nil {
			t.Fatal(err)
		}
	}
	keeper := &Keeper{Kube: k.kube, Namespace: namespace, Object: HubbleName, Domain: of, Clients: true, Now: k.keeper.Now}
	verify := func(secret string, bundle []byte, at time.Time, use x509.ExtKeyUsage) (*x509.Certificate, error) {
		have, err := k.kube.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(have.Data[certKey], have.Data[privateKey])
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
		return pair.Leaf, err
	}
	const client, server = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	late, err := keeper.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const step = 12 * time.Hour
	serials := map[string]bool{}
	for range int(2 * 365 * 24 * time.Hour / step) {
		if err := errors.Join(keeper.Certify(t.Context(), "agents", "*."+of), keeper.CertifyReader(t.Context(), "reader", "relay")); err != nil {
			t.Fatal(err)
		}
		leaf, err := verify("reader", late, k.now.Add(step), client)
		if err != nil || !slices.Equal(leaf.Subject.Organization, []string{ReadersGroup}) || leaf.VerifyHostname("relay") == nil {
			t.Fatalf("%s: %v, %s", k.now, err, leaf.Subject)
		}
		serials[leaf.SerialNumber.String()] = true
		agents, err := verify("agents", late, k.now.Add(step), server)
		if err = errors.Join(err, agents.VerifyHostname("n1."+of)); err != nil {
			t.Fatalf("%s: %v", k.now, err)
		}
		if late, err = keeper.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.now = k.now.Add(step)
	}
	if most := int(2*365*24*time.Hour/(certifiedLife/2)) + 10; len(serials) < 50 || len(serials) > most {
		t.Errorf("there were %d certificates in two years", len(serials))
	}
	if _, err := verify("reader", late, k.now, server); err == nil {
		t.Error("a client's certificate counts for a server")
	}
	if _, err := verify("agents", late, k.now, client); err == nil {
		t.Error("a certificate of agents counts for a client")
	}
	peers := k.ensure(t)
	if _, err := verify("reader", peers, k.now, client); err == nil {
		t.Error("a client's certificate counts by the authority of Weir's programs")
	}
	if err := k.keeper.CertifyReader(t.Context(), "reader", "relay"); err != nil {
		t.Fatal(err)
	}
	if _, err := verify("reader", peers, k.now, client); err == nil {
		t.Error("the authority of Weir's programs signs for clients")
	}
}
