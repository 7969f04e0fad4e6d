// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
)

const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Loop applies states to a driver, one at a time and always the latest: what is submitted while an
// Apply is under way is squashed. What could not be put in place is tried again, with growing
// pauses.
type Loop struct {
	// Settled, set before Run, is called after each Apply; waiting says that another state was
	// submitted meanwhile.
	Settled func(waiting bool)
	// Before and After, set before Run and Follow, are called before each Apply, which is left out
	// where Before fails, and after one that left nothing undone.
	Before, After func(*nodestate.State) error

	driver Driver
	log    *slog.Logger
	wake   chan struct{} // capacity 1

	mu      sync.Mutex
	state   *nodestate.State
	changed nodestate.Keys // since the Apply before
	gen     uint64         // of state
	done    uint64         // the generation that was applied last, in part if err says so
	whole   uint64         // the one that was applied last by an Apply that was not ErrUnfinished
	err     error          // of that Apply
	moved   chan struct{}  // closed when done or err changes
	began   time.Time      // of the Apply under way; zero = none
	waits   time.Time      // since when a state waits for its first Apply that does not fail as a whole; zero = none does
	stats   LoopStats
	next    *Loop // that follows this one; nil = none does
	ended   bool

	applying sync.Mutex // held during an Apply
}

// LoopStats are what a Loop did.
type LoopStats struct {
	Applies  uint64
	Failures uint64        // Applies that left something undone
	Last     time.Duration // of the last Apply
	Pending  int           // keys that could not be put in place
}

// NewLoop returns a loop that has nothing to apply yet.
func NewLoop(d Driver, log *slog.Logger) *Loop {
	return &Loop{Settled: func(bool) {}, Before: nothing, After: nothing, driver: d, log: log, wake: make(chan struct{}, 1), moved: make(chan struct{})}
}

func nothing(*nodestate.State) error { return nil }

// Submit hands a state over and returns its generation. changed says what differs from the state
// that was submitted before.
func (l *Loop) Submit(s *nodestate.State, changed nodestate.Keys) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(s, changed, l.gen+1)
	if l.next != nil {
		l.next.mu.Lock()
		defer l.next.mu.Unlock()
		l.next.put(s, changed, l.gen)
	}
	return l.gen
}

// put takes a state for the next Apply; the caller holds mu.
func (l *Loop) put(s *nodestate.State, changed nodestate.Keys, gen uint64) {
	l.state, l.gen = s, gen
	if l.waits.IsZero() {
		l.waits = time.Now()
	}
	l.changed.Tables |= changed.Tables
	l.again()
}

// again lets Run apply the latest state.
func (l *Loop) again() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Follow returns a loop for another driver that is to take the place of this one's. It gets the
// latest state and all that is submitted here from then on, with the same generations, and Wait
// waits for it, too.
func (l *Loop) Follow(d Driver) *Loop {
	next := NewLoop(d, l.log)
	next.Before, next.After = l.Before, l.After
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != nil {
		next.put(l.state, nodestate.All(), l.gen)
	}
	l.next = next
	return next
}

// Unfollow ends what Follow began.
func (l *Loop) Unfollow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = nil
}

// successor returns the loop that follows this one; nil = none does.
func (l *Loop) successor() *Loop {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// End lets nothing more be applied, and returns when no Apply is under way. What is submitted goes
// to the loop that follows.
func (l *Loop) End() {
	l.mu.Lock()
	l.ended, l.waits = true, time.Time{}
	l.mu.Unlock()
	l.applying.Lock()
	defer l.applying.Unlock()
}

// Run applies what is submitted until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	wait := firstRetry
	var until <-chan struct{} // nil = the driver waits for nothing
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
			wait = firstRetry
		case <-retry.C:
		case <-until:
		}
		until = nil
		err := l.apply(ctx)
		var waiting *Waiting
		switch {
		case errors.As(err, &waiting):
			until = waiting.Until
		case errors.Is(err, ErrUnfinished):
			l.again()
		case err != nil:
			retry.Reset(wait)
			wait = min(2*wait, lastRetry)
		default:
			retry.Stop()
			wait = firstRetry
		}
		l.Settled(len(l.wake) > 0)
	}
}

