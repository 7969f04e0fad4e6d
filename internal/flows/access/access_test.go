// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/peerauth"
)

// cluster is an API server with namespaces a, b and c. A token counts that is "token-" and a user's
// name; rights are "user namespace", all of them where the namespace is empty.
type cluster struct {
	guard   *Guard
	now     time.Time
	rights  map[string]bool
	reviews atomic.Int32
	asked   atomic.Int32
	away    error
}

func newCluster(rights ...string) *cluster {
	c := &cluster{now: time.Unix(1e9, 0), rights: map[string]bool{}}
	for _, r := range rights {
		c.rights[r] = true
	}
	kube := fake.NewClientset()
	for _, name := range []string{"a", "b", "c"} {
		_ = kube.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}) // it is new
	}
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c.reviews.Add(1)
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if len(r.Spec.Audiences) > 0 {
			return true, nil, errors.New("tokens of other audiences are asked for")
		}
		r.Status.User.Username, r.Status.Authenticated = strings.CutPrefix(r.Spec.Token, "token-")
		r.Status.User.Groups = []string{"people"}
		return true, r, c.away
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c.asked.Add(1)
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		of := r.Spec.ResourceAttributes
		r.Status.Allowed = of.Verb == "list" && of.Group == "live.weir.dev" && of.Resource == "flows" && of.Subresource == "" && of.Name == "" && c.rights[r.Spec.User+" "+of.Namespace]
		return true, r, c.away
	})
	c.guard = New(kube)
	c.guard.now = func() time.Time { return c.now }
	return c
}

var here = netip.MustParseAddr("192.0.2.1")

// A token's user is asked for once a minute; a wrong token is never remembered as right.
func TestUser(t *testing.T) {
	t.Parallel()
	c := newCluster()
	for range 5 {
		u, err := c.guard.User(t.Context(), here, "token-ann")
		if err != nil || u.Name != "ann" || len(u.Groups) != 1 {
			t.Fatalf("%+v %v", u, err)
		}
	}
	if n := c.reviews.Load(); n != 1 {
		t.Errorf("%d reviews", n)
	}
	c.now = c.now.Add(userFor)
	if _, err := c.guard.User(t.Context(), here, "token-ann"); err != nil || c.reviews.Load() != 2 {
		t.Errorf("%v, %d reviews", err, c.reviews.Load())
	}
	c.away = errors.New("away")
	c.now = c.now.Add(userFor)
	if _, err := c.guard.User(t.Context(), here, "token-ann"); err == nil || errors.Is(err, ErrToken) {
		t.Errorf("the API server is away: %v", err)
	}
	for _, token := range []string{"", strings.Repeat("x", mostToken+1)} {
		if _, err := c.guard.User(t.Context(), here, token); !errors.Is(err, ErrToken) {
			t.Errorf("%d bytes: %v", len(token), err)
		}
	}
}

