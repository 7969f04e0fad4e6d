// SPDX-License-Identifier: Apache-2.0

// Package again repeats what fetches from the network: a mirror or a proxy that is away for a
// moment does not end a build of ten minutes.
package again

import (
	"context"
	"errors"
	"time"
)

// Pauses are between the tries.
var Pauses = []time.Duration{5 * time.Second, 15 * time.Second, 45 * time.Second}

// Do calls f until it returns nil, at most once more than there are Pauses, and returns its last
// error. It gives up when ctx ends.
func Do(ctx context.Context, f func() error) error {
	err := f()
	for _, pause := range Pauses {
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
		err = f()
	}
	return err
}
