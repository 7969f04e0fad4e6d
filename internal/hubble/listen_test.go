// SPDX-License-Identifier: Apache-2.0

package hubble

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hubble/api/observer"
	"github.com/weir-net/weir/internal/hubble/api/peer"
	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth/nodecert"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a certificate, which signs itself where there is no authority yet.
func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := template, key
	if a.cert != nil {
		parent, by = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// pair makes a certificate for a name and a use, of groups.
func (a *authority) pair(name string, use x509.ExtKeyUsage, groups ...string) tls.Certificate {
	cert, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use}})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// write puts what a server needs into files.
func (a *authority) write(dir string, server tls.Certificate) Files {
	a.t.Helper()
	f := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	key, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		f.Cert: {Type: "CERTIFICATE", Bytes: server.Certificate[0]}, f.Key: {Type: "PRIVATE KEY", Bytes: key}, f.CA: {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return f
}

// Who has a certificate of the authority, made for clients, is answered, and nobody else; files
// that are renewed count for the next connection.
func TestClientsOfPort(t *testing.T) {
	t.Parallel()
	s, ours, theirs := newTestServer(t).Server, newAuthority(t, "ours"), newAuthority(t, "theirs")
	s.Port = 4244
	dir := t.TempDir()
	files := ours.write(dir, ours.pair(servername.Of("n1"), x509.ExtKeyUsageServerAuth))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving(t, func(ctx context.Context) error { return s.serveTLS(ctx, l, files) })
	grouped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving(t, func(ctx context.Context) error {
		return s.serveTLS(ctx, grouped, Files{Cert: files.Cert, Key: files.Key, CA: files.CA, Group: "readers"})
	})
	at := l.Addr().String()
	ask := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var nodes observer.GetNodesResponse
		if err := conn.Invoke(t.Context(), "/observer.Observer/GetNodes", &observer.GetNodesRequest{}, &nodes); err != nil {
			return err
		}
		if n := nodes.GetNodes()[0]; !n.GetTls().GetEnabled() || n.GetTls().GetServerName() != servername.Of("n1") || n.GetAddress() != "192.168.0.1:4244" {
			t.Errorf("%v", n)
		}
		var first *peer.ChangeNotification
		if first, err = stream[peer.ChangeNotification](t.Context(), t, conn, "/peer.Peer/Notify", &peer.NotifyRequest{}).Recv(); err != nil {
			return err
		}
		if first.GetAddress() != "192.168.0.1:4244" || first.GetTls().GetServerName() != servername.Of("n1") {
			t.Errorf("%v", first)
		}
		return nil
	}
	with := func(certs ...tls.Certificate) credentials.TransportCredentials {
		roots := x509.NewCertPool()
		roots.AddCert(ours.cert)
		roots.AddCert(theirs.cert)
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: servername.Of("n1"), Certificates: certs})
	}
	relay := ours.pair("relay", x509.ExtKeyUsageClientAuth)
	for _, c := range []struct {
		what  string
		creds credentials.TransportCredentials
		ok    bool
	}{
		{"no TLS", insecure.NewCredentials(), false},
		{"no certificate", with(), false},
		{"a certificate of another authority", with(theirs.pair("relay", x509.ExtKeyUsageClientAuth)), false},
		{"a server's certificate", with(ours.pair("relay", x509.ExtKeyUsageServerAuth)), false},
		{"a client's certificate", with(relay), true},
	} {
		if err := ask(c.creds); (err == nil) != c.ok || !c.ok && status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for _, c := range []struct {
		what string
		cert tls.Certificate
		ok   bool
	}{{"of no group", relay, false}, {"of another group", ours.pair("relay", x509.ExtKeyUsageClientAuth, "others"), false}, {"of the group", ours.pair("relay", x509.ExtKeyUsageClientAuth, "others", "readers"), true}} {
		at = grouped.Addr().String()
		if err := ask(with(c.cert)); (err == nil) != c.ok || !c.ok && status.Code(err) != codes.Unavailable {
			t.Errorf("where a group is needed, a certificate %s: %v", c.what, err)
		}
	}
	at = l.Addr().String()
	theirs.write(dir, theirs.pair(servername.Of("n1"), x509.ExtKeyUsageServerAuth))
	if err := ask(with(relay)); err == nil {
		t.Error("an authority that is no longer one is believed")
	}
	if err := ask(with(theirs.pair("relay", x509.ExtKeyUsageClientAuth))); err != nil {
		t.Errorf("with the new authority: %v", err)
	}
	if err := os.Remove(files.CA); err != nil {
		t.Fatal(err)
	}
	if err := ask(with(relay)); err == nil {
		t.Error("without authorities anybody is believed")
	}
}

// What is missing is said.
func TestFiles(t *testing.T) {
	t.Parallel()
	ours, dir := newAuthority(t, "ours"), t.TempDir()
	f := ours.write(dir, ours.pair("n1", x509.ExtKeyUsageServerAuth))
	if _, err := f.config(); err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]Files{
		"HUBBLECAFILE": {Cert: f.Cert, Key: f.Key}, "both or not at all": {Cert: f.Cert, CA: f.CA}, "not signed": {CA: f.CA, Issued: new(nodecert.Holder).Certificate}, "certificate": {Cert: f.Key, Key: f.Key, CA: f.CA}, "no such file": {Cert: f.Cert, Key: f.Key, CA: f.CA + "x"}, "has no certificate": {Cert: f.Cert, Key: f.Key, CA: f.Key},
	} {
		if _, err := bad.config(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s := newTestServer(t).Server; s.Fault(f) != nil || s.Fault(Files{}) == nil {
		t.Errorf("with files %v, without %v", s.Fault(f), s.Fault(Files{}))
	}
}

// A port that somebody else has is said, until it is free.
func TestFault(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ours, s := newAuthority(t, "ours"), newTestServer(t).Server
	files := ours.write(t.TempDir(), ours.pair("n1", x509.ExtKeyUsageServerAuth))
	s.Port = uint16(taken.Addr().(*net.TCPAddr).Port)
	serving(t, func(ctx context.Context) error { return s.ServePort(ctx, files, slog.New(slog.DiscardHandler)) })
	await.That(t, "the port is said to be taken", func() error {
		if err := s.Fault(files); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return fmt.Errorf("it says %v", err)
		}
		return nil
	})
}