// Who shows wrong tokens has to wait, and others do not; what is remembered is bounded.
func TestAttempts(t *testing.T) {
	t.Parallel()
	c := newCluster()
	guess := func(from string) (err error) {
		for i := range 2 * failuresAtOnce {
			if _, err = c.guard.User(t.Context(), netip.MustParseAddr(from), fmt.Sprint("guess-", i)); errors.Is(err, ErrBusy) {
				return err
			}
		}
		return err
	}
	if err := guess("192.0.2.1"); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	if err := guess("2001:db8::1"); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	for from, want := range map[string]error{"192.0.2.2": nil, "192.0.2.1": ErrBusy, "::ffff:192.0.2.1": ErrBusy, "2001:db8::2": ErrBusy, "2001:db8:1::2": nil} {
		if _, err := c.guard.User(t.Context(), netip.MustParseAddr(from), "token-"+from); !errors.Is(err, want) {
			t.Errorf("%s: %v", from, err)
		}
	}
	if _, err := c.guard.Again(t.Context(), "token-ann"); err != nil {
		t.Errorf("a session ends by the failures of others: %v", err)
	}
	c.now = c.now.Add(2 * time.Second)
	if _, err := c.guard.User(t.Context(), here, "token-ann"); err != nil {
		t.Errorf("after a while: %v", err)
	}
	for i := range 2 * mostCallers {
		_, _ = c.guard.User(t.Context(), netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "guess")
	}
	for i := range 2 * mostUsers {
		if _, err := c.guard.User(t.Context(), here, fmt.Sprint("token-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.guard.callers) > mostCallers || len(c.guard.users) > mostUsers {
		t.Errorf("%d callers, %d users", len(c.guard.callers), len(c.guard.users))
	}
}

func rule(kind, name string) *events.Rule {
	return &events.Rule{Kind: kind, Name: name, Tier: "default", Detail: "ingress[0]"}
}

// between is a record of a connection between pods of two namespaces, by policies of both.
func between(from, to string) *flows.Flow {
	return &flows.Flow{End: time.Unix(100, 0), Verdict: flows.Denied,
		Source:      flows.Peer{Address: here, Namespace: from, Pod: "client", Labels: map[string]string{"secret": from}},
		Destination: flows.Peer{Address: here, Namespace: to, Pod: "server", Labels: map[string]string{"secret": to}},
		Egress:      &events.End{Rule: rule("NetworkPolicy", from+"/out"), Staged: &events.Staged{Verdict: "denied", Rule: rule("StagedNetworkPolicy", from+"/staged-out")}},
		Ingress:     &events.End{Rule: rule("NetworkPolicy", to+"/in"), Staged: &events.Staged{Verdict: "denied", Rule: rule("StagedNetworkPolicy", to+"/staged-in")}},
		Rule:        rule("NetworkPolicy", to+"/in")}
}

// scope is what ann sees.
func (c *cluster) scope(t *testing.T) *Scope {
	t.Helper()
	s, err := c.guard.Scope(t.Context(), &peerauth.User{Name: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Who may list flows in all namespaces sees records as they are.
func TestAll(t *testing.T) {
	t.Parallel()
	c := newCluster("ann ")
	s, f := c.scope(t), between("a", "b")
	if !s.All() || s.Nothing() || s.Show(f, flows.Filter{}) != f || len(s.Ask(flows.Filter{}).Namespaces) != 0 {
		t.Errorf("%+v", s)
	}
	if s.Show(f, flows.Filter{From: "b"}) != nil {
		t.Error("the filter does not count")
	}
}

// A user of one namespace sees the records of which an end is there, with nothing of the other end
// but its name; filters find nothing by what is not shown.
func TestOneNamespace(t *testing.T) {
	t.Parallel()
	c := newCluster("ann a", "bob ")
	s := c.scope(t)
	if s.All() || s.Nothing() || !reflect.DeepEqual(s.Ask(flows.Filter{Namespaces: []string{"b"}}).Namespaces, []string{"a"}) {
		t.Fatalf("%+v", s)
	}
	own := between("a", "a")
	if s.Show(own, flows.Filter{}) != own {
		t.Error("a record of the user's own namespace is not as it is")
	}
	for _, f := range []*flows.Flow{between("b", "c"), between("c", "b"), {Source: flows.Peer{Address: here}, Destination: flows.Peer{Address: here}},
		{Source: flows.Peer{Address: here, Namespace: "a"}, Destination: flows.Peer{Address: here, Namespace: "b", Pod: "x"}}} {
		if s.Show(f, flows.Filter{}) != nil {
			t.Errorf("%s is shown", f)
		}
	}
	in := s.Show(between("b", "a"), flows.Filter{})
	if in == nil || in.Source.Labels != nil || in.Source.Pod != "client" || in.Egress != nil || in.Destination.Labels["secret"] != "a" || in.Rule.Name != "a/in" || in.Ingress.Staged.Rule.Name != "a/staged-in" {
		t.Errorf("%+v", in)
	}
	out := s.Show(between("a", "b"), flows.Filter{})
	if out == nil || out.Destination.Labels != nil || out.Ingress != nil || *out.Rule != (events.Rule{Kind: "NetworkPolicy"}) || out.Egress.Rule.Name != "a/out" || out.Source.Labels["secret"] != "a" {
		t.Errorf("%+v", out)
	}
	global := between("a", "b")
	global.Rule = rule("GlobalNetworkPolicy", "everywhere")
	named := between("a", "b")
	named.Egress.Domain, named.Egress.Name = "own.example.com", "own.example.com"
	if out = s.Show(named, flows.Filter{}); out.Egress.Domain != "own.example.com" {
		t.Errorf("%+v", out.Egress)
	}
	named.Egress.Rule = rule("NetworkPolicy", "b/out")
	if out = s.Show(named, flows.Filter{}); out.Egress.Domain != "" || out.Egress.Name != "own.example.com" {
		t.Errorf("the name of another namespace's rule: %+v", out.Egress)
	}
	if out = s.Show(global, flows.Filter{}); out.Rule.Name != "everywhere" {
		t.Errorf("%+v", out.Rule)
	}
	for _, f := range []*flows.Flow{between("a", "b"), between("b", "a")} {
		whole, _ := json.Marshal(between(f.Source.Namespace, f.Destination.Namespace))
		if now, _ := json.Marshal(f); string(now) != string(whole) {
			t.Error("a record was changed that others see")
		}
		if text, _ := json.Marshal(s.Show(f, flows.Filter{})); strings.Contains(string(text), `"secret":"b"`) || strings.Contains(string(text), "b/") {
			t.Errorf("%s", text)
		}
		for _, policy := range []string{"b/in", "b/out", "b/staged-in", "b/staged-out"} {
			if s.Show(f, flows.Filter{Policy: policy}) != nil {
				t.Errorf("%s is found", policy)
			}
		}
	}
	if s.Show(between("a", "b"), flows.Filter{Policy: "a/out", To: "b/server"}) == nil {
		t.Error("what is shown is not found")
	}
}

// Rights are asked for again after half a minute; nobody's are another's; none are nothing.
func TestRights(t *testing.T) {
	t.Parallel()
	c := newCluster("ann a", "bob b")
	if s := c.scope(t); !reflect.DeepEqual(s.Namespaces(), []string{"a"}) {
		t.Errorf("%v", s.Namespaces())
	}
	asked := c.asked.Load()
	delete(c.rights, "ann a")
	if s := c.scope(t); s.Nothing() || c.asked.Load() != asked {
		t.Error("rights are asked for each time")
	}
	if s, err := c.guard.Scope(t.Context(), &peerauth.User{Name: "ann", Groups: []string{"other"}}); err != nil || !s.Nothing() {
		t.Errorf("another user has ann's rights: %+v %v", s, err)
	}
	c.now = c.now.Add(scopeFor)
	if s := c.scope(t); !s.Nothing() || s.Show(between("a", "a"), flows.Filter{}) != nil {
		t.Error("rights that were taken away count")
	}
	c.now = c.now.Add(scopeFor)
	c.away = errors.New("away")
	if s, err := c.guard.Scope(t.Context(), &peerauth.User{Name: "ann"}); err == nil {
		t.Errorf("rights that nobody knows: %+v", s)
	}
	c.away = nil
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.guard.Scope(ended, &peerauth.User{Name: "bob"}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if s, err := c.guard.Scope(t.Context(), &peerauth.User{Name: "bob"}); err != nil || !reflect.DeepEqual(s.Namespaces(), []string{"b"}) {
		t.Errorf("after a question that was given up: %+v %v", s, err)
	}
	for i := range 2 * mostScopes {
		if _, err := c.guard.Scope(t.Context(), &peerauth.User{Name: fmt.Sprint("user-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.guard.scopes) > mostScopes {
		t.Errorf("%d", len(c.guard.scopes))
	}
	var none Scope
	if !none.Nothing() || none.All() || none.Show(between("a", "b"), flows.Filter{}) != nil {
		t.Error("the zero value sees something")
	}
}
