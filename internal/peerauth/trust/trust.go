// SPDX-License-Identifier: Apache-2.0

// Package trust is the part of peerauth that agents use: it makes sure that a server is Weir's
// before anything is sent to it, and reads the token by which the agent proves itself. Both are
// files of the agent's pod, which the kubelet renews.
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Files in a folder: the certificates of authorities, and the tokens for controllers, for fan-outs
// and for the store of flow records.
const (
	bundleFile      = "ca.crt"
	tokenFile       = "token"
	fanOutTokenFile = "fanout-token"
	storeTokenFile  = "flows-token"
)

// DefaultDir is where the agent's pod has them.
const DefaultDir = "/var/run/secrets/weir/peers"

// Folder is where the files are.
type Folder string

// Client returns the configuration of a connection to a server of a name. It is made anew for each
// connection: the files change.
func (f Folder) Client(server string) (*tls.Config, error) {
	path := filepath.Join(string(f), bundleFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the certificates of Weir's authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate yet", path)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: server, RootCAs: roots, NextProtos: []string{"http/1.1"}}, nil
}

// Token returns the token for controllers.
func (f Folder) Token() (string, error) { return f.token(tokenFile) }

// FanOutToken returns the token for fan-outs.
func (f Folder) FanOutToken() (string, error) { return f.token(fanOutTokenFile) }

// StoreToken returns the token for the store of flow records.
func (f Folder) StoreToken() (string, error) { return f.token(storeTokenFile) }

func (f Folder) token(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(f), file))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return token, nil
}
