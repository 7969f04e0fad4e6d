// SPDX-License-Identifier: Apache-2.0

// Package progress shows the user what a long-running command is doing.
package progress

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// heartbeat is how often a step that is still running says so.
const heartbeat = 10 * time.Second

// Reporter writes one line a step, each with the time since the command began.
// It may be used from several goroutines.
type Reporter struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time

	steps   atomic.Int64 // that began
	running atomic.Int32
}

// New makes a reporter that writes to w.
func New(w io.Writer) *Reporter { return &Reporter{w: w, start: time.Now()} }

// Elapsed is the time since the command began.
func (r *Reporter) Elapsed() time.Duration { return time.Since(r.start) }

// Printf writes one line.
func (r *Reporter) Printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.w, "[%6.1fs] %s\n", r.Elapsed().Seconds(), fmt.Sprintf(format, args...))
}

// Step runs f, and says when it takes long, when it is done and how long it took.
func (r *Reporter) Step(what string, f func() error) error {
	began, cpu := time.Now(), childrenCPU()
	alone := r.running.Add(1) == 1
	defer r.running.Add(-1)
	steps := r.steps.Add(1)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				r.Printf("%s … %.0f s", what, time.Since(began).Seconds())
			}
		}
	})
	err := f()
	close(done)
	wg.Wait()
	if err != nil {
		r.Printf("%s: failed after %.1f s", what, time.Since(began).Seconds())
		return err
	}
	took := fmt.Sprintf("%s: %.1f s", what, time.Since(began).Seconds())
	// What other steps ran at the same time cannot be told from this one.
	if used := childrenCPU() - cpu; used >= time.Second && r.steps.Load() == steps && alone {
		took += fmt.Sprintf(", %.1f s of CPU time", used.Seconds())
	}
	r.Printf("%s", took)
	return nil
}

// childrenCPU is the CPU time of programs that this one ran, and theirs.
func childrenCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
