// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	why := errors.New("why")
	for name, c := range map[string]struct {
		ends, sleeps time.Duration // ends < 0: before it begins
		took         time.Duration
		want         error
	}{
		"the whole time":               {ends: time.Hour, sleeps: time.Minute, took: time.Minute},
		"no time":                      {ends: time.Hour},
		"less than none":               {ends: time.Hour, sleeps: -time.Minute},
		"until the context ends":       {ends: time.Second, sleeps: time.Hour, took: time.Second, want: why},
		"the context has ended":        {ends: -1, sleeps: time.Hour, want: why},
		"no time, and it has ended":    {ends: -1, want: why},
		"less than none, it has ended": {ends: -1, sleeps: -1, want: why},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				if c.ends < 0 {
					cancel(why)
				} else {
					end := time.AfterFunc(c.ends, func() { cancel(why) })
					defer end.Stop()
				}
				began := time.Now()
				err := For(ctx, c.sleeps)
				if took := time.Since(began); !errors.Is(err, c.want) || c.want == nil && err != nil || took != c.took {
					t.Errorf("after %v: %v, want after %v: %v", took, err, c.took, c.want)
				}
				cancel(nil)
			})
		})
	}
}
