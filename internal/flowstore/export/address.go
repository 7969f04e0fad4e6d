// SPDX-License-Identifier: Apache-2.0

package export

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "golang.org/x/crypto/x509roots/fallback" // Weir's image has no authorities of its own
)

// Address is where records go: a scheme, which says whether there is TLS, a host and a port.
type Address struct{ Scheme, Host, Port string }

// ParseAddress reads "scheme://host:port"; the port may be left out.
func ParseAddress(text, port string, schemes ...string) (Address, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || !slices.Contains(schemes, u.Scheme) {
		return Address{}, fmt.Errorf("address %q is not one such as %s://collector.example.com:%s (%s)", text, schemes[0], port, strings.Join(schemes, ", "))
	}
	if u.Port() != "" {
		port = u.Port()
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return Address{}, fmt.Errorf("address %q: port %q is none", text, port)
	}
	return Address{u.Scheme, u.Hostname(), port}, nil
}

// HostPort is for net.Dial.
func (a Address) HostPort() string { return net.JoinHostPort(a.Host, a.Port) }

// The files of a folder of certificates, as a Secret of type kubernetes.io/tls has them.
const (
	caFile   = "ca.crt"
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// TLS returns the configuration of a connection. The folder, "" = none, may have the authorities of
// the server, otherwise public ones count, and a certificate of the client. It is read for each
// connection: who renews certificates changes the files.
func TLS(folder, server string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server}
	if folder == "" {
		return cfg, nil
	}
	text, err := os.ReadFile(filepath.Join(folder, caFile))
	switch {
	case err == nil:
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", filepath.Join(folder, caFile))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(folder, certFile), filepath.Join(folder, keyFile))
	switch {
	case err == nil:
		cfg.Certificates = []tls.Certificate{cert}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the client's certificate in %s: %w", folder, err)
	}
	return cfg, nil
}
