// SPDX-License-Identifier: Apache-2.0

// Package peerauth lets Weir's own programs know each other across nodes. The controller keeps a
// certificate authority (Keeper) and serves with certificates of it (Serving); agents trust what it
// publishes (package trust) and prove themselves by a token of their service account with an
// audience of its own (Reviewer). A client of the API server is known by what the API server says
// of it (FrontProxy). What authenticates an agent is bound to its pod and its node by the API
// server, and ends with these. Where agents are servers to others, they get certificates for the
// name of their node (package nodecert).
package peerauth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// How long things count.
const (
	// authorityLife is that of an authority. After half of it a new one is made.
	authorityLife = 365 * 24 * time.Hour
	// settling is how long a new authority is published before it signs anything: by then every
	// agent has read it.
	settling = 24 * time.Hour
	// servingLife is that of a serving certificate; after half of it a new one is made.
	servingLife = 24 * time.Hour
	// skew is how far the clocks of two nodes may be apart.
	skew = time.Hour
)

// authority is a certificate authority with its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// made is when the authority was made.
func (a *authority) made() time.Time { return a.cert.NotBefore.Add(skew) }

// authorities are those that count, the oldest first.
type authorities []*authority

// newAuthority makes an authority that signs for servers with names below domain alone, and for
// clients where it is to.
func newAuthority(now time.Time, domain string, clients bool) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of an authority: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	subject, uses := "weir peers ", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if clients {
		subject, uses = "weir hubble ", append(uses, x509.ExtKeyUsageClientAuth)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: subject + now.UTC().Format("2006-01-02")},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		ExtKeyUsage:         uses,
		PermittedDNSDomains: []string{domain}, PermittedDNSDomainsCritical: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of an authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of a new authority: %w", err)
	}
	return &authority{cert: cert, key: key}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

// renewed returns the authorities that are to count from now on: without those that have expired,
// and with a new one where half of the life of the newest is over. The others stay as they are.
func (as authorities) renewed(now time.Time, domain string, clients bool) (authorities, error) {
	var out authorities
	for _, a := range as {
		if now.Before(a.cert.NotAfter) {
			out = append(out, a)
		}
	}
	if n := len(out); n > 0 && now.Before(out[n-1].made().Add(authorityLife/2)) {
		return out, nil
	}
	a, err := newAuthority(now, domain, clients)
	if err != nil {
		return nil, err
	}
	return append(out, a), nil
}

// signer returns the newest authority that has been published for long enough, or else the oldest;
// nil = there is none.
func (as authorities) signer(now time.Time) *authority {
	for i := len(as) - 1; i >= 0; i-- {
		if a := as[i]; (i == 0 || !now.Before(a.made().Add(settling))) && now.Before(a.cert.NotAfter) {
			return a
		}
	}
	return nil
}

// issue signs a serving certificate for a name.
func (a *authority) issue(now time.Time, name string, life time.Duration) (*tls.Certificate, error) {
	return a.sign(now, name, life, serverNamed([]string{name}))
}

// serverNamed is what a server's certificate says.
func serverNamed(names []string) x509.Certificate {
	return x509.Certificate{Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
}

// sign completes a template and signs it, with a key that it makes.
func (a *authority) sign(now time.Time, name string, life time.Duration, template x509.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	cert, err := a.signKey(now, name, life, template, key.Public())
	if err != nil {
		return nil, err
	}
	cert.PrivateKey = key
	return cert, nil
}

// signKey completes a template and signs it for a key that somebody else has.
func (a *authority) signKey(now time.Time, name string, life time.Duration, template x509.Certificate, key crypto.PublicKey) (*tls.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	until := now.Add(life)
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	template.SerialNumber, template.NotBefore, template.NotAfter, template.KeyUsage = serial, now.Add(-skew), until, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, Leaf: leaf}, nil
}

const (
	certBlock = "CERTIFICATE"
	keyBlock  = "PRIVATE KEY"
)

// bundle returns the certificates, without keys.
func (as authorities) bundle() []byte {
	var out bytes.Buffer
	for _, a := range as {
		_ = pem.Encode(&out, &pem.Block{Type: certBlock, Bytes: a.cert.Raw}) // a bytes.Buffer takes everything
	}
	return out.Bytes()
}

// encode returns the certificates, each with its key behind it.
func (as authorities) encode() ([]byte, error) {
	var out bytes.Buffer
	for _, a := range as {
		key, err := x509.MarshalPKCS8PrivateKey(a.key)
		if err != nil {
			return nil, fmt.Errorf("encode the key of an authority: %w", err)
		}
		_ = pem.Encode(&out, &pem.Block{Type: certBlock, Bytes: a.cert.Raw})
		_ = pem.Encode(&out, &pem.Block{Type: keyBlock, Bytes: key})
	}
	return out.Bytes(), nil
}

// decode reads what encode wrote.
func decode(text []byte) (authorities, error) {
	var out authorities
	var cert *x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		switch {
		case block.Type == certBlock && cert == nil:
			var err error
			if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
				return nil, fmt.Errorf("read the certificate of an authority: %w", err)
			}
		case block.Type == keyBlock && cert != nil:
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("read the key of an authority: %w", err)
			}
			private, ok := key.(*ecdsa.PrivateKey)
			if public, same := cert.PublicKey.(*ecdsa.PublicKey); !ok || !same || !private.PublicKey.Equal(public) {
				return nil, errors.New("the key of an authority is not that of its certificate")
			}
			out, cert = append(out, &authority{cert: cert, key: private}), nil
		default:
			return nil, fmt.Errorf("a block %q where it does not belong", block.Type)
		}
	}
	if cert != nil || len(bytes.TrimSpace(text)) > 0 {
		return nil, errors.New("something follows the last authority that is none")
	}
	return out, nil
}
