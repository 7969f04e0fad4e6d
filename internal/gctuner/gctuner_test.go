// SPDX-License-Identifier: Apache-2.0

package gctuner

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
)

func TestDue(t *testing.T) {
	const mib = 1 << 20
	for _, x := range []struct {
		lived, occupied uint64
		waiting         bool
		since           time.Duration
		want            bool
	}{
		{100 * mib, 100 * mib, false, 0, false},
		{100 * mib, 124 * mib, false, 0, false},
		{100 * mib, 126 * mib, false, 0, true},
		{100 * mib, 126 * mib, true, 0, false},
		{100 * mib, 151 * mib, true, 0, true},
		{1 * mib, 4 * mib, false, 0, false}, // so little is not worth it
		{1 * mib, 6 * mib, false, 0, true},
		{100 * mib, 90 * mib, false, 0, false},
		{100 * mib, 112 * mib, false, long - 1, false},
		{100 * mib, 112 * mib, false, long, true},
		{100 * mib, 112 * mib, true, long, false},
		{100 * mib, 109 * mib, false, time.Hour, false},
		{1 * mib, 4 * mib, false, time.Hour, false},
	} {
		h := heap{lived: x.lived, occupied: x.occupied}
		if got := h.due(x.waiting, x.since); got != x.want {
			t.Errorf("%d MiB after %d, waiting %v, %v after the last cycle: due %v", x.occupied/mib, x.lived/mib, x.waiting, x.since, got)
		}
	}
}

// forced returns how many cycles somebody asked for.
func forced() uint64 {
	s := []metrics.Sample{{Name: "/gc/cycles/forced:gc-cycles"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

var sink []byte

// Cycles begin when work is over and enough was allocated and dropped; and GOGC is what it was when
// the collector has ended.
func TestCollectsInGoodTime(t *testing.T) {
	const mib = 1 << 20
	before := debug.SetGCPercent(73)
	defer debug.SetGCPercent(before)
	live := make([][]byte, 32)
	for i := range live {
		live[i] = make([]byte, mib)
	}
	runtime.GC()
	c, h := New(), newHeap()
	c.pause = time.Hour // nothing but Settled makes it look
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for round := range 3 {
		had := forced()
		await.That(t, "a cycle", func() error {
			sink = make([]byte, mib)
			if c.Settled(false); forced() == had {
				h.read()
				return fmt.Errorf("round %d: no cycle began at %d MiB after %d", round, h.occupied/mib, h.lived/mib)
			}
			return nil
		})
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if now := debug.SetGCPercent(73); now != 73 {
		t.Errorf("GOGC is %d after Run", now)
	}
	runtime.KeepAlive(live)
}

// What was said last counts.
func TestSettledTellsWhatIsSoNow(t *testing.T) {
	c := New()
	c.Settled(true)
	c.Settled(false)
	if waiting := <-c.settled; waiting {
		t.Error("something is waiting")
	}
}

// Without one, everything is left to the runtime.
func TestNone(t *testing.T) {
	var c *Collector
	c.Settled(true)
	if err := c.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
