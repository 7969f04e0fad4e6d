// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"encoding/base64"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/live"
)

// Caller returns who asks by gRPC. The token is a bearer token in the metadata, or, for clients
// that know no others, the password of HTTP's basic scheme, whatever the name is. The error has a
// status.
func (g *Guard) Caller(ctx context.Context) (*peerauth.User, error) {
	var from netip.Addr
	if p, is := peer.FromContext(ctx); is {
		from = httplimit.AddrOf(p.Addr.String())
	}
	u, err := g.User(ctx, from, tokenOf(metadata.ValueFromIncomingContext(ctx, "authorization")))
	switch {
	case errors.Is(err, ErrToken):
		return nil, status.Error(codes.Unauthenticated, "a bearer token of the API server is needed, or one as password of basic authentication")
	case errors.Is(err, ErrBusy):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case err != nil:
		return nil, status.Error(codes.Unavailable, "the API server does not answer")
	}
	return u, nil
}

func tokenOf(values []string) string {
	if len(values) != 1 {
		return ""
	}
	scheme, value, _ := strings.Cut(values[0], " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return value
	case strings.EqualFold(scheme, "Basic"):
		text, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return ""
		}
		_, password, _ := strings.Cut(string(text), ":")
		return password
	}
	return ""
}

// How many calls are answered at a time, of one user and of all, and how many of them read: each
// has records, or sums of them, in memory. Who follows is one call.
const (
	callsOfUser = 4
	callsOfAll  = 16
	readings    = 2
)

// Calls lets callers of gRPC read from the store what they may see. Whom the server's handshake
// verified by a certificate of clients sees everything. It is safe for concurrent use.
type Calls struct {
	Guard *Guard
	Store *ask.Store

	once    sync.Once
	reading chan struct{}

	mu    sync.Mutex
	users map[string]int
	total int
}

// Call is one of a user's. Whether the token still counts, and what the user may see, is looked at
// for each reading.
type Call struct {
	of    *Calls
	user  string
	scope *Scope // at the call's beginning
}

// Begin begins a call of who asks; done ends it. The error has a status.
func (c *Calls) Begin(ctx context.Context) (call *Call, done func(), err error) {
	u, scope, err := c.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[u.Name] >= callsOfUser || c.total >= callsOfAll {
		return nil, nil, status.Error(codes.ResourceExhausted, "too many calls at a time")
	}
	if c.users == nil {
		c.users = map[string]int{}
	}
	c.users[u.Name]++
	c.total++
	return &Call{c, u.Name, scope}, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.total--
		if c.users[u.Name]--; c.users[u.Name] == 0 {
			delete(c.users, u.Name)
		}
	}, nil
}

// certified is who asks by a certificate that the handshake verified, while it counts; nil =
// nobody.
func certified(ctx context.Context) *peerauth.User {
	p, is := peer.FromContext(ctx)
	if !is {
		return nil
	}
	info, is := p.AuthInfo.(credentials.TLSInfo)
	if !is || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	leaf := info.State.VerifiedChains[0][0]
	if !time.Now().Before(leaf.NotAfter) {
		return nil
	}
	return &peerauth.User{Name: "certificate " + leaf.Subject.CommonName}
}

// look finds out who asks, and what that user may see: everything by a certificate.
func (c *Calls) look(ctx context.Context) (*peerauth.User, *Scope, error) {
	if u := certified(ctx); u != nil {
		return u, &Scope{all: true}, nil
	}
	u, err := c.Guard.Caller(ctx)
	if err != nil {
		return nil, nil, err
	}
	scope, err := c.Guard.Scope(ctx, u)
	switch {
	case err != nil:
		return nil, nil, status.Error(codes.Unavailable, "the API server does not answer")
	case scope.Nothing():
		return nil, nil, status.Errorf(codes.PermissionDenied, "the verb list on %s in group %s is needed, in a namespace or in all", Resource, live.Group)
	}
	return u, scope, nil
}

// Read hands on the records of a question that the user may see, until give returns an error,
// which it returns then.
func (c *Call) Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) error {
	u, scope, err := c.of.look(ctx)
	if err != nil {
		return err
	}
	if u.Name != c.user {
		return status.Error(codes.Unauthenticated, "the token is another user's now")
	}
	c.of.once.Do(func() { c.of.reading = make(chan struct{}, readings) })
	select {
	case c.of.reading <- struct{}{}:
		defer func() { <-c.of.reading }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	_, err = Reader{From: c.of.Store, Scope: scope}.Read(ctx, q, give)
	return err
}

// Status is how the store is.
func (c *Call) Status(ctx context.Context) (*flows.StoreStatus, error) {
	answer, err := c.of.Store.Read(ctx, flows.Question{Status: true}, func(*flows.Flow) error { return nil })
	if err != nil {
		return nil, err
	}
	return answer.Store, nil
}

// All says whether the user may see everything.
func (c *Call) All() bool { return c.scope.All() }
