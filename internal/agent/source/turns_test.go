// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// TestTurns holds that of any number of nodes one in twenty has its turn at a time, each once in
// twenty turns, and that agents begin within their turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{1, 19, 100, 1003} {
			var nodes []string
			for i := range n {
				nodes = append(nodes, fmt.Sprint("node-", i*7919%n))
			}
			had := map[string]int{}
			for range turns {
				now, reading := time.Now(), 0
				for _, node := range nodes {
					begin, end := turnAt(place(nodes, node), now)
					if !begin.After(now) && now.Before(end) {
						reading++
						had[node]++
					}
					wait, lasts := nextTurn(place(nodes, node), now)
					at := now.Add(wait)
					if b, e := turnAt(place(nodes, node), at); wait < 0 || at.Before(b) || at.Sub(b) > turnBegins || !at.Add(lasts).Equal(e) {
						t.Fatalf("begins at %s, in a turn of %s to %s", at, b, e)
					}
				}
				if most := (n + turns - 1) / turns; reading > most {
					t.Errorf("%d of %d nodes have their turn at a time", reading, n)
				}
				time.Sleep(turn)
			}
			for _, node := range nodes {
				if had[node] != 1 {
					t.Errorf("node %s of %d has had %d turns", node, n, had[node])
				}
			}
		}
		// Nodes that nobody knows yet do not have the same turn.
		places := map[int64]bool{}
		for i := range 100 {
			places[place(nil, fmt.Sprint("new-", i))] = true
		}
		if len(places) < turns/2 {
			t.Errorf("new nodes have %d turns among them", len(places))
		}
	})
}

// fleetOf is some agents whose fan-outs may be gone.
type fleetOf struct {
	gone     atomic.Bool
	reading  atomic.Int32 // agents that read the API server
	most     atomic.Int32
	begun    atomic.Int32
	apiDown  atomic.Bool
	choosers []*Chooser
	feds     []*atomic.Pointer[fake] // the last one of each
}

// counted is an API server's source that counts who reads.
type counted struct {
	*fake
	f *fleetOf
}

func (s counted) Start(ctx context.Context) {
	s.f.begun.Add(1)
	n := s.f.reading.Add(1)
	for m := s.f.most.Load(); n > m && !s.f.most.CompareAndSwap(m, n); m = s.f.most.Load() {
	}
	ctx, cancel := context.WithCancel(ctx)
	s.fake.stop = cancel
	context.AfterFunc(ctx, func() { s.f.reading.Add(-1) })
	s.fake.Start(ctx)
}

func (s counted) Run(ctx context.Context, sink watch.Sink) error {
	defer s.fake.stop()
	return s.fake.Run(ctx, sink)
}

// liveFed is connected while the fan-outs are there.
type liveFed struct {
	*fake
	f *fleetOf
}

func (s liveFed) Status() watch.Status {
	st := s.fake.Status()
	if st.Connected = st.Connected && !s.f.gone.Load(); st.Connected {
		st.FanOut = "fan-out"
	}
	return st
}

func startFleet(t *testing.T, ctx context.Context, n int, mode Mode, lastResort bool) *fleetOf {
	t.Helper()
	f := &fleetOf{}
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("n", i))
	}
	for i := range n {
		s, last := &site{}, &atomic.Pointer[fake]{}
		s.set("2", "192.0.2.1")
		c, err := New(ctx, Config{Mode: mode, Log: slog.New(slog.DiscardHandler), Replicas: &Replicas{Slice: s.read}, LastResort: lastResort, Node: names[i],
			Nodes: func() []string { return append([]string{}, names...) },
			API: func() (Source, error) {
				return counted{&fake{name: "api", delay: time.Second, silent: f.apiDown.Load}, f}, nil
			},
			FanOut: func() Fed {
				fed := &fake{name: "fan-out", delay: time.Second, since: time.Now(), silent: f.gone.Load}
				last.Store(fed)
				return liveFed{fed, f}
			}})
		if err != nil {
			t.Fatal(err)
		}
		f.choosers, f.feds = append(f.choosers, c), append(f.feds, last)
		ended := make(chan error, 1)
		c.Start(ctx)
		go func() { ended <- c.Run(ctx, func(context.Context, *watch.Batch) {}) }()
		t.Cleanup(func() {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	return f
}

// TestLastResort holds that agents read the API server in turns where no fan-out can be reached,
// that none does where one can, or where the option is off, and that they go back.
func TestLastResort(t *testing.T) {
	for _, mode := range []Mode{Always, Auto} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			const agents = 40
			f := startFleet(t, ctx, agents, mode, true)
			time.Sleep(time.Hour)
			if n := f.begun.Load(); n != 0 {
				t.Fatalf("%d agents read the API server while there is a fan-out", n)
			}
			f.gone.Store(true)
			for _, fed := range f.feds {
				p := fed.Load()
				p.mu.Lock()
				p.since = time.Now()
				p.mu.Unlock()
			}
			time.Sleep(noFanOutFor - time.Second)
			if n := f.begun.Load(); n != 0 {
				t.Errorf("%d agents read the API server at once", n)
			}
			time.Sleep((turns + 2) * turn)
			if n := f.most.Load(); n > agents/turns {
				t.Errorf("%d of %d agents read the API server at a time", n, agents)
			}
			if n := f.begun.Load(); n < agents {
				t.Errorf("%d of %d agents have had a turn", n, agents)
			}
			held := f.feds[1].Load().held
			if len(held) != 1 || held[model.Name{Name: "own"}] == nil {
				t.Errorf("after its turn the agent has the pods %v", held)
			}
			for _, c := range f.choosers {
				if !c.Status().Synced {
					t.Error("an agent does not know what it has read")
				}
			}
			// A turn with nothing to be read ends, too, and there is a fan-out again.
			f.apiDown.Store(true)
			time.Sleep((turns + 2) * turn)
			f.apiDown.Store(false)
			time.Sleep(turn / 2)
			f.gone.Store(false)
			time.Sleep(time.Minute)
			if n := f.reading.Load(); n != 0 {
				t.Errorf("%d agents still read the API server", n)
			}
			for i, c := range f.choosers {
				if st := c.Status(); !st.Connected || !c.Fed() {
					t.Errorf("agent %d: %+v", i, st)
				}
			}
			cancel()
			synctest.Wait()
		})
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := startFleet(t, ctx, 3, mode, false)
			f.gone.Store(true)
			time.Sleep(3 * time.Hour)
			if n := f.begun.Load(); n != 0 {
				t.Errorf("%d agents read the API server with the option off", n)
			}
			cancel()
		})
	}
}
