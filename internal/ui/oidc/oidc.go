// SPDX-License-Identifier: Apache-2.0

// Package oidc gets ID tokens for users of the page in the browser by OpenID Connect (Core 1.0, the
// code flow, with PKCE of RFC 7636): the browser goes to the issuer and comes back with a code, for
// which the issuer gives the token. Whose token it is, and what that user may do, the API server
// says, which has to take tokens of the same issuer and client. What a browser has begun it keeps
// itself, in a cookie that no script reads; nothing is kept here before a log-in has ended.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// Cookie is the cookie's name while a browser is at the issuer.
const Cookie = "__Host-weir-oidc"

const (
	// begunFor is how long a browser may stay at the issuer.
	begunFor = 10 * time.Minute
	// askWithin bounds each request to the issuer.
	askWithin = 10 * time.Second
)

// Why there is no token; found with errors.Is.
var (
	// ErrBegun: this browser has begun no log-in, or that was too long ago.
	ErrBegun = errors.New("this browser has begun no log-in, or that was too long ago")
	// ErrRefused: the issuer, or the user there, refused.
	ErrRefused = errors.New("the issuer refuses")
)

// Tokens are what the issuer gave.
type Tokens struct {
	ID      string    // a JWT
	Expires time.Time // of ID
	refresh string    // empty = the issuer gave none
}

// Issuer is one that users log in at. It is safe for concurrent use.
type Issuer struct {
	dir string

	mu    sync.Mutex
	known *connection // with the files of then
}

// New returns the issuer of a folder with the files of a Secret: issuer (a URL of https),
// client-id, and, where the issuer wants them, client-secret, scopes (besides openid, by spaces)
// and ca.crt. They are read for each log-in.
func New(dir string) *Issuer { return &Issuer{dir: dir} }

// connection is what was found out about an issuer.
type connection struct {
	files    [sha256.Size]byte
	client   *http.Client
	oauth    oauth2.Config // without RedirectURL
	verifier *gooidc.IDTokenVerifier
}

// connect reads the files, and what the issuer says of itself where they have changed.
func (i *Issuer) connect(ctx context.Context) (*connection, error) {
	text := map[string]string{}
	sum := sha256.New()
	for _, name := range []string{"issuer", "client-id", "client-secret", "scopes", "ca.crt"} {
		b, err := os.ReadFile(filepath.Join(i.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("settings of the issuer: %w", err)
		}
		text[name] = strings.TrimSpace(string(b))
		fmt.Fprintf(sum, "%d %s", len(b), b)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var files [sha256.Size]byte
	if sum.Sum(files[:0]); i.known != nil && i.known.files == files {
		return i.known, nil
	}
	if at, err := url.Parse(text["issuer"]); err != nil || at.Scheme != "https" || at.Host == "" || text["client-id"] == "" {
		return nil, fmt.Errorf("the Secret of the issuer needs issuer, a URL of https, and client-id; issuer is %q", text["issuer"])
	}
	c := &connection{files: files, client: &http.Client{Timeout: askWithin}}
	if text["ca.crt"] != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(text["ca.crt"])) {
			return nil, errors.New("ca.crt of the issuer has no certificate")
		}
		c.client.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: askWithin, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	}
	// The keys of the issuer are asked for with this context later, too.
	provider, err := gooidc.NewProvider(gooidc.ClientContext(context.WithoutCancel(ctx), c.client), text["issuer"])
	if err != nil {
		return nil, fmt.Errorf("ask the issuer: %w", err)
	}
	c.oauth = oauth2.Config{ClientID: text["client-id"], ClientSecret: text["client-secret"], Endpoint: provider.Endpoint(),
		Scopes: append([]string{gooidc.ScopeOpenID}, strings.Fields(text["scopes"])...)}
	c.verifier = provider.Verifier(&gooidc.Config{ClientID: text["client-id"]})
	i.known = c
	return c, nil
}

