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
		p := pacer{interval: 50 * ms, free: now.Add(-c.free)}
		if got := p.pause(now.Add(-c.waited), false, now); got != c.want || p.free != now.Add(got) {
			t.Errorf("%s: the pause is %s, want %s", what, got, c.want)
		}
	}
	p := pacer{interval: 50 * ms}
	if got := p.pause(time.Time{}, false, now); got != 50*ms {
		t.Errorf("after an answer the pause is %s", got)
	}
}

// TestPauseOfBulk holds that a stream which has policies after each pause pauses longer, up to a
// second, and one with policies now and then, or other changes, does not.
func TestPauseOfBulk(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	p, now := pacer{interval: 50 * ms}, time.Unix(1000, 0)
	step := func(waited, policies bool) time.Duration {
		since := p.free.Add(-ms)
		if now = p.free; !waited {
			since, now = p.free.Add(300*ms), p.free.Add(300*ms)
		}
		return p.pause(since, policies, now)
	}
	p.pause(now, true, now)
	for i, c := range []struct {
		waited, policies bool
		want             time.Duration
	}{{false, true, 50 * ms}, {true, true, 100 * ms}, {true, true, 200 * ms}, {true, true, 400 * ms}, {true, true, 800 * ms}, {true, true, bulkPause}, {true, true, bulkPause},
		{true, false, 50 * ms}, {true, false, 50 * ms}, {true, true, 100 * ms}, {false, true, 50 * ms}, {false, true, 50 * ms}} {
		if got := step(c.waited, c.policies); got != c.want {
			t.Errorf("step %d: the pause is %s, want %s", i, got, c.want)
		}
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
