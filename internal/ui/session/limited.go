// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/ui"
	why "github.com/weir-net/weir/internal/why/ask"
)

// How many questions are asked at a time, of one user and of all. Of those about flows, whose
// answer has up to ui.MostRecords in memory, and which the store answers three of at a time, as
// many as reading are, and others wait.
const (
	askingOfUser = 3
	askingOfAll  = 24
	reading      = 2
	waitToRead   = 20 * time.Second
)

// limited is a source that answers so many questions of a user at a time.
type limited struct {
	of   ui.Source
	k    *Keeper
	user string
}

// begin takes a place, which end gives back.
func (l *limited) begin() (end func(), err error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	if l.k.asking[l.user] >= askingOfUser || l.k.total >= askingOfAll {
		return nil, fmt.Errorf("%w: too many questions at a time", ui.ErrBusy)
	}
	l.k.asking[l.user]++
	l.k.total++
	return func() {
		l.k.mu.Lock()
		defer l.k.mu.Unlock()
		l.k.total--
		if l.k.asking[l.user]--; l.k.asking[l.user] == 0 {
			delete(l.k.asking, l.user)
		}
	}, nil
}

func limit[T any](l *limited, ask func() (T, error)) (out T, err error) {
	end, err := l.begin()
	if err != nil {
		return out, err
	}
	defer end()
	return ask()
}

// Records implements ui.Source.
func (l *limited) Records(ctx context.Context, f flows.Filter, most int) (*ask.Found, error) {
	return limit(l, func() (*ask.Found, error) {
		late := time.NewTimer(waitToRead)
		defer late.Stop()
		select {
		case l.k.reading <- struct{}{}:
			defer func() { <-l.k.reading }()
		case <-late.C:
			return nil, fmt.Errorf("%w: others ask for flows", ui.ErrBusy)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return l.of.Records(ctx, f, most)
	})
}

// Cluster implements ui.Source.
func (l *limited) Cluster(ctx context.Context) (*ui.Cluster, error) {
	return limit(l, func() (*ui.Cluster, error) { return l.of.Cluster(ctx) })
}

// Policies implements ui.Source.
func (l *limited) Policies(ctx context.Context) (*ui.Policies, error) {
	return limit(l, func() (*ui.Policies, error) { return l.of.Policies(ctx) })
}

// Why implements ui.Source.
func (l *limited) Why(ctx context.Context, q ui.Question) (*why.Story, error) {
	return limit(l, func() (*why.Story, error) { return l.of.Why(ctx, q) })
}
