// SPDX-License-Identifier: Apache-2.0

// Package session lets many users see the page in the browser: who shows a bearer token of the API
// server is logged in, and known by a cookie from then on. The token stays in this process, and is
// what the user's questions are asked with. A session ends when the user logs out, when the API
// server does not take the token any more, and by time.
package session

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/oidc"
)

// Cookie is the cookie's name. Browsers take one of this prefix from a server with TLS alone, and
// for no other host.
const Cookie = "__Host-weir-session"

const (
	// longest is how long a session lasts, idle how long one that nobody uses.
	longest = 12 * time.Hour
	idle    = time.Hour
	// reviewEvery is the time between two questions to the API server about a session's token.
	reviewEvery = time.Minute
	// mostSessions bounds the sessions of all users, mostOfUser those of one, of which the oldest
	// ends.
	mostSessions = 4096
	mostOfUser   = 16
)

// Keeper has the sessions. It is safe for concurrent use.
type Keeper struct {
	guard  *access.Guard
	source func(token string, u *peerauth.User) (ui.Source, error)
	log    *slog.Logger
	now    func() time.Time

	oidc *oidc.Issuer // nil = users log in by tokens alone

	reading chan struct{} // questions about flows

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]*session // by the cookie, or by the token of who shows that itself
	asking   map[string]int                 // questions under way, by user
	total    int                            // of asking
}

type session struct {
	user        *peerauth.User
	began, used time.Time
	shown       atomic.Pointer[shown]

	reviewing sync.Mutex // guards what follows
	reviewed  time.Time
	// expires is when the token does, where that is known, and renew gives a later one and its end;
	// nil = there is none.
	expires time.Time
	renew   func(context.Context) (string, time.Time, error)
}

// shown is the token of a session, and what answers by it.
type shown struct {
	token  string
	source ui.Source
}

// New returns a Keeper without sessions. source makes what answers a user, with the rights of the
// token. Where issuer is not nil users log in there, too.
func New(guard *access.Guard, source func(token string, u *peerauth.User) (ui.Source, error), issuer *oidc.Issuer, log *slog.Logger) *Keeper {
	return &Keeper{guard: guard, source: source, oidc: issuer, log: log, now: time.Now, reading: make(chan struct{}, reading), sessions: map[[sha256.Size]byte]*session{}, asking: map[string]int{}}
}

var errNobody = errors.New("log in: there is no session")

// Access is that of package ui: it knows users by the cookie, and those who come by a proxy that
// logs them in by the bearer token in the header.
func (k *Keeper) Access(r *http.Request) (ui.Source, error) {
	s, err := k.of(r)
	if err != nil {
		return nil, err
	}
	return &limited{s.shown.Load().source, k, s.user.Name}, nil
}

// of finds the session of a request.
func (k *Keeper) of(r *http.Request) (*session, error) {
	if scheme, token, is := strings.Cut(r.Header.Get("Authorization"), " "); is && strings.EqualFold(scheme, "Bearer") {
		return k.ofToken(r, token)
	}
	c, err := r.Cookie(Cookie)
	if err != nil {
		return nil, errNobody
	}
	key := keyOf("cookie", c.Value)
	s := k.find(key)
	if s == nil {
		return nil, errNobody
	}
	if err := k.review(r.Context(), s); err != nil {
		if errors.Is(err, access.ErrToken) {
			k.end(key)
		}
		return nil, answerable(err)
	}
	return s, nil
}

// ofToken is the session of who shows a token with each request.
func (k *Keeper) ofToken(r *http.Request, token string) (*session, error) {
	u, err := k.guard.User(r.Context(), httplimit.AddrOf(r.RemoteAddr), token)
	key := keyOf("token", token)
	if err != nil {
		k.end(key)
		return nil, answerable(err)
	}
	if s := k.find(key); s != nil && s.user.Name == u.Name {
		return s, nil
	}
	return k.begin(key, &session{user: u}, token)
}

// answerable marks errors that do not say that nobody is known.
func answerable(err error) error {
	switch {
	case errors.Is(err, access.ErrToken):
		return errors.New("log in again: the API server does not take the token any more")
	case errors.Is(err, access.ErrBusy):
		return errors.Join(ui.ErrBusy, err)
	}
	return errors.Join(ui.ErrAway, err)
}

func keyOf(kind, value string) [sha256.Size]byte { return sha256.Sum256([]byte(kind + " " + value)) }

// find returns a session that goes on.
func (k *Keeper) find(key [sha256.Size]byte) *session {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.sessions[key]
	if s == nil {
		return nil
	}
	now := k.now()
	if s.over(now) {
		delete(k.sessions, key)
		return nil
	}
	s.used = now
	return s
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.began) >= longest || now.Sub(s.used) >= idle
}

// review asks again whether the token counts, and is the same user's; where it ends soon, or counts
// no more, it asks for a later one.
func (k *Keeper) review(ctx context.Context, s *session) error {
	s.reviewing.Lock()
	defer s.reviewing.Unlock()
	now := k.now()
	if now.Sub(s.reviewed) < reviewEvery {
		return nil
	}
	var u *peerauth.User
	err := access.ErrToken
	if s.renew == nil || now.Before(s.expires.Add(-renewBefore)) {
		u, err = k.guard.Again(ctx, s.shown.Load().token)
	}
	if errors.Is(err, access.ErrToken) && s.renew != nil {
		u, err = k.renewed(ctx, s)
	}
	if err == nil && u.Name != s.user.Name {
		err = access.ErrToken
	}
	if err != nil {
		return err
	}
	s.reviewed = now
	return nil
}

