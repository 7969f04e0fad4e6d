// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
	// absentAfter is how long a resource must be answered with "not found" until it counts as not
	// installed: an API server that starts answers so for a moment.
	absentAfter = 3 * time.Second
	logEvery    = 30 * time.Second
)

// Status says how the watch gets on with the API server.
type Status struct {
	// Synced: everything was read once.
	Synced bool
	// Connected: no request is failing now. Since is when that became so or ceased to be so.
	Connected bool
	Since     time.Time
	// Err is the failure of one of the requests that fail now.
	Err string
	// Missing are resources that the API server does not know: CRDs that are not installed.
	Missing []string
	// FanOut is the fan-out that all of it comes from, host:port; empty = the API server.
	FanOut string
	// AsOf, of what a fan-out sends: what was read is how the cluster was then.
	AsOf time.Time
}

// health follows the sources' requests.
type health struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	since   time.Time
	logged  time.Time
	failing map[string]error
	absent  map[string]time.Time // first answer "not found" without a success since
}

func newHealth(log *slog.Logger) *health {
	return &health{log: log, now: time.Now, since: time.Now(), failing: map[string]error{}, absent: map[string]time.Time{}}
}

func (h *health) ok(resource string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.absent, resource)
	if _, was := h.failing[resource]; !was {
		return
	}
	delete(h.failing, resource)
	if len(h.failing) == 0 {
		h.log.Info("the API server answers again", "after", h.now().Sub(h.since).Round(time.Millisecond))
		h.since, h.logged = h.now(), time.Time{}
	}
}

func (h *health) failed(resource string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if apierrors.IsNotFound(err) {
		if h.absent[resource].IsZero() {
			h.absent[resource] = h.now()
			if builtIn(resource) {
				h.log.Info("this API server is too old to have this resource; going on without", "resource", resource)
			} else {
				h.log.Warn("the API server does not know this resource: its CRD is not installed, or does not serve this version; run `weir install` or `kubectl apply -f deploy/weir.yaml`; trying again",
					"resource", resource)
			}
		}
		delete(h.failing, resource)
		return
	}
	delete(h.absent, resource)
	if len(h.failing) == 0 {
		h.since = h.now()
	}
	h.failing[resource] = err
	if h.now().Sub(h.logged) >= logEvery {
		h.logged = h.now()
		h.log.Warn("the API server does not answer; going on with what is known, trying again", "resource", resource, "err", err,
			"for", h.now().Sub(h.since).Round(time.Second))
	}
}

// isAbsent reports whether the resource has been unknown to the API server for long enough to go on
// without it.
func (h *health) isAbsent(resource string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	since, ok := h.absent[resource]
	return ok && h.now().Sub(since) >= absentAfter
}

// builtIn distinguishes resources of Kubernetes itself from CRDs.
func builtIn(resource string) bool {
	return strings.HasSuffix(resource, ".k8s.io") && !strings.HasSuffix(resource, "."+groupPolicies)
}

// heard notes what became of a request that is no source's: an error of the API server is an
// answer.
func (h *health) heard(what string, err error) {
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) {
		h.ok(what)
	} else {
		h.failed(what, fmt.Errorf("%s: %w", what, err))
	}
}

func (h *health) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Status{Connected: len(h.failing) == 0, Since: h.since}
	for _, r := range slices.Sorted(maps.Keys(h.absent)) {
		if !builtIn(r) {
			s.Missing = append(s.Missing, r)
		}
	}
	if names := slices.Sorted(maps.Keys(h.failing)); len(names) > 0 {
		s.Err = h.failing[names[0]].Error()
	}
	return s
}

// patient is a ListerWatcher that does not fail while the API server is away, but waits and tries
// again at most lastRetry apart: client-go's own waiting grows to half a minute. Errors that ask
// for another request than the same one again are passed on.
type patient struct {
	resource string
	health   *health
	list     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch    func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error)
	// definition, when set, has to be there before anything is asked for; gone is called while it
	// is not.
	definition *definition
	gone       func()
}

func (p *patient) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return retry(ctx, p, "list", func(ctx context.Context) (runtime.Object, error) {
				// A server that took the connection and says nothing must not hold us for ever.
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return p.list(ctx, o)
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return retry(ctx, p, "watch", func(ctx context.Context) (apiwatch.Interface, error) { return p.watch(ctx, o) })
		},
	}
}

func retry[T any](ctx context.Context, p *patient, verb string, do func(context.Context) (T, error)) (T, error) {
	wait := firstRetry
	for {
		var none T
		if p.definition != nil {
			if err := p.definition.wait(ctx, p.gone); err != nil {
				return none, err
			}
		}
		v, err := do(ctx)
		if err == nil {
			p.health.ok(p.resource)
			return v, nil
		}
		if ctx.Err() != nil {
			return none, ctx.Err()
		}
		if needsOtherRequest(err) {
			return none, err
		}
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			err = fmt.Errorf("%w; apply deploy/weir.yaml again: it grants the rights, and the service account's token mounts with it", err)
		}
		p.health.failed(p.resource, fmt.Errorf("%s %s: %w", verb, p.resource, err))
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
		wait = min(2*wait, lastRetry)
	}
}

// needsOtherRequest: the resource version is too old or too new, so the reflector must list anew.
func needsOtherRequest(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}
