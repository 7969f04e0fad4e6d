// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
)

// driver notes what becomes of it.
type driver struct {
	fails int // so many Applies to come

	mu      sync.Mutex
	applied []*nodestate.State
	did     []string
}

func (d *driver) note(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.did = append(d.did, what)
}

func (d *driver) Apply(_ context.Context, s *nodestate.State, _ nodestate.Keys) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails > 0 {
		d.fails--
		return errors.New("not yet")
	}
	d.applied = append(d.applied, s)
	return nil
}

func (d *driver) has(s *nodestate.State) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.applied, s)
}

func (d *driver) Leave()       { d.note("left") }
func (d *driver) Close() error { d.note("closed"); return nil }

// begin runs a loop of a driver that has one state.
func begin(t *testing.T, d *driver) *dataplane.Loop {
	t.Helper()
	l := dataplane.NewLoop(d, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	if err := l.Wait(t.Context(), l.Submit(nodestate.New(), nodestate.All()), nil); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestBothApply: what is submitted while connections are handed over is applied by both before that
// goes on; what comes after the predecessor's end is the successor's alone.
func TestBothApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := &driver{}, &driver{fails: 3}
		l := begin(t, from)
		submit := func() *nodestate.State {
			s := nodestate.New()
			if err := l.Wait(t.Context(), l.Submit(s, nodestate.Keys{}), nil); err != nil {
				t.Fatal(err)
			}
			return s
		}
		err := Change{Loop: l, From: from, To: to,
			HandOver: func(context.Context) error {
				if s := submit(); !from.has(s) || !to.has(s) {
					t.Errorf("applied by the one in force: %v, by its successor: %v", from.has(s), to.has(s))
				}
				return nil
			},
			Remove: func(context.Context) error {
				s := nodestate.New()
				l.Submit(s, nodestate.Keys{})
				time.Sleep(time.Second)
				if from.has(s) || !to.has(s) {
					t.Errorf("at the end applied by the one before: %v, by its successor: %v", from.has(s), to.has(s))
				}
				from.note("removed")
				return nil
			}}.Run(t.Context())
		if want := []string{"left", "closed", "removed"}; err != nil || !slices.Equal(from.did, want) {
			t.Errorf("%v, %v; want %v", from.did, err, want)
		}
	})
}

// TestBrokenOff: where a successor never comes into place, or handing over fails, the one in force
// goes on applying and nothing of it is removed.
func TestBrokenOff(t *testing.T) {
	for name, c := range map[string]struct {
		fails    int
		handOver error
	}{"never in place": {fails: 1 << 30}, "not handed over": {handOver: errors.New("no")}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := &driver{}
				l := begin(t, from)
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				err := Change{Loop: l, From: from, To: &driver{fails: c.fails}, HandOver: func(context.Context) error { return c.handOver },
					Remove: func(context.Context) error { t.Error("it is removed"); return nil }}.Run(ctx)
				if err == nil || !slices.Equal(from.did, []string{"left"}) {
					t.Errorf("%v, %v", from.did, err)
				}
				s := nodestate.New()
				if err := l.Wait(t.Context(), l.Submit(s, nodestate.Keys{}), nil); err != nil || !from.has(s) {
					t.Errorf("the one in force applies nothing any more (%v)", err)
				}
			})
		})
	}
}
