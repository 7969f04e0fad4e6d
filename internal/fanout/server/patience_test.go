// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPause holds that a stream pauses for as long as what it was sent has taken beyond its last
// pause, within bounds.
func TestPause(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	now := time.Unix(1000, 0)
	for what, c := range map[string]struct {
		waited, free, want time.Duration // before now
	}{
		"sent at once":                      {waited: 2 * ms, free: time.Hour, want: 50 * ms},
		"waited for the end of the pause":   {waited: 49 * ms, free: ms, want: 50 * ms},
		"waited for CPU":                    {waited: 400 * ms, free: time.Hour, want: 400 * ms},
		"waited for the pause and then CPU": {waited: 900 * ms, free: 300 * ms, want: 300 * ms},
		"waited for very long":              {waited: time.Hour, free: time.Hour, want: mostPause},
	} {
		if got := pause(50*ms, now.Add(-c.waited), now.Add(-c.free), now); got != c.want {
			t.Errorf("%s: the pause is %s, want %s", what, got, c.want)
		}
	}
	if got := pause(50*ms, time.Time{}, time.Time{}, now); got != 50*ms {
		t.Errorf("after an answer the pause is %s", got)
	}
}

// TestAfter holds that somebody is left after the time that he is given, and not where he comes
// before.
func TestAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left := 0
		stop := after(time.Minute, func() { left++ })
		time.Sleep(59 * time.Second)
		if stop(); left != 0 {
			t.Error("he was left early")
		}
		time.Sleep(time.Hour)
		defer after(time.Minute, func() { left++ })()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if left != 0 {
			t.Error("he was left early, or though he came")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if left != 1 {
			t.Errorf("he was left %d times", left)
		}
	})
}
