// SPDX-License-Identifier: Apache-2.0

// Package nodecert gets the servers of agents certificates for the names of their nodes. An agent
// makes a key, which it keeps in memory alone (Holder); the controller asks each agent that is
// connected to it, and has proved by its token whose node it is of, whether it wants a certificate,
// and has it signed for that node (Signer). So who has a node's disk, or is root there, gets none
// of another node.
package nodecert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Path is where an agent answers a GET with a request for a certificate (PKCS #10, DER), or with
// code 204 where it wants none; and where it takes the certificate, and those above it, by a PUT.
const Path = "/hubblecertificate"

// certificateMost bounds what an agent takes, bytes.
const certificateMost = 64 << 10

const block = "CERTIFICATE"

// Holder has the key of an agent's server and its certificate. It is safe for concurrent use. A
// zero Holder wants none.
type Holder struct {
	Name string // that the certificate is to have; empty = none is wanted
	Now  func() time.Time

	mu   sync.Mutex
	key  *ecdsa.PrivateKey // of cert, or of the request that was made last
	cert *tls.Certificate  // nil = there is none yet
}

// ErrNone: there is no certificate yet.
var ErrNone = errors.New("the certificate is not signed yet: the controller does so")

// Certificate is the one to serve by.
func (h *Holder) Certificate() (*tls.Certificate, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cert == nil {
		return nil, ErrNone
	}
	return h.cert, nil
}

// Questions are those that the controller asks.
func (h *Holder) Questions() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{"GET " + Path: h.request, "PUT " + Path: h.take}
}

// wants is false while half of the certificate's life is ahead.
func (h *Holder) wants() bool {
	if h.cert == nil {
		return true
	}
	life := h.cert.Leaf.NotAfter.Sub(h.cert.Leaf.NotBefore)
	return !h.Now().Before(h.cert.Leaf.NotAfter.Add(-life / 2))
}

// request answers with what is to be signed. The key stays the same for the life of the process.
func (h *Holder) request(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Name == "" || !h.wants() {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if h.key == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h.key = key
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{h.Name}}, h.key)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/pkcs10")
	_, _ = w.Write(der) // who asked may have gone
}

// take takes a certificate for the key, or says what is wrong with it.
func (h *Holder) take(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, certificateMost))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	cert, err := h.read(text)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.cert = cert
	w.WriteHeader(http.StatusNoContent)
}

func (h *Holder) read(text []byte) (*tls.Certificate, error) {
	if h.Name == "" || h.key == nil {
		return nil, errors.New("no certificate was asked for")
	}
	cert := &tls.Certificate{PrivateKey: h.key}
	for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
		if b.Type != block {
			return nil, fmt.Errorf("a block %q in the place of a certificate", b.Type)
		}
		cert.Certificate = append(cert.Certificate, b.Bytes)
	}
	if len(cert.Certificate) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	var err error
	if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	if !h.key.PublicKey.Equal(cert.Leaf.PublicKey) {
		return nil, errors.New("the certificate is of another key")
	}
	if err := cert.Leaf.VerifyHostname(h.Name); err != nil {
		return nil, fmt.Errorf("the certificate is of another server: %w", err)
	}
	if h.Now().After(cert.Leaf.NotAfter) {
		return nil, errors.New("the certificate has expired")
	}
	return cert, nil
}

// encode is what take takes.
func encode(chain [][]byte) []byte {
	var out bytes.Buffer
	for _, der := range chain {
		_ = pem.Encode(&out, &pem.Block{Type: block, Bytes: der}) // a bytes.Buffer takes everything
	}
	return out.Bytes()
}
