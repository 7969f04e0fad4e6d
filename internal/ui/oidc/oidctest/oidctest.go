// SPDX-License-Identifier: Apache-2.0

// Package oidctest is an issuer of OpenID Connect for tests: it logs in whom the test names,
// without a question, and gives ID tokens that end when the test says. It holds clients to what the
// protocol asks of them: the client's secret, PKCE, the redirection that the code was made for, and
// each code once.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	ClientID = "weir"
	Secret   = "client's secret"
)

// Issuer is one. Fields may be changed by the test between requests.
type Issuer struct {
	*httptest.Server

	mu      sync.Mutex
	user    string        // who is logged in; empty = the user refuses
	tokens  time.Duration // how long ID tokens count
	away    bool          // nothing is answered
	nonce   string        // in the place of the one that was asked for
	codes   map[string]code
	refresh map[string]string // users, by refresh token
	signer  jose.Signer
	keys    jose.JSONWebKeySet
}

type code struct{ challenge, nonce, redirect, user string }

// Start starts one, which the test's end stops.
func Start(t testing.TB) *Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{user: "somebody", tokens: time.Hour, codes: map[string]code{}, refresh: map[string]string{}, signer: signer,
		keys: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: string(jose.ES256), Use: "sig"}}}}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", i.describe)
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, i.keys) })
	mux.HandleFunc("/authorize", i.authorize)
	mux.HandleFunc("/token", i.token)
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.away {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

// Set changes who logs in, for how long ID tokens count, whether the issuer answers, and the nonce
// that it puts into tokens in the place of the right one (empty = the right one).
func (i *Issuer) Set(user string, tokens time.Duration, away bool, nonce string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.user, i.tokens, i.away, i.nonce = user, tokens, away, nonce
}

// Becomes makes refresh tokens those of another user.
func (i *Issuer) Becomes(user string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for token := range i.refresh {
		i.refresh[token] = user
	}
}

// CA is the file with the issuer's authority, PEM.
func (i *Issuer) CA(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, i.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (i *Issuer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
}

// Dir is the folder of the Secret with which weir-ui knows the issuer.
func (i *Issuer) Dir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"issuer": i.URL + "\n", "client-id": ClientID, "client-secret": Secret, "scopes": "offline_access", "ca.crt": string(i.pem())} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (i *Issuer) describe(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token", "jwks_uri": i.URL + "/keys",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"ES256"}})
}

// authorize is where browsers come to, and are sent back from at once.
func (i *Issuer) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("response_type") != "code" || q.Get("client_id") != ClientID || q.Get("code_challenge_method") != "S256" || q.Get("nonce") == "" || q.Get("state") == "" || q.Get("scope") != "openid offline_access" {
		http.Error(w, "not what a client asks: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	back := url.Values{"state": {q.Get("state")}}
	if i.user == "" {
		back.Set("error", "access_denied")
	} else {
		id := rand.Text()
		i.codes[id] = code{q.Get("code_challenge"), q.Get("nonce"), q.Get("redirect_uri"), i.user}
		back.Set("code", id)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// token gives tokens for a code, or for a refresh token.
func (i *Issuer) token(w http.ResponseWriter, r *http.Request) {
	id, secret, basic := r.BasicAuth()
	if basic {
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	if id != ClientID || secret != Secret {
		write(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client"})
		return
	}
	var user, nonce string
	switch r.PostFormValue("grant_type") {
	case "authorization_code":
		c, is := i.codes[r.PostFormValue("code")]
		delete(i.codes, r.PostFormValue("code"))
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if is && c.redirect == r.PostFormValue("redirect_uri") && c.challenge == base64.RawURLEncoding.EncodeToString(sum[:]) {
			user, nonce = c.user, c.nonce
		}
	case "refresh_token":
		user = i.refresh[r.PostFormValue("refresh_token")]
		delete(i.refresh, r.PostFormValue("refresh_token"))
	}
	if user == "" {
		write(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant"})
		return
	}
	if i.nonce != "" {
		nonce = i.nonce
	}
	next := rand.Text()
	i.refresh[next] = user
	write(w, http.StatusOK, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "refresh_token": next, "id_token": i.sign(user, nonce), "expires_in": 300})
}

// sign makes an ID token.
func (i *Issuer) sign(user, nonce string) string {
	now := time.Now()
	text, err := jwt.Signed(i.signer).Claims(map[string]any{"iss": i.URL, "aud": ClientID, "sub": user, "iat": now.Unix(), "exp": now.Add(i.tokens).Unix(), "nonce": nonce, "jti": rand.Text()}).Serialize()
	if err != nil {
		panic(err) // claims of texts and numbers have JSON
	}
	return text
}

// Subject is whose an ID token of the issuer is, and until when.
func (i *Issuer) Subject(raw string) (user string, until time.Time, ok bool) {
	parsed, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return "", time.Time{}, false
	}
	var claims jwt.Claims
	err = parsed.Claims(i.keys.Keys[0].Key, &claims)
	return claims.Subject, claims.Expiry.Time(), err == nil
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // whoever is gone needs no answer
}
