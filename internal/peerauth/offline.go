// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/sleep"
)

const (
	// keysEvery is the time between two looks at the keys that the API server signs tokens with.
	keysEvery = 5 * time.Minute
	keysRetry = 10 * time.Second
	// offlineFor is how long after the last look tokens are believed without the API server.
	offlineFor = time.Hour
	// maxKeys bounds the document with the keys, bytes.
	maxKeys = 1 << 20
)

// Offline says whose a token is while the API server does not answer: by the keys that it signs
// tokens with, as they were last, and by what is known of the pod that the token names. It is safe
// for concurrent use.
type Offline struct {
	lives func(Peer) bool
	log   *slog.Logger
	get   func(ctx context.Context, path string) ([]byte, error)
	now   func() time.Time

	mu     sync.Mutex
	issuer string
	keys   []publicKey
	at     time.Time // when they were read
}

// NewOffline returns an Offline that knows no keys before Run. lives says whether the pod of an
// agent is on its node, as far as is known.
func NewOffline(kube kubernetes.Interface, lives func(Peer) bool, log *slog.Logger) *Offline {
	return &Offline{lives: lives, log: log, now: time.Now, get: func(ctx context.Context, path string) ([]byte, error) {
		return kube.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "*/*").DoRaw(ctx)
	}}
}

// Run reads the keys again and again until ctx ends.
func (o *Offline) Run(ctx context.Context) {
	for said := ""; ; {
		next := keysEvery
		if err := o.Read(ctx); err != nil {
			next = keysRetry
			if text := err.Error(); text != said && ctx.Err() == nil {
				said = text
				o.log.Warn("the keys that the API server signs tokens with cannot be read: while it is away, agents that connect are believed for an hour by those that were read last", "err", err)
			}
		} else {
			said = ""
		}
		if sleep.For(ctx, next) != nil {
			return
		}
	}
}

// Read reads the keys once.
func (o *Offline) Read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keysRetry)
	defer cancel()
	text, err := o.get(ctx, "/.well-known/openid-configuration")
	if err != nil {
		return fmt.Errorf("read the issuer of tokens: %w", err)
	}
	var about struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(text, &about); err != nil || about.Issuer == "" {
		return fmt.Errorf("read the issuer of tokens: there is none in the answer (%w)", err)
	}
	if text, err = o.get(ctx, "/openid/v1/jwks"); err != nil {
		return fmt.Errorf("read the keys of tokens: %w", err)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return fmt.Errorf("read the keys of tokens: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.issuer, o.keys, o.at = about.Issuer, keys, o.now()
	return nil
}

// claims are what a bound token of a service account says.
type claims struct {
	Issuer    string    `json:"iss"`
	Subject   string    `json:"sub"`
	Audiences audiences `json:"aud"`
	Expires   float64   `json:"exp"`
	NotBefore float64   `json:"nbf"`
	Bound     struct {
		Namespace string `json:"namespace"`
		Node      ref    `json:"node"`
		Pod       ref    `json:"pod"`
	} `json:"kubernetes.io"`
}

type ref struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// audiences are a text or a list of them.
type audiences []string

func (a *audiences) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// review returns the agent that a token is of.
func (o *Offline) review(token, user, forWhom string) (Peer, error) {
	o.mu.Lock()
	issuer, keys, at := o.issuer, o.keys, o.at
	o.mu.Unlock()
	now := o.now()
	if len(keys) == 0 || now.Sub(at) >= offlineFor {
		return Peer{}, errors.New("the keys that it signs tokens with were not read within the last hour")
	}
	payload, err := verify(token, keys)
	if err != nil {
		return Peer{}, err
	}
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return Peer{}, fmt.Errorf("the token's claims: %w", err)
	}
	sec := float64(now.Unix())
	peer := Peer{Node: c.Bound.Node.Name, PodUID: c.Bound.Pod.UID}
	switch {
	case c.Issuer != issuer:
		return Peer{}, fmt.Errorf("the token is of issuer %q", c.Issuer)
	case !slices.Contains(c.Audiences, forWhom):
		return Peer{}, errors.New("the token was made for somebody else")
	case c.Subject != user || !strings.HasPrefix(user, "system:serviceaccount:"+c.Bound.Namespace+":"):
		return Peer{}, fmt.Errorf("the token is of %q", c.Subject)
	case sec >= c.Expires || sec < c.NotBefore:
		return Peer{}, errors.New("the token has expired, or does not count yet")
	case peer.Node == "" || peer.PodUID == "":
		return Peer{}, errors.New("the token names no node and pod; Kubernetes 1.30 is needed for that")
	case !o.lives(peer):
		return Peer{}, errors.New("the token's pod is not known to be on its node")
	}
	return peer, nil
}
