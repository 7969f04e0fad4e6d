// SPDX-License-Identifier: Apache-2.0

// Package access says which flow records a user of the API server may see, for servers that answer
// many users with rights of their own. Who asks is known by a bearer token (TokenReview). A record
// is seen by who may list `flows` of group live.weir.dev in the namespace of a pod at either end
// (SubjectAccessReview); of an end in another namespace labels and policies are left out. Answers
// of the API server count for a minute at most.
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/peerauth"
)

// Why nobody is known by a token, or what a user may do is not known; found with errors.Is.
var (
	// ErrToken: the token does not count at the API server.
	ErrToken = errors.New("the API server does not take the token")
	// ErrBusy: too many tokens are looked at, or too many of the caller's did not count.
	ErrBusy = errors.New("too many attempts; try again")
)

const (
	// mostToken bounds a token's length, bytes.
	mostToken = 16 << 10
	// userFor is for how long a token's user is not asked for again.
	userFor = time.Minute
	// mostUsers bounds how many tokens are remembered.
	mostUsers = 4096
	// mostReviews bounds the questions about tokens that are under way.
	mostReviews = 16
	// failuresAtOnce are the tokens of one caller that may be wrong at once, and one more is
	// allowed each second; mostCallers bounds the callers that are told apart.
	failuresAtOnce = 20
	mostCallers    = 4096
)

// Guard asks the API server. It is safe for concurrent use.
type Guard struct {
	kube kubernetes.Interface
	now  func() time.Time

	reviews chan struct{}

	mu      sync.Mutex
	users   map[[sha256.Size]byte]knownUser
	callers map[netip.Prefix]*rate.Limiter
	scopes  map[[sha256.Size]byte]*scoping
}

type knownUser struct {
	user  *peerauth.User
	until time.Time
}

// New returns a Guard that asks by kube, which needs the rights to create TokenReviews and
// SubjectAccessReviews and to list namespaces.
func New(kube kubernetes.Interface) *Guard {
	return &Guard{kube: kube, now: time.Now, reviews: make(chan struct{}, mostReviews),
		users: map[[sha256.Size]byte]knownUser{}, callers: map[netip.Prefix]*rate.Limiter{}, scopes: map[[sha256.Size]byte]*scoping{}}
}

// User returns whose a token is. A caller whose tokens were wrong too often has to wait.
func (g *Guard) User(ctx context.Context, from netip.Addr, token string) (*peerauth.User, error) {
	if token == "" || len(token) > mostToken {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrToken, len(token))
	}
	key := sha256.Sum256([]byte(token))
	g.mu.Lock()
	known, is := g.users[key]
	failures := g.callerOf(from)
	g.mu.Unlock()
	if is && g.now().Before(known.until) {
		return known.user, nil
	}
	if failures.TokensAt(g.now()) < 1 {
		return nil, ErrBusy
	}
	user, err := g.review(ctx, token)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		delete(g.users, key)
		if errors.Is(err, ErrToken) {
			failures.AllowN(g.now(), 1)
		}
		return nil, err
	}
	if len(g.users) >= mostUsers {
		g.forget()
	}
	g.users[key] = knownUser{user, g.now().Add(userFor)}
	return user, nil
}

// Again is User for a token that counted before: failures of others do not hold it up.
func (g *Guard) Again(ctx context.Context, token string) (*peerauth.User, error) {
	return g.review(ctx, token)
}

// Forget has the token be asked about again when it comes next.
func (g *Guard) Forget(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.users, sha256.Sum256([]byte(token)))
}

// forget makes room among users.
func (g *Guard) forget() {
	now := g.now()
	for k, u := range g.users {
		if !now.Before(u.until) {
			delete(g.users, k)
		}
	}
	for k := range g.users {
		if len(g.users) < mostUsers {
			return
		}
		delete(g.users, k)
	}
}

// callerOf is how many more tokens of a caller may be wrong: of an address, of IPv6 of its /64.
func (g *Guard) callerOf(from netip.Addr) *rate.Limiter {
	from = from.Unmap()
	bits := from.BitLen()
	if from.Is6() {
		bits = 64
	}
	at, _ := from.Prefix(bits) // of no address it is the zero value
	l := g.callers[at]
	if l == nil {
		if len(g.callers) >= mostCallers {
			now := g.now()
			for k, of := range g.callers {
				if of.TokensAt(now) >= failuresAtOnce {
					delete(g.callers, k)
				}
			}
			for k := range g.callers {
				if len(g.callers) < mostCallers {
					break
				}
				delete(g.callers, k)
			}
		}
		l = rate.NewLimiter(rate.Every(time.Second), failuresAtOnce)
		g.callers[at] = l
	}
	return l
}

// review asks the API server whose a token is. Tokens that were made for another audience than the
// API server do not count there.
func (g *Guard) review(ctx context.Context, token string) (*peerauth.User, error) {
	select {
	case g.reviews <- struct{}{}:
		defer func() { <-g.reviews }()
	default:
		return nil, ErrBusy
	}
	got, err := g.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask the API server about a token: %w", err)
	}
	s := &got.Status
	if !s.Authenticated || s.User.Username == "" {
		return nil, ErrToken
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range s.User.Extra {
		extra[k] = authorizationv1.ExtraValue(slices.Clone(v))
	}
	return &peerauth.User{Name: s.User.Username, UID: s.User.UID, Groups: s.User.Groups, Extra: extra}, nil
}
