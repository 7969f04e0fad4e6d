// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"time"
)

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
