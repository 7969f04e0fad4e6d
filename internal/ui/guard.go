// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// policy is the Content-Security-Policy of all answers: the page's own files and nothing else, no
// script in text, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard refuses what does not come from the page: a name that leads to this address by DNS
// rebinding, and pages of other origins. The page is where a request is to be let through without.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		asks := strings.HasPrefix(r.URL.Path, "/api/")
		origin, from := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
		switch {
		case !slices.ContainsFunc(s.Origins, func(o string) bool { return hostOf(o) == r.Host }):
			fail(w, http.StatusMisdirectedRequest, "this is not the server of that host")
		case origin != "" && !slices.Contains(s.Origins, origin):
			fail(w, http.StatusForbidden, "the page of another origin asks")
		case asks && from != "" && from != "same-origin" && !isCallback(r):
			fail(w, http.StatusForbidden, "another page asks")
		case r.URL.Path == SessionPath && r.Method != http.MethodGet && origin == "":
			fail(w, http.StatusForbidden, "who logs in or out says from which page")
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxQuestion)
			next.ServeHTTP(w, r)
		}
	})
}

// isCallback: does a browser come back from the issuer at which its user logged in? What it brings
// counts with the cookie of that browser alone.
func isCallback(r *http.Request) bool {
	return r.URL.Path == OIDCCallbackPath && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// hostOf is what a browser writes into the header Host for an origin.
func hostOf(origin string) string {
	_, host, _ := strings.Cut(origin, "://")
	return host
}

// access serves a request with the rights of who asks.
func (s *server) access(serve func(http.ResponseWriter, *http.Request, Source)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of, err := s.Access(r)
		switch {
		case errors.Is(err, ErrBusy):
			fail(w, http.StatusTooManyRequests, err.Error())
			return
		case errors.Is(err, ErrAway):
			s.Log.Warn("it cannot be asked who asks", "err", err)
			fail(w, http.StatusServiceUnavailable, ErrAway.Error())
			return
		case err != nil:
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, err.Error())
			return
		}
		serve(w, r, of)
	})
}

// Token is the Access of one user, who shows that it is him by a token in the header
// Authorization, as `Bearer TOKEN`. It is no cookie: browsers send these to every port of a host,
// and the ports of a machine belong to all of its users.
func Token(token string, of Source) func(*http.Request) (Source, error) {
	return func(r *http.Request) (Source, error) {
		scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(got), []byte(token)) != 1 {
			return nil, errors.New("the token is missing or is not that of this server")
		}
		return of, nil
	}
}

// Seen puts U+FFFD in the place of what is not seen as a character: marks of direction, with which
// a name shows as another one, and characters that have no width. Of JSON all of these are within
// strings, and control characters are escaped already.
func Seen(text []byte) []byte {
	if !slices.ContainsFunc(text, func(b byte) bool { return b >= utf8.RuneSelf }) {
		return text
	}
	return bytes.Map(func(c rune) rune {
		if c == '\n' || unicode.IsPrint(c) {
			return c
		}
		return utf8.RuneError
	}, text)
}
