// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/localsock"
	"github.com/weir-net/weir/internal/sleep"
)

const (
	// mostRequest bounds a request, bytes.
	mostRequest = 1 << 20
	// mostStreams bounds what one connection asks at a time.
	mostStreams = 32
	// silence is how long a client may say nothing until it is asked whether it is there.
	silence = time.Minute
	// leastPing is how often a client may ask the same.
	leastPing = 5 * time.Second
	// healthOf is what clients ask the health of (Cilium: pkg/hubble/api/v1).
	healthOf = "hubble.server.Observer"
	// retry is how long a port waits for its files, and for who else has it.
	retry = 10 * time.Second
)

// Files are what the API is protected by at a port: the server's certificate and its key, and the
// authorities of clients. They are read for each connection, so that they can be renewed in place.
// Group is the organization that clients' certificates need, too; empty = any. Without Cert and Key
// the certificate is what Issued returns.
type Files struct {
	Cert, Key, CA, Group string
	Issued               func() (*tls.Certificate, error)
}

// pair is the server's certificate with its key.
func (f Files) pair() (*tls.Certificate, error) {
	if f.Cert == "" && f.Key == "" && f.Issued != nil {
		return f.Issued()
	}
	if f.Cert == "" || f.Key == "" {
		return nil, errors.New("FELIX_HUBBLECERTFILE and FELIX_HUBBLEKEYFILE are set both or not at all")
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	return &pair, nil
}

// config is what files say now. Clients without a certificate of one of the authorities, made for
// clients, do not get through the handshake.
func (f Files) config() (*tls.Config, error) {
	if f.CA == "" {
		return nil, errors.New("FELIX_HUBBLECAFILE is needed: the API is not served by TCP to clients without certificates")
	}
	pair, err := f.pair()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of clients: %w", err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*pair}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: x509.NewCertPool(), NextProtos: []string{"h2"}}
	if !out.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", f.CA)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate has expired, at %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if f.Group != "" {
		// At resumed connections, too.
		out.VerifyConnection = func(c tls.ConnectionState) error {
			if !slices.Contains(c.PeerCertificates[0].Subject.Organization, f.Group) {
				return fmt.Errorf("the client's certificate is not of organization %s", f.Group)
			}
			return nil
		}
	}
	return out, nil
}

// Fault is why the port is not served, or serves nobody; nil = it is served.
func (s *Server) Fault(f Files) error {
	if err := s.fault.Load(); err != nil {
		return *err
	}
	_, err := f.config()
	return err
}

// ServeSocket answers root at a socket until ctx ends.
func (s *Server) ServeSocket(ctx context.Context, path string) error {
	l, err := localsock.Listen(path)
	if err != nil {
		return err
	}
	return serve(ctx, l, s.register)
}

// ServePort answers by TLS at s.Port of every address until ctx ends. Without files it waits for
// them.
func (s *Server) ServePort(ctx context.Context, f Files, log *slog.Logger) error {
	for said := ""; ; {
		_, err := f.config()
		if err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(s.Port)))); err == nil {
				s.fault.Store(nil)
				return s.serveTLS(ctx, l, f)
			}
		}
		s.fault.Store(&err)
		if text := err.Error(); text != said {
			said = text
			log.Error("Hubble's API is not served by TCP; trying again", "port", s.Port, "error", err)
		}
		if sleep.For(ctx, retry) != nil {
			return nil
		}
	}
}

// serveTLS answers at l, which it closes, until ctx ends.
func (s *Server) serveTLS(ctx context.Context, l net.Listener, f Files) error {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.config() }}
	return serve(ctx, httplimit.NewListener(l, httplimit.DefaultTotal, httplimit.DefaultPerSource), s.register, grpc.Creds(credentials.NewTLS(cfg)))
}

func (s *Server) register(g *grpc.Server) {
	register(g, s)
	s.registerPeers(g)
}

// serve serves at l what register registers, until ctx ends.
func serve(ctx context.Context, l net.Listener, register func(*grpc.Server), more ...grpc.ServerOption) error {
	g := grpc.NewServer(append(more, grpc.MaxRecvMsgSize(mostRequest), grpc.MaxConcurrentStreams(mostStreams), grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}))...)
	register(g)
	up := health.NewServer() // "hubble status" asks
	up.SetServingStatus(healthOf, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, up)
	defer context.AfterFunc(ctx, g.Stop)()
	if err := g.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serving Hubble's API at %s: %w", l.Addr(), err)
	}
	return nil
}
