// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/config"
)

// MetricsTLS holds what metrics are protected with. Where it is asked for and cannot be had
// exactly, metrics are not served.
type MetricsTLS struct {
	mu    sync.Mutex
	want  config.MetricsTLS
	stamp string      // of the files that were read
	have  *tls.Config // what they say
	err   error
}

// refresh reads the files again when they have changed, and returns what to serve by; nil, nil =
// without encryption, as nothing else is asked for. A connection is opened by what was read last,
// so that a certificate can be renewed in place.
func (m *MetricsTLS) refresh(enabled bool, want config.MetricsTLS) (*tls.Config, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !enabled || !want.Wanted() {
		m.want, m.stamp, m.have, m.err = want, "", nil, nil
		return nil, nil
	}
	if stamp := stampOf(want.CAFile, want.CertFile, want.KeyFile); want != m.want || stamp != m.stamp || m.err != nil {
		m.want, m.stamp = want, stamp
		m.have, m.err = loadMetricsTLS(want)
	}
	if m.err != nil {
		return nil, m.err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.have, m.err
	}}, nil
}

// Ensure serves metrics as they are to be protected, or not at all.
func (m *MetricsTLS) Ensure(l *Listener, e config.Metrics, handler http.Handler) {
	secure, err := m.refresh(e.Enabled, e.TLS)
	if err != nil {
		l.Ensure("", nil)
		return
	}
	l.tls = secure
	l.Ensure(Address(e.Endpoint), handler)
}

// Problems says why metrics are not served.
func (m *MetricsTLS) Problems(node string) []weirv1.Problem {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		return nil
	}
	return []weirv1.Problem{{Object: "Node " + node, Field: "prometheusMetricsClientAuth", Value: m.want.ClientAuth,
		Message: "metrics are not served, because they cannot be protected as it is asked for: " + m.err.Error(),
		Action:  "correct prometheusMetricsClientAuth, CertFile, KeyFile and CAFile of FelixConfiguration or of the environment, and mount the files in DaemonSet weir-node"}}
}

// stampOf distinguishes versions of files.
func stampOf(paths ...string) string {
	var out strings.Builder
	for _, p := range paths {
		if info, err := os.Stat(p); err == nil {
			fmt.Fprintf(&out, "%s %d %d\n", p, info.Size(), info.ModTime().UnixNano())
		}
	}
	return out.String()
}

var clientAuth = map[string]tls.ClientAuthType{
	config.NoClientCert: tls.NoClientCert, config.RequireAnyClientCert: tls.RequireAnyClientCert,
	config.VerifyClientCertIfGiven: tls.VerifyClientCertIfGiven, config.RequireAndVerifyClientCert: tls.RequireAndVerifyClientCert,
}

func loadMetricsTLS(want config.MetricsTLS) (*tls.Config, error) {
	auth, known := clientAuth[want.ClientAuth]
	switch {
	case !known:
		return nil, errors.New("prometheusMetricsClientAuth is none of NoClientCert, RequireAnyClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert")
	case want.CertFile == "" || want.KeyFile == "":
		return nil, errors.New("prometheusMetricsCertFile and prometheusMetricsKeyFile are needed")
	case want.CAFile == "" && auth >= tls.VerifyClientCertIfGiven:
		return nil, errors.New("prometheusMetricsCAFile is needed to verify the certificates of clients")
	}
	pair, err := tls.LoadX509KeyPair(want.CertFile, want.KeyFile)
	if err != nil {
		return nil, err
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: auth}
	if want.CAFile == "" {
		return out, nil
	}
	raw, err := os.ReadFile(want.CAFile)
	if err != nil {
		return nil, err
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s has no certificate", want.CAFile)
	}
	return out, nil
}