// at is the configuration for a page at an origin.
func (c *connection) at(redirect string) *oauth2.Config {
	out := c.oauth
	out.RedirectURL = redirect
	return &out
}

// Begin sends the browser to the issuer, from where it comes back to redirect. Nothing is written
// where it returns an error.
func (i *Issuer) Begin(w http.ResponseWriter, r *http.Request, redirect string) error {
	c, err := i.connect(r.Context())
	if err != nil {
		return err
	}
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	http.SetCookie(w, cookie(strings.Join([]string{state, nonce, verifier}, "."), int(begunFor/time.Second)))
	http.Redirect(w, r, c.at(redirect).AuthCodeURL(state, gooidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), http.StatusSeeOther)
	return nil
}

// End is the log-in that Begin began, of a browser that comes back: it asks the issuer for the
// tokens. The cookie counts once.
func (i *Issuer) End(w http.ResponseWriter, r *http.Request, redirect string) (*Tokens, error) {
	begun, err := r.Cookie(Cookie)
	http.SetCookie(w, cookie("", -1))
	if err != nil {
		return nil, ErrBegun
	}
	// A verifier of RFC 7636 may have dots, one of GenerateVerifier has none.
	parts := strings.Split(begun.Value, ".")
	q := r.URL.Query()
	if len(parts) != 3 || parts[0] == "" || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(parts[0])) != 1 {
		return nil, ErrBegun
	}
	if q.Get("error") != "" || q.Get("code") == "" {
		return nil, fmt.Errorf("%w: %q", ErrRefused, q.Get("error"))
	}
	c, err := i.connect(r.Context())
	if err != nil {
		return nil, err
	}
	ctx := gooidc.ClientContext(r.Context(), c.client)
	got, err := c.at(redirect).Exchange(ctx, q.Get("code"), oauth2.VerifierOption(parts[2]))
	if err != nil {
		return nil, refusal(err)
	}
	out, id, err := c.read(ctx, got)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(parts[1])) != 1 {
		return nil, fmt.Errorf("%w: the ID token is that of another log-in", ErrRefused)
	}
	return out, nil
}

// Refresh returns later tokens of the same log-in; ErrRefused: it is over.
func (i *Issuer) Refresh(ctx context.Context, t *Tokens) (*Tokens, error) {
	if t.refresh == "" {
		return nil, fmt.Errorf("%w: it gave no refresh token", ErrRefused)
	}
	c, err := i.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx = gooidc.ClientContext(ctx, c.client)
	got, err := c.oauth.TokenSource(ctx, &oauth2.Token{RefreshToken: t.refresh}).Token()
	if err != nil {
		return nil, refusal(err)
	}
	out, _, err := c.read(ctx, got)
	return out, err
}

// read takes the ID token out of an answer, and checks it.
func (c *connection) read(ctx context.Context, got *oauth2.Token) (*Tokens, *gooidc.IDToken, error) {
	raw, is := got.Extra("id_token").(string)
	if !is {
		return nil, nil, fmt.Errorf("%w: its answer has no ID token", ErrRefused)
	}
	id, err := c.verifier.Verify(ctx, raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return &Tokens{ID: raw, Expires: id.Expiry, refresh: got.RefreshToken}, id, nil
}

// refusal tells an issuer that refuses from one that does not answer.
func refusal(err error) error {
	if said := (*oauth2.RetrieveError)(nil); errors.As(err, &said) && said.Response != nil && said.Response.StatusCode < http.StatusInternalServerError {
		return fmt.Errorf("%w: %q", ErrRefused, said.ErrorCode)
	}
	return fmt.Errorf("ask the issuer: %w", err)
}

// cookie goes along when the issuer's page leads back here, which is another site.
func cookie(value string, age int) *http.Cookie {
	return &http.Cookie{Name: Cookie, Value: value, Path: "/", MaxAge: age, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode}
}
