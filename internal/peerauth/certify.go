// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
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

// Certify keeps a serving certificate for a name in a Secret, for a server that is not to reach the
// authority's key. A Secret that is not installed, or that the controller has no right to, is not
// made.
func (k *Keeper) Certify(ctx context.Context, object, name string) error {
	secrets := k.Kube.CoreV1().Secrets(k.Namespace)
	have, err := secrets.Get(ctx, object, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Secret %s/%s: %w", k.Namespace, object, err)
	}
	as, err := read(ctx, k.Kube, k.Namespace)
	if err != nil {
		return err
	}
	now := k.Now()
	by := as.signer(now)
	if by == nil {
		return nil // Ensure makes another one
	}
	if pair, err := tls.X509KeyPair(have.Data[certKey], have.Data[privateKey]); err == nil && pair.Leaf.VerifyHostname(name) == nil &&
		pair.Leaf.CheckSignatureFrom(by.cert) == nil && now.Before(pair.Leaf.NotBefore.Add(skew+certifiedLife/2)) {
		return nil
	}
	cert, err := by.issue(now, name, certifiedLife)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return fmt.Errorf("encode the key of %s: %w", name, err)
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
