// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/oidc"
)

// renewBefore is how long before its end an ID token is exchanged for a later one. Tokens are
// looked at each reviewEvery, which is less.
const renewBefore = 90 * time.Second

// Why a log-in by OpenID Connect came to nothing, for the page to say in words: it is in the
// fragment of the address to which the browser comes back.
const (
	failedBegun   = "#login=begun"   // the browser has begun none, or too long ago
	failedRefused = "#login=refused" // by the issuer
	failedToken   = "#login=token"   // the API server does not take the issuer's token
	failedAway    = "#login=away"    // the issuer or the API server does not answer
)

// redirectTo is where the issuer sends a browser. The server answers to its own hosts alone.
func redirectTo(r *http.Request) string { return "https://" + r.Host + ui.OIDCCallbackPath }

// oidcBegin sends a browser to the issuer.
func (k *Keeper) oidcBegin(w http.ResponseWriter, r *http.Request) {
	if err := k.oidc.Begin(w, r, redirectTo(r)); err != nil {
		k.log.Warn("no log-in by OpenID Connect", "err", err)
		http.Redirect(w, r, "/"+failedAway, http.StatusSeeOther)
	}
}

// oidcEnd logs in a browser that comes back from the issuer.
func (k *Keeper) oidcEnd(w http.ResponseWriter, r *http.Request) {
	tokens, err := k.oidc.End(w, r, redirectTo(r))
	if err == nil {
		renew := func(ctx context.Context) (string, time.Time, error) {
			later, err := k.oidc.Refresh(ctx, tokens)
			if err != nil {
				return "", time.Time{}, err
			}
			tokens = later // guarded by session.reviewing
			return later.ID, later.Expires, nil
		}
		_, err = k.enter(w, r, tokens.ID, tokens.Expires, renew)
	}
	to := "/"
	switch {
	case err == nil:
	case errors.Is(err, oidc.ErrBegun):
		to += failedBegun
	case errors.Is(err, oidc.ErrRefused):
		to += failedRefused
	case errors.Is(err, access.ErrToken):
		to += failedToken
	default:
		to += failedAway
	}
	if err != nil {
		k.log.Info("a log-in by OpenID Connect failed", "address", httplimit.AddrOf(r.RemoteAddr), "err", err)
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}