func (l *Loop) apply(ctx context.Context) error {
	l.applying.Lock()
	defer l.applying.Unlock()
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil
	}
	s, changed, gen := l.state, l.changed, l.gen
	l.changed = nodestate.Keys{}
	before := l.err
	l.began = time.Now()
	began := l.began
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	err := l.Before(s)
	if err == nil {
		err = l.driver.Apply(ctx, s, changed)
	}
	if err == nil {
		err = l.After(s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if others(err) != nil && !errors.Is(err, ErrUnfinished) {
		// Not about single keys: the driver may not even have looked at the tables.
		l.changed.Tables |= changed.Tables
	}
	if others(err) == nil {
		l.waits = time.Time{}
		if gen != l.gen {
			l.waits = began // what was submitted meanwhile waits since then at most
		}
	}
	l.report(before, err)
	l.done, l.err, l.began = gen, err, time.Time{}
	if !errors.Is(err, ErrUnfinished) {
		l.whole = gen
	}
	l.stats.Applies++
	l.stats.Last = time.Since(began)
	l.stats.Pending = len(Failures(err))
	if err != nil {
		l.stats.Failures++
	}
	close(l.moved)
	l.moved = make(chan struct{})
	return err
}

// report logs what is wrong when it changes, not at every try.
func (l *Loop) report(before, now error) {
	switch {
	case now == nil && before != nil:
		l.log.Info("the data plane is as it should be again")
	case now != nil && (before == nil || before.Error() != now.Error()):
		failures := Failures(now)
		if err := others(now); err != nil && !errors.Is(err, ErrUnfinished) {
			l.log.Error("applying the node's state; trying again", "error", err)
		}
		for i, f := range failures {
			if i == 10 {
				l.log.Error("applying the node's state; trying again", "more keys", len(failures)-i)
				break
			}
			l.log.Error("applying the node's state; trying again", "table", f.Table, "key", f.Key, "error", f.Err)
		}
	}
}

// Wait returns nil when a state of at least the given generation was applied and no key that
// concerns the caller failed, here and by the loop that follows. It returns what failed when ctx
// ends before that.
func (l *Loop) Wait(ctx context.Context, gen uint64, concerns func(*KeyError) bool) error {
	if next := l.successor(); next != nil {
		if err := next.Wait(ctx, gen, concerns); err != nil {
			return err
		}
	}
	for {
		l.mu.Lock()
		done, err, moved := l.done, l.err, l.moved
		l.mu.Unlock()
		var mine error
		if done >= gen {
			if mine = concerned(err, concerns); mine == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if mine != nil {
				return fmt.Errorf("could not be put in place: %w", mine)
			}
			return fmt.Errorf("waiting for the data plane: %w", ctx.Err())
		case <-moved:
		}
	}
}

// concerned keeps of err what is about no single key, and what concerns the caller.
func concerned(err error, concerns func(*KeyError) bool) error {
	mine := []error{others(err)}
	for _, f := range Failures(err) {
		if concerns == nil || concerns(f) {
			mine = append(mine, f)
		}
	}
	return errors.Join(mine...)
}

// others returns what is joined in err in addition to KeyErrors: about no single key, so about all
// of them.
func others(err error) error {
	if len(Failures(err)) == 0 {
		return err
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var out []error
		for _, each := range e.Unwrap() {
			out = append(out, others(each))
		}
		return errors.Join(out...)
	case interface{ Unwrap() error }:
		if _, key := err.(*KeyError); !key {
			return others(e.Unwrap())
		}
	}
	return nil
}

// Err returns what the last Apply left undone; nil when there was none yet.
func (l *Loop) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Applied returns the generation that was applied last, single keys aside; 0 = none yet. An Apply
// that left more to do does not count.
func (l *Loop) Applied() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.whole
}

// Stuck returns for how long the Apply under way has been going on, here or by the loop that
// follows; 0 when there is none.
func (l *Loop) Stuck() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var stuck time.Duration
	if l.next != nil {
		stuck = l.next.Stuck()
	}
	if l.began.IsZero() {
		return stuck
	}
	return max(stuck, time.Since(l.began))
}

// Stale returns for how long a state has been waiting to be put in place; 0 when none is. One that
// was put in place but for single keys does not wait.
func (l *Loop) Stale() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits.IsZero() {
		return 0
	}
	return time.Since(l.waits)
}

// Stats returns what the loop did.
func (l *Loop) Stats() LoopStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Failures returns the KeyErrors that are joined in err.
func Failures(err error) []*KeyError {
	switch e := err.(type) {
	case nil:
		return nil
	case *KeyError:
		return []*KeyError{e}
	case interface{ Unwrap() []error }:
		var out []*KeyError
		for _, each := range e.Unwrap() {
			out = append(out, Failures(each)...)
		}
		return out
	case interface{ Unwrap() error }:
		return Failures(e.Unwrap())
	}
	return nil
}
