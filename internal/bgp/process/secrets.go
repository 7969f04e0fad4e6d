// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// Namespace is where the Secrets are.
const Namespace = "kube-system"

// maxSecret bounds what is read of a Secret: the API server stores 1 MiB at most.
const maxSecret = 2 << 20

// maxPassword is what the kernel takes (TCP_MD5SIG_MAXKEYLEN, linux/tcp.h).
const maxPassword = 80

// SecretsURL is the URL below which the Secrets are at an API server, host:port.
func SecretsURL(server string) string {
	return "https://" + server + "/api/v1/namespaces/" + Namespace + "/secrets/"
}

// secrets reads passwords again and again. What was read is good until something else is.
type secrets struct {
	url, account string
	every        time.Duration
	log          *slog.Logger
	changed      func()
	wake         chan struct{}

	mu     sync.Mutex
	needed map[model.SecretKey]bool
	known  map[model.SecretKey]string
	failed map[string]string // what was reported of a Secret
}

func newSecrets(o Options, known map[string]string) *secrets {
	s := &secrets{url: o.SecretsURL, account: o.AccountDir, every: o.Every, log: o.Log, wake: make(chan struct{}, 1), known: map[model.SecretKey]string{},
		failed: map[string]string{}, changed: func() {}}
	if s.every == 0 {
		s.every = time.Minute
	}
	for k, v := range known {
		if name, key, ok := strings.Cut(k, "/"); ok {
			s.known[model.SecretKey{Name: name, Key: key}] = v
		}
	}
	return s
}

func (s *secrets) get(k model.SecretKey) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.known[k]
	return v, ok
}

// all are those that are needed, for the file.
func (s *secrets) all() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for k, v := range s.known {
		out[k.Name+"/"+k.Key] = v
	}
	return out
}

// need says which are needed; others are forgotten.
func (s *secrets) need(keys map[model.SecretKey]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.needed, keys) {
		return
	}
	s.needed = keys
	maps.DeleteFunc(s.known, func(k model.SecretKey, _ string) bool { return !keys[k] })
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run reads until ctx ends: soon again while something is not known.
func (s *secrets) run(ctx context.Context) error {
	for {
		missing := s.read(ctx)
		next := time.Duration((0.75 + rand.Float64()/2) * float64(s.every))
		if missing {
			next = min(next, 5*time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-time.After(next):
		}
	}
}

// read reads what is needed, and reports whether something is not known.
func (s *secrets) read(ctx context.Context) (missing bool) {
	s.mu.Lock()
	byName := map[string][]string{}
	for k := range s.needed {
		byName[k.Name] = append(byName[k.Name], k.Key)
	}
	s.mu.Unlock()
	for name, keys := range byName {
		data, err := s.secret(ctx, name)
		different := false
		s.mu.Lock()
		for _, key := range keys {
			v, there := data[key]
			switch {
			case err != nil:
			case !there:
				err = fmt.Errorf("it has no key %q", key)
			case len(v) == 0 || len(v) > maxPassword:
				err = fmt.Errorf("key %q has %d bytes; a password has 1 to %d", key, len(v), maxPassword)
			default:
				k := model.SecretKey{Name: name, Key: key}
				if have, known := s.known[k]; !known || have != string(v) {
					s.known[k], different = string(v), true
				}
			}
			_, known := s.known[model.SecretKey{Name: name, Key: key}]
			missing = missing || !known
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != s.failed[name] && ctx.Err() == nil {
			if s.failed[name] = text; text != "" {
				s.log.Error("a password cannot be read; the one of before is good, if there was one", "secret", name, "error", err)
			}
		}
		s.mu.Unlock()
		if different {
			s.changed()
		}
	}
	return missing
}

// secret reads one.
func (s *secrets) secret(ctx context.Context, name string) (map[string][]byte, error) {
	if s.url == "" {
		return nil, errors.New("no API server is named")
	}
	token, err := os.ReadFile(filepath.Join(s.account, "token"))
	if err != nil {
		return nil, fmt.Errorf("reading the token: %w", err)
	}
	pem, err := os.ReadFile(filepath.Join(s.account, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the API server's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+url.PathEscape(name), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSecret))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("service account weir-bgp may not read Secret %s: grant it by a Role in %s (docs/guides/bgp.md)", name, Namespace)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the API server answers %s", resp.Status)
	}
	var v struct{ Data map[string][]byte }
	if err := json.Unmarshal(body, &v); err != nil {
		return nil, errors.New("the API server's answer is no Secret")
	}
	return v.Data, nil
}
