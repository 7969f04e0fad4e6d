// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/live"
)

// Resource is what a user may list in the namespaces whose flows the user sees. There are no such
// objects: the name is for rights alone.
const Resource = "flows"

const (
	// scopeFor is for how long a user's rights are not asked for again. Where that takes long, as
	// there are many namespaces, it is 20 times as long as it took.
	scopeFor = 30 * time.Second
	// scopeWithin is how long it may take.
	scopeWithin = time.Minute
	// mostScopes bounds how many users' rights are remembered.
	mostScopes = 1024
	// asking is how many rights of one user are asked for at a time.
	asking = 8
	// namedMost is up to how many namespaces a question names those that the user sees.
	namedMost = 500
)

// Scope is what a user sees. The zero value sees nothing.
type Scope struct {
	all        bool
	namespaces map[string]bool
}

// scoping is a scope that is being asked for, or was.
type scoping struct {
	mu    sync.Mutex // held while it is asked for
	scope *Scope
	until time.Time
}

// Scope returns what a user may see.
func (g *Guard) Scope(ctx context.Context, u *peerauth.User) (*Scope, error) {
	text, err := json.Marshal(u)
	if err != nil {
		return nil, fmt.Errorf("name the user %s: %w", u.Name, err)
	}
	key := sha256.Sum256(text)
	g.mu.Lock()
	of := g.scopes[key]
	if of == nil {
		for k := range g.scopes {
			if len(g.scopes) < mostScopes {
				break
			}
			delete(g.scopes, k)
		}
		of = &scoping{}
		g.scopes[key] = of
	}
	g.mu.Unlock()
	of.mu.Lock()
	defer of.mu.Unlock()
	began := g.now()
	if of.scope != nil && began.Before(of.until) {
		return of.scope, nil
	}
	asking, cancel := context.WithTimeout(ctx, scopeWithin)
	defer cancel()
	scope, err := g.ask(asking, u)
	if err != nil {
		return nil, err
	}
	ended := g.now()
	of.scope, of.until = scope, ended.Add(max(scopeFor, 20*ended.Sub(began)))
	return scope, nil
}

// ask asks the API server for the rights of a user: in all namespaces, else in each.
func (g *Guard) ask(ctx context.Context, u *peerauth.User) (*Scope, error) {
	may := func(ctx context.Context, namespace string) (bool, error) {
		return peerauth.Allowed(ctx, g.kube, u, authorizationv1.ResourceAttributes{Group: live.Group, Version: live.Version, Resource: Resource, Namespace: namespace, Verb: "list"})
	}
	all, err := may(ctx, metav1.NamespaceAll)
	if err != nil || all {
		return &Scope{all: all}, err
	}
	list, err := g.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	s := &Scope{namespaces: map[string]bool{}}
	var mu sync.Mutex
	each, ctx := errgroup.WithContext(ctx)
	each.SetLimit(asking)
	for i := range list.Items {
		name := list.Items[i].Name
		each.Go(func() error {
			is, err := may(ctx, name)
			if err == nil && is {
				mu.Lock()
				s.namespaces[name] = true
				mu.Unlock()
			}
			return err
		})
	}
	return s, each.Wait()
}

// All says whether everything is seen.
func (s *Scope) All() bool { return s.all }

// Nothing says whether there is no namespace whose flows are seen.
func (s *Scope) Nothing() bool { return !s.all && len(s.namespaces) == 0 }

// Namespaces are those whose flows are seen, sorted; of All there are none.
func (s *Scope) Namespaces() []string { return slices.Sorted(maps.Keys(s.namespaces)) }

// Ask is a filter for records that may be seen, to ask for by other rights. It spares the way of
// records that are not; what comes goes through Show in any case.
func (s *Scope) Ask(f flows.Filter) flows.Filter {
	f.Namespaces = nil
	if !s.all && len(s.namespaces) <= namedMost {
		f.Namespaces = s.Namespaces()
	}
	return f
}

// Show is a record as the user sees it, if it is one of the filter as the user sees it; nil = it is
// not. A filter finds nothing by what is left out.
func (s *Scope) Show(r *flows.Flow, f flows.Filter) *flows.Flow {
	if !s.all {
		if r = s.shown(r); r == nil {
			return nil
		}
	}
	if !f.Wants(r) {
		return nil
	}
	return r
}

// shown leaves out of a record what is about the end that the user may not look at.
func (s *Scope) shown(r *flows.Flow) *flows.Flow {
	sees := func(p *flows.Peer) bool { return p.Pod != "" && s.namespaces[p.Namespace] }
	source, destination := sees(&r.Source), sees(&r.Destination)
	switch {
	case !source && !destination:
		return nil
	case source && destination:
		return r
	}
	out := *r
	if !source {
		out.Source.Labels, out.Egress = nil, nil
	}
	if !destination {
		out.Destination.Labels, out.Ingress = nil, nil
	}
	out.Rule = s.rule(r.Rule)
	out.Egress, out.Ingress = s.end(out.Egress), s.end(out.Ingress)
	return &out
}

func (s *Scope) end(e *events.End) *events.End {
	if e == nil {
		return nil
	}
	out := &events.End{Rule: s.rule(e.Rule), Name: e.Name} // what the pod asked for is no policy's
	if out.Rule == e.Rule {
		out.Domain = e.Domain
	}
	if e.Staged != nil {
		out.Staged = &events.Staged{Verdict: e.Staged.Verdict, Rule: s.rule(e.Staged.Rule)}
	}
	return out
}

// rule is a rule without the name of a policy of a namespace that the user may not look at.
func (s *Scope) rule(r *events.Rule) *events.Rule {
	if r == nil {
		return nil
	}
	if namespace, _, is := strings.Cut(r.Name, "/"); is && !s.namespaces[namespace] {
		return &events.Rule{Kind: r.Kind}
	}
	return r
}
