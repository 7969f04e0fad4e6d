// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// User is who asks, as the API server says.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string]authorizationv1.ExtraValue
}

// What keeps a request from being answered.
var (
	// ErrNotProxied: the request does not come from the API server.
	ErrNotProxied = errors.New("only the API server may ask here, on behalf of its users")
	// ErrUnknownProxy: it is not known yet by which certificate the API server shows itself.
	ErrUnknownProxy = errors.New("how the API server shows itself was not read yet")
)

// FrontProxy knows the users of requests that the API server hands on (its aggregation layer): it
// shows a certificate of an authority that ConfigMap kube-system/extension-apiserver-authentication
// names, and says in headers who asked.
type FrontProxy struct {
	Kube kubernetes.Interface
	Log  *slog.Logger
	Now  func() time.Time

	mu    sync.Mutex
	trust *proxyTrust
}

// proxyTrust is what the ConfigMap says.
type proxyTrust struct {
	roots                        *x509.CertPool
	names                        []string // common names of the API server; none = any that the authority signed
	user, uid, group, extraStart []string // names of headers
}

const (
	proxyNamespace = "kube-system"
	proxyConfigMap = "extension-apiserver-authentication"
)

// Run keeps what the ConfigMap says until ctx ends.
func (p *FrontProxy) Run(ctx context.Context) {
	for said := ""; ctx.Err() == nil; {
		err := p.Refresh(ctx)
		if text := textOf(err); text != said && ctx.Err() == nil {
			if said = text; err != nil {
				p.Log.Warn("requests of the API server cannot be distinguished from others', and are refused; trying again", "err", err)
			}
		}
		wait := lookInterval
		if err != nil {
			wait = lookSoon
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// Refresh reads the ConfigMap. What cannot be trusted takes the place of what was read before, too.
func (p *FrontProxy) Refresh(ctx context.Context) error {
	have, err := p.Kube.CoreV1().ConfigMaps(proxyNamespace).Get(ctx, proxyConfigMap, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get ConfigMap %s/%s: %w", proxyNamespace, proxyConfigMap, err)
	}
	trust, err := readProxyTrust(have.Data)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trust = trust
	return err
}

func readProxyTrust(data map[string]string) (*proxyTrust, error) {
	bundle := data["requestheader-client-ca-file"]
	if bundle == "" {
		return nil, fmt.Errorf("ConfigMap %s/%s names no requestheader-client-ca-file: the API server's aggregation layer is not configured", proxyNamespace, proxyConfigMap)
	}
	t := &proxyTrust{roots: x509.NewCertPool()}
	if !t.roots.AppendCertsFromPEM([]byte(bundle)) {
		return nil, fmt.Errorf("ConfigMap %s/%s: requestheader-client-ca-file has no certificate", proxyNamespace, proxyConfigMap)
	}
	for key, into := range map[string]*[]string{"requestheader-allowed-names": &t.names, "requestheader-username-headers": &t.user,
		"requestheader-uid-headers": &t.uid, "requestheader-group-headers": &t.group, "requestheader-extra-headers-prefix": &t.extraStart} {
		if text := data[key]; text != "" {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				return nil, fmt.Errorf("ConfigMap %s/%s: %s is no list: %w", proxyNamespace, proxyConfigMap, key, err)
			}
		}
	}
	if len(t.user) == 0 {
		return nil, fmt.Errorf("ConfigMap %s/%s names no requestheader-username-headers", proxyNamespace, proxyConfigMap)
	}
	// Every user with a certificate could say that it is somebody else.
	if len(t.names) == 0 && strings.TrimSpace(bundle) == strings.TrimSpace(data["client-ca-file"]) {
		return nil, errors.New("the API server's users and its front proxy have certificates of one authority, and --requestheader-allowed-names names nobody: they cannot be distinguished")
	}
	return t, nil
}

// User returns who asked for a request.
func (p *FrontProxy) User(r *http.Request) (*User, error) {
	p.mu.Lock()
	t := p.trust
	p.mu.Unlock()
	if t == nil {
		return nil, ErrUnknownProxy
	}
	if err := t.verify(r, p.Now()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotProxied, err)
	}
	u := &User{Name: first(r.Header, t.user), UID: first(r.Header, t.uid), Extra: map[string]authorizationv1.ExtraValue{}}
	if u.Name == "" {
		return nil, fmt.Errorf("%w: it names no user", ErrNotProxied)
	}
	for _, h := range t.group {
		u.Groups = append(u.Groups, r.Header.Values(h)...)
	}
	for name, values := range r.Header {
		for _, prefix := range t.extraStart {
			if rest, is := strings.CutPrefix(strings.ToLower(name), strings.ToLower(prefix)); is && prefix != "" {
				if key, err := url.PathUnescape(rest); err == nil {
					rest = key
				}
				u.Extra[rest] = append(u.Extra[rest], values...)
			}
		}
	}
	return u, nil
}

// verify checks that the API server sent a request.
func (t *proxyTrust) verify(r *http.Request, now time.Time) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return errors.New("it came without a certificate")
	}
	shown := r.TLS.PeerCertificates
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	if _, err := shown[0].Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err
	}
	if len(t.names) > 0 && !slices.Contains(t.names, shown[0].Subject.CommonName) {
		return fmt.Errorf("its certificate is of %q", shown[0].Subject.CommonName)
	}
	return nil
}

// first returns the value of the first of some headers that has one.
func first(h http.Header, names []string) string {
	for _, name := range names {
		if v := h.Get(name); v != "" {
			return v
		}
	}
	return ""
}
