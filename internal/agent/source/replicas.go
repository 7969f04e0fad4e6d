// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/fanout/names"
)

// Replicas finds fan-outs: by EndpointSlices of fixed names, which the controller writes. It
// remembers what was found, also over restarts, for when the API server is away. It is safe for
// concurrent use.
type Replicas struct {
	// Slice reads an EndpointSlice.
	Slice     func(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error)
	Namespace string
	// File keeps what was found over restarts; nil = it is not kept.
	File *statefile.File[[]string]

	mu         sync.Mutex
	loaded     bool
	last       []string
	noneWanted bool
}

// Find returns the replicas that are ready, host:port.
func (r *Replicas) Find(ctx context.Context) ([]string, error) {
	var out []string
	none := true
	for _, name := range []string{names.Slice, names.Slice6} {
		s, err := r.Slice(ctx, r.Namespace, name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read EndpointSlice %s: %w", name, err)
		}
		none = none && s.Annotations[names.WantedAnnotation] == "0"
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				out = append(out, net.JoinHostPort(a, strconv.Itoa(names.Port)))
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noneWanted = none
	if len(out) == 0 && !none {
		return out, nil // those that were there may be again
	}
	r.load()
	if !slices.Equal(r.last, out) && r.File != nil {
		_ = r.File.Save(out) // reported there; the next change is written again
	}
	r.last = out
	return out, nil
}

// load reads what was kept. r.mu is held.
func (r *Replicas) load() {
	if !r.loaded && r.File != nil {
		r.last = r.File.Load()
	}
	r.loaded = true
}

// Known is Find, and what was found last where the API server does not answer soon.
func (r *Replicas) Known(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	r.load()
	last := r.last
	r.mu.Unlock()
	look := ctx
	if len(last) > 0 {
		var cancel context.CancelFunc
		look, cancel = context.WithTimeout(ctx, firstLook)
		defer cancel()
	}
	found, err := r.Find(look)
	if err != nil && len(last) > 0 {
		return last, nil
	}
	return found, err
}

// NoneWanted reports whether the controller wants no replica, rather than that none is ready.
func (r *Replicas) NoneWanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noneWanted
}
