// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
)

// scripted is a driver that takes some time and fails as set.
type scripted struct {
	mu      sync.Mutex
	takes   time.Duration
	fails   []error // of the Applies to come; nil afterwards
	applied []*nodestate.State
	keys    []nodestate.Table
	at      []time.Time
}

func (d *scripted) Apply(_ context.Context, s *nodestate.State, k nodestate.Keys) error {
	time.Sleep(d.takes)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied, d.keys, d.at = append(d.applied, s), append(d.keys, k.Tables), append(d.at, time.Now())
	if len(d.fails) == 0 {
		return nil
	}
	err := d.fails[0]
	d.fails = d.fails[1:]
	return err
}

func (d *scripted) Close() error { return nil }

func start(t *testing.T, d Driver) *Loop {
	l := NewLoop(d, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

func TestLoopSquashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{takes: time.Second}
		l := start(t, d)
		l.Submit(nodestate.New(), nodestate.Keys{Tables: nodestate.TableAddrs})
		time.Sleep(10 * time.Millisecond)
		l.Submit(nodestate.New(), nodestate.Keys{Tables: nodestate.TableRoutes})
		last := nodestate.New()
		gen := l.Submit(last, nodestate.Keys{Tables: nodestate.TablePolicy})
		if err := l.Wait(t.Context(), gen, nil); err != nil {
			t.Fatal(err)
		}
		if len(d.applied) != 2 || d.applied[1] != last || d.keys[1] != nodestate.TableRoutes|nodestate.TablePolicy {
			t.Errorf("%d applies, keys %v", len(d.applied), d.keys)
		}
	})
}

func TestLoopRetriesWithGrowingPausesAndNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.Join(&KeyError{"weir_addrs", "10.0.0.1", errors.New("full")})
		d := &scripted{fails: []error{full, full, full}}
		l := start(t, d)
		gen := l.Submit(nodestate.New(), nodestate.All())
		if err := l.Wait(t.Context(), gen, func(e *KeyError) bool { return e.Key == "10.0.0.2" }); err != nil {
			t.Errorf("a failure of another key: %v", err)
		}
		if err := l.Wait(t.Context(), gen, func(e *KeyError) bool { return e.Key == "10.0.0.1" }); err != nil {
			t.Fatal(err)
		}
		if len(d.applied) != 4 || d.keys[1] != 0 {
			t.Errorf("%d applies, hints %v; want 4, and only the first with a hint", len(d.applied), d.keys)
		}
		if first, second := d.at[1].Sub(d.at[0]), d.at[2].Sub(d.at[1]); second <= first {
			t.Errorf("pauses %v, %v do not grow", first, second)
		}
		if l.Err() != nil {
			t.Errorf("error after success: %v", l.Err())
		}
	})
}

// TestLoopGoesOnWithWhatIsUnfinished: at once, and with what was submitted meanwhile.
func TestLoopGoesOnWithWhatIsUnfinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{takes: time.Second, fails: []error{ErrUnfinished, errors.Join(ErrUnfinished), nil}}
		l := start(t, d)
		l.Submit(nodestate.New(), nodestate.All())
		time.Sleep(time.Millisecond)
		began, last := time.Now(), nodestate.New()
		if err := l.Wait(t.Context(), l.Submit(last, nodestate.Keys{}), nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*time.Second || len(d.applied) != 3 || d.applied[1] != last {
			t.Errorf("%d applies in %v", len(d.applied), took)
		}
	})
}

// TestLoopWaitsWithTheDriver: an Apply that waits for something is made again when that is there,
// and for each new state before; none of them counts as applied.
func TestLoopWaitsWithTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		waiting := &Waiting{For: "programs", Until: until}
		d := &scripted{fails: []error{waiting, errors.Join(&KeyError{"weir_addrs", "10.0.0.1", errors.New("full")}, waiting), nil}}
		l := start(t, d)
		l.Submit(nodestate.New(), nodestate.Keys{Tables: nodestate.TableServices})
		time.Sleep(time.Hour)
		if len(d.applied) != 1 || l.Applied() != 0 {
			t.Errorf("%d applies, generation %d counts as applied; want 1, and none", len(d.applied), l.Applied())
		}
		last := nodestate.New()
		gen := l.Submit(last, nodestate.Keys{Tables: nodestate.TablePolicy})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := l.Wait(ctx, gen, func(*KeyError) bool { return false }); !errors.Is(err, ErrUnfinished) {
			t.Errorf("waiting for what waits: %v", err)
		}
		if len(d.applied) != 2 || d.applied[1] != last || d.keys[1] != nodestate.TablePolicy || l.Applied() != 0 {
			t.Errorf("%d applies, hints %v, generation %d", len(d.applied), d.keys, l.Applied())
		}
		close(until)
		if err := l.Wait(t.Context(), gen, nil); err != nil {
			t.Fatal(err)
		}
		if len(d.applied) != 3 || l.Applied() != gen {
			t.Errorf("%d applies, generation %d, want 3 and %d", len(d.applied), l.Applied(), gen)
		}
	})
}

