// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/hostile"
)

// authority makes certificates in files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue(name, nil, nil)
	return a
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// issue writes NAME.crt and NAME.key; without an issuer the certificate is its own.
func (a *authority) issue(name string, by *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	from := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: by == nil, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if by == nil {
		by, key = from, own
	}
	raw, err := x509.CreateCertificate(rand.Reader, from, by, &own.PublicKey, key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: raw}, name + ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(a.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, own
}

// pair issues a certificate by the authority and returns its files.
func (a *authority) pair(name string) (cert, key string) {
	a.issue(name, a.cert, a.key)
	return a.path(name + ".crt"), a.path(name + ".key")
}

// TestHostileMetricsAreNotServedInClear asks for metrics without, with a foreign and with a good
// certificate.
func TestHostileMetricsAreNotServedInClear(t *testing.T) {
	hostile.Record(t, "metrics that ask for certificates are read without one", hostile.Link, hostile.ControlPlane, hostile.Both)
	ours, foreign := newAuthority(t, "ours"), newAuthority(t, "foreign")
	port := freePort(t)
	e := config.Metrics{Endpoint: config.Endpoint{Enabled: true, Host: "127.0.0.1", Port: port}, TLS: config.MetricsTLS{ClientAuth: config.RequireAndVerifyClientCert}}
	l, m := &Listener{What: "metrics", Log: slog.New(slog.DiscardHandler)}, &MetricsTLS{}
	defer l.Close()
	read := func(scheme string, a *authority, client string) (string, error) {
		conf := &tls.Config{RootCAs: x509.NewCertPool()}
		conf.RootCAs.AddCert(ours.cert)
		if client != "" {
			pair, err := tls.LoadX509KeyPair(a.pair(client))
			if err != nil {
				t.Fatal(err)
			}
			// Whatever the server asks for, this one is offered.
			conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
		resp, err := c.Get(fmt.Sprintf("%s://127.0.0.1:%d/metrics", scheme, port))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret 1") })
	refused := func(when, scheme string, a *authority, client string) {
		t.Helper()
		if got, err := read(scheme, a, client); strings.Contains(got, "secret") {
			t.Errorf("%s: %s with certificate %q: got %q, %v", when, scheme, client, got, err)
		}
	}
	// Asked for, and the files are missing, or the word is none: nothing is served, and that is
	// said.
	for _, bad := range []config.MetricsTLS{e.TLS, {ClientAuth: "Require"}, {ClientAuth: config.NoClientCert, CAFile: "/nowhere"},
		{ClientAuth: config.NoClientCert, CertFile: ours.path("ours.crt"), KeyFile: ours.path("none.key")}} {
		e.TLS = bad
		m.Ensure(l, e, metrics)
		for _, scheme := range []string{"http", "https"} {
			refused(fmt.Sprint(bad), scheme, ours, "client")
		}
		if p := m.Problems("n1"); len(p) != 1 || !strings.Contains(p[0].Message, "metrics are not served") {
			t.Errorf("%+v: %v", bad, p)
		}
	}
	cert, key := ours.pair("server")
	e.TLS = config.MetricsTLS{ClientAuth: config.RequireAndVerifyClientCert, CertFile: cert, KeyFile: key, CAFile: ours.path("ours.crt")}
	m.Ensure(l, e, metrics)
	refused("verified", "http", ours, "client")
	refused("verified", "https", ours, "")
	refused("verified", "https", foreign, "client")
	if got, err := read("https", ours, "client"); got != "secret 1" || len(m.Problems("n1")) > 0 {
		t.Errorf("a good certificate: %q, %v; %v", got, err, m.Problems("n1"))
	}
	// Another certificate in the files takes the place of the first; files that are broken end it.
	if err := os.WriteFile(e.TLS.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: foreign.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	m.Ensure(l, e, metrics)
	refused("after a change of the authority", "https", ours, "client")
	if got, err := read("https", foreign, "client"); got != "secret 1" {
		t.Errorf("the new authority's: %q, %v", got, err)
	}
	if err := os.WriteFile(key, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.Ensure(l, e, metrics)
	refused("with a broken key", "https", foreign, "client")
	refused("with a broken key", "http", foreign, "client")
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
