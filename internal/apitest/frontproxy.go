// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"time"
)

// frontProxyName is in the certificate by which the API server shows itself to servers that
// APIServices name.
const frontProxyName = "front-proxy-client"

// frontProxy makes that certificate, and its authority.
func (s *Server) frontProxy() {
	s.t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			s.t.Fatal(err)
		}
		return k
	}
	now := time.Now()
	caKey, ownKey := key(), key()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "front-proxy-ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	own := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: frontProxyName}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for name, c := range map[string]struct {
		cert *x509.Certificate
		key  *ecdsa.PrivateKey
	}{"front-proxy-ca": {ca, caKey}, "front-proxy": {own, ownKey}} {
		der, err := x509.CreateCertificate(rand.Reader, c.cert, ca, c.key.Public(), caKey)
		if err != nil {
			s.t.Fatal(err)
		}
		raw, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.file(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		s.file(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	}
}