func TestLoopKeepsTheHintWhenTheDriverFailsAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{fails: []error{errors.New("cannot read the maps")}}
		l := start(t, d)
		gen := l.Submit(nodestate.New(), nodestate.Keys{Tables: nodestate.TableServices})
		if err := l.Wait(t.Context(), gen, nil); err != nil {
			t.Fatal(err)
		}
		if len(d.keys) != 2 || d.keys[1] != nodestate.TableServices {
			t.Errorf("hints %v", d.keys)
		}
	})
}

func TestWaitSaysWhatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := make([]error, 100)
		for i := range fails {
			fails[i] = errors.Join(&KeyError{"programs", "cali1 from_workload", errors.New("device busy")})
		}
		l := start(t, &scripted{fails: fails})
		gen := l.Submit(nodestate.New(), nodestate.All())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Wait(ctx, gen, nil)
		if err == nil || !strings.Contains(err.Error(), "cali1 from_workload: device busy") {
			t.Errorf("error %v", err)
		}
	})
}

func TestLoopKnowsHowLateItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := errors.New("cannot read the maps")
		one := errors.Join(&KeyError{"weir_addrs", "10.0.0.1", errors.New("full")})
		d := &scripted{fails: []error{whole, whole, whole, whole, whole, whole, whole, whole, whole, whole, whole, whole, one}}
		l := start(t, d)
		if late := l.Stale(); late != 0 {
			t.Errorf("nothing was submitted, and it is %s late", late)
		}
		l.Submit(nodestate.New(), nodestate.All())
		time.Sleep(20 * time.Second)
		if late := l.Stale(); late != 20*time.Second {
			t.Errorf("%s late after 20 s of failures", late)
		}
		time.Sleep(5 * time.Minute)
		if late := l.Stale(); late != 0 || len(d.applied) < 13 {
			t.Errorf("%s late after %d applies, the last of which left one key undone at most", late, len(d.applied))
		}
	})
}

func TestAFailureOfAllIsNotHiddenByOneOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := errors.Join(&KeyError{"devices", "weir0", errors.New("busy")}, errors.New("writing table ip weir: no space"))
		fails := make([]error, 100)
		for i := range fails {
			fails[i] = fmt.Errorf("applying: %w", both)
		}
		d := &scripted{fails: fails}
		l := start(t, d)
		gen := l.Submit(nodestate.New(), nodestate.Keys{Tables: nodestate.TableServices})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Wait(ctx, gen, func(*KeyError) bool { return false })
		if err == nil || !strings.Contains(err.Error(), "no space") || strings.Contains(err.Error(), "busy") {
			t.Errorf("error %v", err)
		}
		if d.keys[1] != nodestate.TableServices || l.Stale() == 0 {
			t.Errorf("hints %v, %s late: nothing may have been looked at", d.keys, l.Stale())
		}
	})
}

func TestLoopSaysWhenAnApplyIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{takes: time.Second}
		l := NewLoop(d, slog.New(slog.DiscardHandler))
		var said []bool
		l.Settled = func(waiting bool) { said = append(said, waiting) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		l.Submit(nodestate.New(), nodestate.Keys{})
		time.Sleep(10 * time.Millisecond)
		l.Submit(nodestate.New(), nodestate.Keys{})
		time.Sleep(time.Minute)
		cancel()
		<-done
		if len(said) != 2 || !said[0] || said[1] {
			t.Errorf("after two Applies, the second waiting during the first: %v", said)
		}
	})
}
