// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the seam between the desired state of a node and what carries it: the Driver
// interface, the loop that applies states, and the conformance suite that every driver passes.
package dataplane

import (
	"context"
	"errors"

	"github.com/weir-net/weir/internal/nodestate"
)

// Driver makes a kernel equal to a state.
type Driver interface {
	// Apply makes the kernel equal to s. It may be called with everything or with a hint of what
	// changed: the result is the same. The first call reads what is in the kernel and writes only
	// differences. Errors are joined, each wrapped in a KeyError that names what could not be
	// written; the caller retries. After an error everything not named is in place. With
	// ErrUnfinished among them the caller calls again at once, with the latest state.
	Apply(ctx context.Context, s *nodestate.State, changed nodestate.Keys) error
	// Close lets go of the kernel's objects and leaves them working.
	Close() error
}

// ErrUnfinished is of an Apply that put the state's tables in place and leaves more to do: what
// takes long is done in pieces, and a state that was submitted meanwhile waits for one piece.
var ErrUnfinished = errors.New("not finished")

// Waiting is the ErrUnfinished of an Apply that cannot do the rest before Until is closed: the
// caller calls again then, or with the next state.
type Waiting struct {
	For   string // what is not there yet
	Until <-chan struct{}
}

func (w *Waiting) Error() string { return "waiting for " + w.For }

// Is makes it an ErrUnfinished.
func (w *Waiting) Is(target error) bool { return target == ErrUnfinished }

// KeyError is a failure at one key of one table.
type KeyError struct {
	Table string
	Key   string
	Err   error
}

func (e *KeyError) Error() string { return e.Table + " " + e.Key + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *KeyError) Unwrap() error { return e.Err }
