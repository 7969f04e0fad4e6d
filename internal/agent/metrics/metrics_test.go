// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-net/weir/internal/dataplane"
)

func observed(t *testing.T, p *Programming) (count uint64, sum float64) {
	t.Helper()
	var m dto.Metric
	if err := p.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum()
}

// TestProgramming: a change counts from when it happened until the state that has it is in the
// kernel.
func TestProgramming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewProgramming()
		applied := make(chan uint64)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			done := uint64(0)
			ended <- p.Run(ctx, func(ctx context.Context, gen uint64) error {
				for done < gen {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case done = <-applied:
					}
				}
				return nil
			})
		}()
		p.Note(2, nil)
		p.Note(3, []time.Time{time.Now().Add(-2 * time.Second), time.Now().Add(-time.Second)})
		time.Sleep(time.Second)
		applied <- 2
		synctest.Wait()
		if n, _ := observed(t, p); n != 0 {
			t.Errorf("%d changes before their state was applied", n)
		}
		applied <- 3
		synctest.Wait()
		if n, sum := observed(t, p); n != 2 || sum != 5 {
			t.Errorf("%d changes, in all %v s, want 2 and 5", n, sum)
		}
		// Of a control plane whose clock is ahead; the state was applied already.
		p.Note(3, []time.Time{time.Now().Add(time.Minute)})
		synctest.Wait()
		if n, sum := observed(t, p); n != 3 || sum != 5 {
			t.Errorf("%d changes, in all %v s, want 3 and 5", n, sum)
		}
		p.Note(4, slices.Repeat([]time.Time{time.Now()}, 2*pendingMost))
		synctest.Wait()
		p.Note(4, slices.Repeat([]time.Time{time.Now()}, 2*pendingMost))
		if len(p.pending) > pendingMost {
			t.Errorf("%d changes wait", len(p.pending))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestNeighbours: only metrics of the program that is meant are taken; one that is not there has
// none, and one that says anything else is an error that hides no other.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	serve := func(status int, text string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, text)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	good := "# HELP weir_controller_leader Leads.\n# TYPE weir_controller_leader gauge\nweir_controller_leader 1\n"
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, c := range []struct {
		name  string
		of    Neighbours
		names string
		err   string
	}{
		{"one", Neighbours{{serve(200, good+"# TYPE go_threads gauge\ngo_threads 5\n"), "weir_controller_"}}, "weir_controller_leader", ""},
		{"not there", Neighbours{{strings.TrimPrefix(gone.URL, "http://"), "weir_controller_"}}, "", ""},
		{"another program", Neighbours{{serve(404, "no"), "weir_fanout_"}, {serve(200, good), "weir_controller_"}}, "weir_controller_leader", "404"},
		{"no metrics", Neighbours{{serve(200, "<html>"), "weir_controller_"}}, "", "text format parsing error"},
		{"without an end", Neighbours{{serve(200, strings.Repeat("# nothing\n", neighbourMost/10+1)), "weir_controller_"}}, "", "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			families, err := c.of.Gather()
			var names []string
			for _, f := range families {
				names = append(names, f.GetName())
			}
			if got := strings.Join(names, " "); got != c.names {
				t.Errorf("%q, want %q", got, c.names)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// Handshakes are counted by path, in seconds.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	h := NewHandshakes()
	h.Note(dataplane.PathVXLAN, 1500*time.Microsecond)
	h.Note(dataplane.PathVXLAN, 2*time.Second)
	h.Note(dataplane.PathLocal, 80*time.Microsecond)
	for path, want := range map[string]struct {
		count uint64
		sum   float64
	}{"vxlan": {2, 2.0015}, "local": {1, 0.00008}} {
		var m dto.Metric
		if err := h.WithLabelValues(path).(prometheus.Histogram).Write(&m); err != nil {
			t.Fatal(err)
		}
		if m.Histogram.GetSampleCount() != want.count || m.Histogram.GetSampleSum() != want.sum || m.Histogram.GetBucket()[0].GetCumulativeCount() != map[string]uint64{"local": 1}[path] {
			t.Errorf("%s: %v", path, m.Histogram)
		}
	}
}
