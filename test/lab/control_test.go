// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"sync"
	"time"
)

// lateness is the control of what is measured by time: how late the machine wakes a sleeper, while
// nothing of Weir has a part in it. Where programs wait for a CPU, all that is measured takes
// longer by as much.
type lateness struct {
	mu sync.Mutex
	at []time.Time
	ms []float64
}

// control runs during all tests.
var control lateness

// run measures until the process ends.
func (l *lateness) run() {
	const tick = 5 * time.Millisecond
	for {
		began := time.Now()
		time.Sleep(tick)
		now := time.Now()
		l.mu.Lock()
		l.at, l.ms = append(l.at, now), append(l.ms, float64((now.Sub(began)-tick).Microseconds())/1000)
		l.mu.Unlock()
	}
}

// since is a percentile (0 to 1) of the lateness since then, ms.
func (l *lateness) since(began time.Time, p float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := len(l.at)
	for first > 0 && l.at[first-1].After(began) {
		first--
	}
	if first == len(l.at) {
		return 0
	}
	return percentile(append([]float64(nil), l.ms[first:]...), p)
}
