// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"time"
)

// mostPause bounds the time between two changes that an agent is sent.
const mostPause = 2 * time.Second

// pause is for how long a stream pauses after changes that have waited since some time, and could
// have been sent from when it was free: an interval, or as long as they took from then. Where the
// CPU is not enough for all streams that becomes longer and changes are merged, until it is: what a
// stream is sent costs by the time, not by the change. Otherwise each stream is sent little, often.
func pause(interval time.Duration, since, free, now time.Time) time.Duration {
	if since.IsZero() { // answers alone
		return interval
	}
	if free.After(since) {
		since = free
	}
	return max(interval, min(now.Sub(since), mostPause))
}

// timersOf are how many timers make a time for which somebody is waited.
const timersOf = 12

// after calls f when this process has waited for some time, unless stop is called before. The time
// is that of several timers one after the other: a process that got no CPU for all of it has waited
// for one of them, and does what else it has to do, such as to read what came, before the next.
func after(wait time.Duration, f func()) (stop func()) {
	var (
		mu    sync.Mutex
		left  = timersOf
		timer *time.Timer
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(wait/timersOf, func() {
		mu.Lock()
		defer mu.Unlock()
		switch left--; {
		case left > 0:
			timer.Reset(wait / timersOf)
		case left == 0:
			f()
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		left = 0
		timer.Stop()
	}
}
