// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// fleet are agents on a clock of their own, which write to an API server that counts.
type fleet struct {
	paces  []Pace
	now    time.Time
	url    string
	writes *atomic.Int64
}

func newFleet(t *testing.T, nodes int) *fleet {
	t.Helper()
	f := &fleet{paces: make([]Pace, nodes), now: time.Unix(1e9, 0), writes: &atomic.Int64{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			f.writes.Add(1)
		}
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// pass lets time pass, in which each agent looks every two seconds, and returns the writes of the
// whole and of the busiest ten seconds.
func (f *fleet) pass(t *testing.T, d time.Duration, differs bool) (all, most int64) {
	t.Helper()
	began, tenth := f.writes.Load(), f.writes.Load()
	said := make([]bool, len(f.paces))
	for step := time.Duration(0); step < d; step += 2 * time.Second {
		if step%(10*time.Second) == 0 {
			most, tenth = max(most, f.writes.Load()-tenth), f.writes.Load()
		}
		for i := range f.paces {
			if p := &f.paces[i]; p.Due(f.now, len(f.paces), differs && !said[i]) {
				f.write(t)
				p.Wrote(f.now, len(f.paces))
				said[i] = true
			}
		}
		f.now = f.now.Add(2 * time.Second)
	}
	return f.writes.Load() - began, max(most, f.writes.Load()-tenth)
}

func (f *fleet) write(t *testing.T) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPatch, f.url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// TestWritesOfThousand holds what 1,000 agents write: ten a second while nothing happens, and fifty
// while something changes on all of them; and that a few agents are as quick as before.
func TestWritesOfThousand(t *testing.T) {
	f := newFleet(t, 1000)
	if all, _ := f.pass(t, 2*time.Second, false); all != 1000 {
		t.Errorf("%d agents of 1,000 have said that they are there", all)
	}
	all, most := f.pass(t, 5*time.Minute, false)
	if all < 2500 || all > 3500 || most > 300 {
		t.Errorf("in five quiet minutes %d writes, %d in ten seconds", all, most)
	}
	all, most = f.pass(t, 30*time.Second, true)
	if all < 1000 || all > 1500 || most > 800 {
		t.Errorf("what changed on all nodes took %d writes, %d in ten seconds", all, most)
	}
	few := newFleet(t, 3)
	few.pass(t, 2*time.Second, false)
	if all, _ := few.pass(t, 2*time.Second, true); all != 3 {
		t.Errorf("a change of one of three nodes waits: %d writes", all)
	}
	if all, _ := few.pass(t, 60*time.Second, false); all < 3 || all > 12 {
		t.Errorf("%d heartbeats of three nodes in a minute", all)
	}
}
