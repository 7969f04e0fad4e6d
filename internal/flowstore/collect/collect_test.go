// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/flowstore"
)

// agent answers as a node's agent does, over a connection that the test cuts; before it does, it
// calls first.
type agent struct {
	t       *testing.T
	server  *httptest.Server
	boot    string
	records []*flows.Flow
	node    string // that records claim to be of
	asked   atomic.Int64
	lost    map[string]uint64
	more    chan struct{}
}

func newAgent(t *testing.T, boot string, n int) *agent {
	t.Helper()
	a := &agent{t: t, boot: boot, node: "n9", more: make(chan struct{})}
	for i := range n {
		a.records = append(a.records, &flows.Flow{End: time.Now().Add(-time.Minute), Node: a.node, Verdict: flows.Allowed, Protocol: "tcp", Source: flows.Peer{Port: uint16(i)}, Rule: &events.Rule{Kind: "NetworkPolicy", Name: "a/b"}})
	}
	a.server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.server.Close)
	return a
}

func (a *agent) serve(w http.ResponseWriter, r *http.Request) {
	a.asked.Add(1)
	at, err := wire.ParsePosition(r.URL.Query())
	if err != nil || r.URL.Path != wire.Path {
		http.Error(w, "what?", http.StatusBadRequest)
		return
	}
	if at.Boot != a.boot {
		at.Next = 0
	}
	out := wire.NewWriter(w)
	for _, f := range a.records[at.Next:] {
		if _, err := out.Write(a.boot, at.Next, a.lost, []*flows.Flow{f}); err != nil {
			return
		}
		at.Next++
	}
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.Context().Done():
	case <-a.more:
	}
}

// Ask is Agent's.
func (a *agent) Ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.server.URL+path, body)
	if err != nil {
		return nil, err
	}
	return a.server.Client().Do(req)
}

func open(t *testing.T, dir string) *flowstore.Store {
	t.Helper()
	s, err := flowstore.Open(flowstore.Options{Dir: dir, Age: time.Hour, Bytes: 1 << 30, Records: 1000, Every: time.Hour, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// has waits for a number of records, and looks that they are of the node.
func has(t *testing.T, s *flowstore.Store, n int) {
	t.Helper()
	await.That(t, "the records", func() error {
		if st := s.Status(); st.Records+st.Memory != n {
			return errors.New("there are others")
		}
		return nil
	})
	err := s.Each(t.Context(), flowstore.Query{}, func(f *flows.Flow) bool {
		if f.Node != "n1" {
			t.Errorf("a record of n1 is of %q", f.Node)
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}

// follow follows an agent until the function that it returns is called.
func follow(t *testing.T, c *Collector, a Agent) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		c.Follow(ctx, "n1", a)
		close(ended)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// What an agent has is taken once: over a cut answer, a store that starts again from its disk, and
// an agent that starts again; whatever node its records claim, they are of the node that it proved.
func TestFollow(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s := open(t, dir)
	c := &Collector{Store: s, Log: slog.New(slog.DiscardHandler)}
	a := newAgent(t, "a", 10)
	stop := follow(t, c, a)
	has(t, s, 10)
	a.more <- struct{}{} // the answer ends, and it asks again
	await.That(t, "another question", func() error {
		if a.asked.Load() < 2 {
			return errors.New("none")
		}
		return nil
	})
	has(t, s, 10)
	stop()
	s.Flush()
	again := open(t, dir)
	c = &Collector{Store: again, Log: slog.New(slog.DiscardHandler)}
	stop = follow(t, c, a)
	await.That(t, "a question of the new store", func() error {
		if a.asked.Load() < 3 {
			return errors.New("none")
		}
		return nil
	})
	has(t, again, 10)
	stop()
	next := newAgent(t, "b", 5)
	follow(t, c, next)
	has(t, again, 15)
	if lost := again.Status().Lost; lost[flowstore.LostOld] != 0 {
		t.Errorf("lost are %v", lost)
	}
}

// A node is followed by one at a time: who comes second waits until the first has ended.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "store"))
	c := &Collector{Store: s, Log: slog.New(slog.DiscardHandler)}
	first, second := newAgent(t, "a", 3), newAgent(t, "b", 4)
	stop := follow(t, c, first)
	has(t, s, 3)
	follow(t, c, second)
	time.Sleep(50 * time.Millisecond)
	if n := second.asked.Load(); n != 0 {
		t.Errorf("both are asked: %d", n)
	}
	stop()
	has(t, s, 7)
}

// An agent that keeps no records, or answers what means nothing, is asked again later, and costs
// nothing else.
func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "store"))
	c := &Collector{Store: s, Log: slog.New(slog.DiscardHandler)}
	for name, serve := range map[string]http.HandlerFunc{
		"records are off": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "off", http.StatusConflict) },
		"no batch":        func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "\x00\x00\x00\x02\xff\xff") },
		"no start": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = wire.NewWriter(w).Write("", 0, nil, []*flows.Flow{{End: time.Now()}})
		},
		"an end": func(http.ResponseWriter, *http.Request) {},
	} {
		server := httptest.NewServer(serve)
		err := c.once(t.Context(), "n1", &agent{server: server})
		server.Close()
		if err == nil || s.Status().Memory != 0 {
			t.Errorf("%s: %v, %d records", name, err, s.Status().Memory)
		}
	}
}
