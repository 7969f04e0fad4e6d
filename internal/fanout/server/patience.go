// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"time"
)

// mostPause bounds the time between two changes that an agent is sent, and bulkPause that while
// policies come one after the other.
const (
	mostPause = 2 * time.Second
	bulkPause = time.Second
)

// pacer says for how long a stream pauses after each of its changes. What a stream is sent costs by
// the time, more than by the change.
type pacer struct {
	interval time.Duration // at least
	free     time.Time     // the end of the last pause
	bulk     time.Duration // the pause while policies come one after the other; 0 = they do not
}

// pause is for how long a stream pauses now, after changes that have waited since some time, with
// policies among them or not: an interval, or as long as they took from when they could have been
// sent. Where the CPU is not enough for all streams that becomes longer, until it is. While there
// are policies after each pause it becomes longer, too: whoever makes thousands waits for the last.
func (p *pacer) pause(since time.Time, policies bool, now time.Time) time.Duration {
	wait := p.interval
	if !since.IsZero() { // else answers alone, or all of the node's part
		waited := !since.After(p.free)
		if waited {
			since = p.free
		}
		wait = max(wait, min(now.Sub(since), mostPause))
		if !policies || !waited {
			p.bulk = 0
		} else {
			p.bulk = min(2*max(p.bulk, p.interval), max(bulkPause, p.interval))
		}
		wait = max(wait, p.bulk)
	}
	p.free = now.Add(wait)
	return wait
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