// renewed gives a session a later token, and says whose that is.
func (k *Keeper) renewed(ctx context.Context, s *session) (*peerauth.User, error) {
	token, expires, err := s.renew(ctx)
	if errors.Is(err, oidc.ErrRefused) {
		return nil, errors.Join(access.ErrToken, err)
	}
	if err != nil {
		return nil, err
	}
	u, err := k.guard.Again(ctx, token)
	if err != nil || u.Name != s.user.Name {
		return u, err
	}
	of, err := k.source(token, u)
	if err != nil {
		return nil, err
	}
	s.expires = expires
	s.shown.Store(&shown{token, of})
	return u, nil
}

// Sessions is how many there are.
func (k *Keeper) Sessions() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	for _, s := range k.sessions {
		if !s.over(now) {
			n++
		}
	}
	return n
}

func (k *Keeper) end(key [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.sessions, key)
}

var errFull = errors.New("there are as many sessions as can be")

// begin begins a session, of a token that counts.
func (k *Keeper) begin(key [sha256.Size]byte, s *session, token string) (*session, error) {
	u := s.user
	of, err := k.source(token, u)
	if err != nil {
		return nil, errors.Join(ui.ErrAway, err)
	}
	now := k.now()
	s.began, s.used, s.reviewed = now, now, now
	s.shown.Store(&shown{token, of})
	k.mu.Lock()
	defer k.mu.Unlock()
	var own int
	var oldest [sha256.Size]byte
	var first time.Time
	for key, other := range k.sessions {
		switch {
		case other.over(now):
			delete(k.sessions, key)
		case other.user.Name == u.Name:
			if own++; first.IsZero() || other.began.Before(first) {
				oldest, first = key, other.began
			}
		}
	}
	switch {
	case own >= mostOfUser:
		delete(k.sessions, oldest)
	case len(k.sessions) >= mostSessions:
		return nil, errors.Join(ui.ErrBusy, errFull)
	}
	k.sessions[key] = s
	return s, nil
}

// who is the answer about a session.
type who struct {
	Login bool   `json:"login"`          // users log in here
	OIDC  bool   `json:"oidc,omitempty"` // by ui.OIDCPath, too
	User  string `json:"user,omitempty"` // who is logged in
}

// ServeHTTP answers ui.SessionPath: who is logged in (GET), the log-in by a token (POST), and the
// log-out (DELETE); and, where users log in at an issuer, the paths for that.
func (k *Keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != ui.SessionPath {
		switch {
		case k.oidc == nil || r.Method != http.MethodGet:
			fail(w, http.StatusNotFound, "there is no such question")
		case r.URL.Path == ui.OIDCPath:
			k.oidcBegin(w, r)
		case r.URL.Path == ui.OIDCCallbackPath:
			k.oidcEnd(w, r)
		default:
			fail(w, http.StatusNotFound, "there is no such question")
		}
		return
	}
	switch r.Method {
	case http.MethodGet:
		out := who{Login: true, OIDC: k.oidc != nil}
		if s, err := k.of(r); err == nil {
			out.User = s.user.Name
		}
		answer(w, http.StatusOK, out)
	case http.MethodPost:
		k.logIn(w, r)
	case http.MethodDelete:
		if c, err := r.Cookie(Cookie); err == nil {
			key := keyOf("cookie", c.Value)
			if s := k.find(key); s != nil {
				k.log.Info("a user logged out of the page", "user", s.user.Name)
				k.guard.Forget(s.shown.Load().token)
			}
			k.end(key)
		}
		http.SetCookie(w, cookie("", -1))
		answer(w, http.StatusOK, who{Login: true, OIDC: k.oidc != nil})
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		fail(w, http.StatusMethodNotAllowed, "there is no such question")
	}
}

func (k *Keeper) logIn(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Token string `json:"token"`
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, "the log-in is JSON with a token")
		return
	}
	u, err := k.enter(w, r, strings.TrimSpace(in.Token), time.Time{}, nil)
	switch {
	case errors.Is(err, access.ErrToken):
		k.log.Info("a log-in to the page was refused", "address", r.RemoteAddr)
		fail(w, http.StatusUnauthorized, "the API server does not take this token")
		return
	case errors.Is(err, access.ErrBusy):
		fail(w, http.StatusTooManyRequests, err.Error())
		return
	case errors.Is(err, errFull):
		fail(w, http.StatusServiceUnavailable, errFull.Error())
		return
	case err != nil:
		k.log.Warn("a token could not be looked at", "err", err)
		fail(w, http.StatusServiceUnavailable, "the API server does not answer")
		return
	}
	answer(w, http.StatusOK, who{Login: true, OIDC: k.oidc != nil, User: u.Name})
}

// enter begins a session of a token, and gives the browser its cookie.
func (k *Keeper) enter(w http.ResponseWriter, r *http.Request, token string, expires time.Time, renew func(context.Context) (string, time.Time, error)) (*peerauth.User, error) {
	u, err := k.guard.User(r.Context(), httplimit.AddrOf(r.RemoteAddr), token)
	if err != nil {
		return nil, err
	}
	value := rand.Text()
	if _, err := k.begin(keyOf("cookie", value), &session{user: u, expires: expires, renew: renew}, token); err != nil {
		return nil, err
	}
	k.log.Info("a user logged in to the page", "user", u.Name, "address", r.RemoteAddr)
	http.SetCookie(w, cookie(value, int(longest/time.Second)))
	return u, nil
}

// cookie is for this host and this server's pages alone, and no script reads it.
func cookie(value string, age int) *http.Cookie {
	return &http.Cookie{Name: Cookie, Value: value, Path: "/", MaxAge: age, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

func answer(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(ui.Seen(text)) // whoever is gone needs no answer
}

func fail(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": message})
}
