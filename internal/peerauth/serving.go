// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Serving serves TLS with a certificate of the newest authority that everybody knows. Each instance
// of a server makes its own: the key never leaves the process. It is safe for concurrent use.
type Serving struct {
	Kube            kubernetes.Interface
	Namespace, Name string // of the server, as clients ask for it
	Log             *slog.Logger
	Now             func() time.Time

	mu   sync.Mutex
	by   *authority
	cert *tls.Certificate
}

// How often the authorities are looked at: once there is a certificate, and before.
const (
	lookInterval = 30 * time.Second
	lookSoon     = 2 * time.Second
)

// Run keeps the certificate until ctx ends.
func (s *Serving) Run(ctx context.Context) {
	for said := ""; ctx.Err() == nil; {
		err := s.Refresh(ctx)
		if text := textOf(err); text != said && ctx.Err() == nil {
			if said = text; err != nil {
				s.Log.Warn("no serving certificate can be made; trying again", "name", s.Name, "err", err)
			}
		}
		wait := lookInterval
		if !s.Ready() {
			wait = lookSoon
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Refresh makes a new certificate where half of the life of the one in use is over, or where
// another authority signs.
func (s *Serving) Refresh(ctx context.Context) error {
	as, err := read(ctx, s.Kube, s.Namespace, ObjectName)
	if err != nil {
		return err
	}
	now := s.Now()
	by := as.signer(now)
	if by == nil {
		return errors.New("all authorities have expired: the leader makes a new one")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by != nil && s.by.cert.Equal(by.cert) && now.Before(s.cert.Leaf.NotBefore.Add(skew+servingLife/2)) {
		return nil
	}
	cert, err := by.issue(now, s.Name, servingLife)
	if err != nil {
		return err
	}
	s.by, s.cert = by, cert
	return nil
}

// Ready reports whether there is a certificate that has not expired.
func (s *Serving) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cert != nil && s.Now().Before(s.cert.Leaf.NotAfter)
}

// Err is nil once Ready.
func (s *Serving) Err() error {
	if !s.Ready() {
		return errors.New("there is no serving certificate yet")
	}
	return nil
}

// Config returns what to serve TLS by. Clients may show a certificate; it is not verified (see
// FrontProxy.User).
func (s *Serving) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if err := s.Err(); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.cert, nil
		}}
}
