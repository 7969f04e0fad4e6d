// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ErrToken: a token is not that of an agent. Any other error of Review says that it could not be
// asked.
var ErrToken = errors.New("the token is not one of an agent for this server")

// Peer is an agent that has proved who it is.
type Peer struct {
	Node   string // the node of its pod, by the token's word
	PodUID string
}

// Extra attributes of a user that is the service account of a pod (Kubernetes 1.30 and newer for
// the node).
const (
	extraNode = "authentication.kubernetes.io/node-name"
	extraPod  = "authentication.kubernetes.io/pod-uid"
)

// Bounds of the questions to the API server that are under way. Of callers with an address of a
// Node there are maxNodeReviews more: what pods send bears another one, but for those of the node's
// own network, and for what is translated to the node's address.
const (
	maxReviews     = 16
	maxNodeReviews = 16
	// nodesFor is for how long the addresses of Nodes are not asked for again.
	nodesFor = 10 * time.Second
)

// Reviewer asks the API server whose a token is. It is safe for concurrent use.
type Reviewer struct {
	kube           kubernetes.Interface
	user, audience string
	// Offline is asked while the API server does not answer; nil = then nobody is believed.
	Offline *Offline

	mu   sync.Mutex
	busy map[netip.Addr]struct{} // callers whose token is being asked about
	now  func() time.Time
	away time.Time // the API server did not answer then

	nodesMu sync.Mutex
	nodes   map[netip.Addr]bool
	asked   time.Time // for nodes
}

// AgentUser is the user whose tokens agents of an installation have.
func AgentUser(namespace string) string { return "system:serviceaccount:" + namespace + ":weir-node" }

// NewReviewer returns a Reviewer of tokens of a user, system:serviceaccount:NAMESPACE:NAME, made
// for an audience.
func NewReviewer(kube kubernetes.Interface, user, audience string) *Reviewer {
	return &Reviewer{kube: kube, user: user, audience: audience, busy: map[netip.Addr]struct{}{}, now: time.Now}
}

// ErrBusy: the caller's last token is still being asked about, or too many are.
var ErrBusy = errors.New("too many tokens are being looked at; try again")

// maxToken bounds a token's length.
const maxToken = 8 << 10

// Where there is an Offline an answer is waited for as long as answerWithin, and after one that did
// not come the API server is not asked for awayFor.
const (
	answerWithin = 3 * time.Second
	awayFor      = 5 * time.Second
)

// Review returns the agent that a token is of. Of one caller one token is asked about at a time, so
// that who sends many wrong ones keeps neither the API server busy nor agents waiting.
func (r *Reviewer) Review(ctx context.Context, from netip.Addr, token string) (Peer, error) {
	if token == "" || len(token) > maxToken {
		return Peer{}, fmt.Errorf("%w: it has %d bytes", ErrToken, len(token))
	}
	if !r.begin(ctx, from) {
		return Peer{}, ErrBusy
	}
	defer r.end(from)
	if r.Offline == nil {
		return r.ask(ctx, token)
	}
	r.mu.Lock()
	since := r.now().Sub(r.away)
	r.mu.Unlock()
	err := errors.New("the API server did not answer a moment ago")
	if since >= awayFor {
		var peer Peer
		asking, cancel := context.WithTimeout(ctx, answerWithin)
		peer, err = r.ask(asking, token)
		cancel()
		if err == nil || ctx.Err() != nil || answered(err) {
			return peer, err
		}
		r.mu.Lock()
		r.away = r.now()
		r.mu.Unlock()
	}
	// What speaks against a token here is no word of the API server's: it may have a newer key.
	peer, why := r.Offline.review(token, r.user, r.audience)
	if why != nil {
		return Peer{}, fmt.Errorf("%w; without it: %w", err, why)
	}
	return peer, nil
}

// answered reports whether an error is an answer: one that says that the server is there and has
// refused, rather than that it could not.
func answered(err error) bool {
	if errors.Is(err, ErrToken) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout
}

// ask asks the API server.
func (r *Reviewer) ask(ctx context.Context, token string) (Peer, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{r.audience}}}
	got, err := r.kube.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return Peer{}, fmt.Errorf("ask the API server about a token: %w", err)
	}
	return r.peerOf(&got.Status)
}

// peerOf returns whose a token is, from what the API server answered.
func (r *Reviewer) peerOf(s *authenticationv1.TokenReviewStatus) (Peer, error) {
	nodes, pods := s.User.Extra[extraNode], s.User.Extra[extraPod]
	switch {
	case !s.Authenticated:
		return Peer{}, fmt.Errorf("%w: it does not count (%s)", ErrToken, s.Error)
	case !slices.Contains(s.Audiences, r.audience):
		return Peer{}, fmt.Errorf("%w: it was made for somebody else", ErrToken)
	case s.User.Username != r.user:
		return Peer{}, fmt.Errorf("%w: it is of %q", ErrToken, s.User.Username)
	case len(nodes) != 1 || nodes[0] == "" || len(pods) != 1 || pods[0] == "":
		return Peer{}, fmt.Errorf("%w: it names no node and pod; Kubernetes 1.30 is needed for that", ErrToken)
	}
	return Peer{Node: nodes[0], PodUID: pods[0]}, nil
}

// begin reports whether a caller's token may be asked about now.
func (r *Reviewer) begin(ctx context.Context, from netip.Addr) bool {
	most := maxReviews
	if r.full() {
		if r.ofNode(ctx, from) {
			most += maxNodeReviews
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, is := r.busy[from]; is || len(r.busy) >= most {
		return false
	}
	r.busy[from] = struct{}{}
	return true
}

func (r *Reviewer) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.busy) >= maxReviews
}

func (r *Reviewer) end(from netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, from)
}

// ofNode reports whether an address is one of a Node. Where the API server does not say, what it
// said last counts.
func (r *Reviewer) ofNode(ctx context.Context, addr netip.Addr) bool {
	r.nodesMu.Lock()
	defer r.nodesMu.Unlock()
	if now := r.now(); r.nodes == nil || now.Sub(r.asked) >= nodesFor {
		r.asked = now
		if list, err := r.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"}); err == nil {
			r.nodes = map[netip.Addr]bool{}
			for i := range list.Items {
				for _, a := range list.Items[i].Status.Addresses {
					if ip, err := netip.ParseAddr(a.Address); err == nil {
						r.nodes[ip.Unmap()] = true
					}
				}
			}
		}
	}
	return r.nodes[addr.Unmap()]
}
