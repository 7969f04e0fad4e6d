// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Keys of a Secret with a server's certificate, as those of type kubernetes.io/tls have them.
const (
	certKey    = "tls.crt"
	privateKey = "tls.key"
)

// certifiedLife is that of a certificate in a Secret; after half of it a new one is made.
const certifiedLife = 7 * 24 * time.Hour

// ReadersGroup is the organization in the certificates of clients that read the flow records of all
// nodes and namespaces.
const ReadersGroup = "weir.dev:flow-readers"

// Certify keeps a serving certificate for a name in a Secret, for a server that is not to reach the
// authority's key. A Secret that is not installed, or that the controller has no right to, is not
// made.
func (k *Keeper) Certify(ctx context.Context, object, name string) error {
	return k.certify(ctx, object, func(leaf *x509.Certificate) bool { return leaf.VerifyHostname(name) == nil },
		func(by *authority) (*tls.Certificate, error) { return by.issue(k.Now(), name, certifiedLife) })
}

// CertifyReader keeps a client's certificate of ReadersGroup in a Secret, likewise. It is for no
// server.
func (k *Keeper) CertifyReader(ctx context.Context, object, name string) error {
	is := pkix.Name{CommonName: name, Organization: []string{ReadersGroup}}
	return k.certify(ctx, object, func(leaf *x509.Certificate) bool {
		return leaf.Subject.String() == is.String() && len(leaf.DNSNames) == 0 && slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth})
	}, func(by *authority) (*tls.Certificate, error) {
		return by.sign(k.Now(), name, certifiedLife, x509.Certificate{Subject: is, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	})
}

// certify writes what issue makes into a Secret where the certificate there does not do.
func (k *Keeper) certify(ctx context.Context, object string, does func(leaf *x509.Certificate) bool, issue func(by *authority) (*tls.Certificate, error)) error {
	secrets := k.Kube.CoreV1().Secrets(k.Namespace)
	have, err := secrets.Get(ctx, object, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Secret %s/%s: %w", k.Namespace, object, err)
	}
	as, err := read(ctx, k.Kube, k.Namespace, k.object())
	if err != nil {
		return err
	}
	now := k.Now()
	by := as.signer(now)
	if by == nil {
		return nil // Ensure makes another one
	}
	if pair, err := tls.X509KeyPair(have.Data[certKey], have.Data[privateKey]); err == nil && does(pair.Leaf) &&
		pair.Leaf.CheckSignatureFrom(by.cert) == nil && now.Before(pair.Leaf.NotBefore.Add(skew+certifiedLife/2)) {
		return nil
	}
	cert, err := issue(by)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return fmt.Errorf("encode the key for Secret %s: %w", object, err)
	}
	var chain []byte
	for _, der := range cert.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: der})...)
	}
	have.Data = map[string][]byte{certKey: chain, privateKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})}
	if _, err := secrets.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update Secret %s/%s: %w", k.Namespace, object, err)
	}
	return nil
}

// SignRequest signs a serving certificate for names and the key of a request (PKCS #10), and
// returns it with its authority's. Nothing else counts of what the request says.
func (k *Keeper) SignRequest(ctx context.Context, request []byte, names []string) ([][]byte, error) {
	name := names[0]
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("read the request for the certificate of %s: %w", name, err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request for the certificate of %s: %w", name, err)
	}
	if key, is := r.PublicKey.(*ecdsa.PublicKey); !is || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("the request for the certificate of %s: its key is not one of P-256", name)
	}
	as, err := read(ctx, k.Kube, k.Namespace, k.object())
	if err != nil {
		return nil, err
	}
	by := as.signer(k.Now())
	if by == nil {
		return nil, errors.New("all authorities have expired: the leader makes a new one")
	}
	cert, err := by.signKey(k.Now(), name, servingLife, serverNamed(names), r.PublicKey)
	if err != nil {
		return nil, err
	}
	return cert.Certificate, nil
}
