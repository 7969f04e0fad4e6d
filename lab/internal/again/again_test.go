// SPDX-License-Identifier: Apache-2.0

package again

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestDo(t *testing.T) {
	away := errors.New("away")
	for name, c := range map[string]struct{ fails, calls int }{"works": {0, 1}, "works later": {2, 3}, "never works": {99, len(Pauses) + 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				err := Do(t.Context(), func() error {
					if calls++; calls <= c.fails {
						return away
					}
					return nil
				})
				if calls != c.calls || errors.Is(err, away) != (c.fails >= c.calls) {
					t.Errorf("%d calls, %v", calls, err)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := 0
	if err := Do(ctx, func() error { calls++; return away }); !errors.Is(err, away) || !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("interrupted: %d calls, %v", calls, err)
	}
}
