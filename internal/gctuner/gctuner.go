// SPDX-License-Identifier: Apache-2.0

// Package gctuner chooses when Go's garbage collector runs: as soon as nothing else is waiting, and
// long before it has to.
//
// The collector works concurrently with the program. Left to itself it begins a cycle when the heap
// has nearly reached its goal, and whoever allocates before the cycle is over then has to do the
// more of its work the less room is left (an assist): with a heap of 100 MiB a change that
// allocates one marks twenty. A cycle that begins in good time asks next to nothing, and one that
// begins when a change is over is often over itself when the next one comes.
package gctuner

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// Percent takes the place of GOGC: what the runtime keeps to by itself, should nobody say that
	// anything is over.
	Percent = 100
	// A cycle is due when the heap has grown by this much of what lived after the last one: less
	// where nothing is waiting, and least where the last one was long ago.
	shareLong, shareResting, shareBusy = 0.1, 0.25, 0.5
	// long is after which time a cycle costs next to nothing, and what it frees goes back to the
	// kernel: it will not be needed at once.
	long = 20 * time.Second
	// least is by how much at least, bytes.
	least = 4 << 20
	// pause is how long the heap is not looked at when nobody says anything.
	pause = time.Second
)

// Collector begins the cycles of its process. A nil one leaves them to the runtime.
type Collector struct {
	settled chan bool // capacity 1: whether something is waiting
	pause   time.Duration
}

// New returns a collector that does nothing before Run.
func New() *Collector { return &Collector{settled: make(chan bool, 1), pause: pause} }

// Settled says that a piece of work is over, and whether the next one is waiting already. It never
// blocks; one goroutine calls it.
func (c *Collector) Settled(waiting bool) {
	if c == nil {
		return
	}
	select {
	case <-c.settled: // it has not looked yet: what is so now counts
	default:
	}
	c.settled <- waiting
}

// Run begins cycles until ctx ends. Meanwhile GOGC is Percent, then what it was.
func (c *Collector) Run(ctx context.Context) error {
	if c == nil {
		return nil
	}
	defer debug.SetGCPercent(debug.SetGCPercent(Percent))
	tick := time.NewTicker(c.pause)
	defer tick.Stop()
	h := newHeap()
	last := time.Now()
	for {
		waiting := false
		select {
		case <-ctx.Done():
			return nil
		case waiting = <-c.settled:
		case <-tick.C:
		}
		h.read()
		switch since := time.Since(last); {
		case !h.due(waiting, since):
			continue
		case since < long:
			runtime.GC() // alongside the others; it returns when the cycle is over
		default:
			debug.FreeOSMemory() // so does this
		}
		last = time.Now()
	}
}

// heap is what the runtime says of it, bytes.
type heap struct {
	lived    uint64 // marked by the last cycle
	occupied uint64 // by what lives and by what was not collected yet
	samples  []metrics.Sample
}

func newHeap() *heap {
	return &heap{samples: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}}
}

func (h *heap) read() {
	metrics.Read(h.samples)
	h.lived, h.occupied = h.samples[0].Value.Uint64(), h.samples[1].Value.Uint64()
}

// due reports whether a cycle should begin, some time after the last one.
func (h *heap) due(waiting bool, since time.Duration) bool {
	share := shareResting
	switch {
	case waiting:
		share = shareBusy
	case since >= long:
		share = shareLong
	}
	return h.occupied > h.lived+max(least, uint64(share*float64(h.lived)))
}
