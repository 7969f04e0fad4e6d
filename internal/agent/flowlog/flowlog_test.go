// SPDX-License-Identifier: Apache-2.0

package flowlog

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

type nobody struct{}

func (nobody) State() *nodestate.State           { return nil }
func (nobody) Pod(netip.Addr) (model.Name, bool) { return model.Name{}, false }
func (nobody) Describe(model.Name, netip.Addr) (map[string]string, string) {
	return nil, ""
}

// plane has one record and has lost some.
type plane struct{}

func (plane) FlowRecords(give func(dataplane.FlowRecord)) error {
	give(dataplane.FlowRecord{Src: netip.MustParseAddr("10.0.0.1"), ToDst: netip.MustParseAddr("10.0.0.2"), Proto: model.ProtocolUDP, Packets: 1, Bytes: 30, Until: time.Now()})
	return nil
}

func (plane) LostRecords() (dataplane.LostRecords, error) {
	return dataplane.LostRecords{Begun: 9, Full: 2, Queue: 3, Evicted: 6, EvictedKnown: true}, nil
}

func newLog(interval time.Duration) *Log {
	log := slog.New(slog.DiscardHandler)
	return &Log{
		Collector: flows.New("n1", interval, 1024, nobody{}), Events: events.NewHub("n1", nobody{}, func(bool) error { return nil }, log),
		Driver: func() DataPlane { return plane{} }, Lost: func() (dataplane.LostEvents, error) { return dataplane.LostEvents{Limited: 4}, nil },
		Restart: errors.New("again"), Log: log,
	}
}

func ask(l *Log, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequest(http.MethodGet, flows.Path+query, nil))
	return w
}

// The answer has the records that were asked for, and last what is lost; without accounting, and to
// a question that means nothing, it says so.
func TestAnswers(t *testing.T) {
	t.Parallel()
	l := newLog(time.Minute)
	if err := l.Driver().FlowRecords(l.Collector.Add); err != nil {
		t.Fatal(err)
	}
	l.Collector.Flush()
	lines := strings.Split(strings.TrimSpace(ask(l, "?to=10.0.0.2").Body.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"bytes":30`) || !strings.Contains(lines[1], `"events":4,"evicted":6,"expired":3,"interval":0,"old":0,"ring":2`) {
		t.Errorf("%q", lines)
	}
	if lines := strings.Split(strings.TrimSpace(ask(l, "?to=10.0.0.3").Body.String()), "\n"); len(lines) != 1 {
		t.Errorf("%q", lines)
	}
	if s, begun := l.Status(); begun != 9 || s.Kept != 1 {
		t.Errorf("%d begun, %+v", begun, s)
	}
	if w := ask(l, "?since=soon"); w.Code != http.StatusBadRequest {
		t.Errorf("code %d", w.Code)
	}
	if w := ask(newLog(0), ""); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "flowLogsLocalReporter") {
		t.Errorf("code %d: %s", w.Code, w.Body)
	}
}

// Who follows gets the records from where it was, in order, with their numbers; of an agent before,
// from the first on; then those that come, until it leaves.
func TestFollow(t *testing.T) {
	t.Parallel()
	l := newLog(time.Minute)
	put := func() {
		if err := l.Driver().FlowRecords(l.Collector.Add); err != nil {
			t.Error(err)
		}
		l.Collector.Flush()
	}
	for range 3 {
		put()
	}
	server := httptest.NewServer(http.HandlerFunc(l.ServeFollow))
	defer server.Close()
	follow := func(at wire.Position) (*wire.Reader, func()) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+wire.Path+"?"+at.Query().Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return wire.NewReader(resp.Body), func() { resp.Body.Close() }
	}
	boot := l.Collector.Boot()
	for at, first := range map[wire.Position]uint64{{}: 0, {Boot: boot, Next: 2}: 2, {Boot: "before", Next: 2}: 0, {Boot: boot, Next: 9}: 3} {
		r, leave := follow(at)
		b, err := r.Next()
		if err != nil || b.GetBoot() != boot || b.GetFirst() != first || len(b.GetEnd()) != 3-int(first) || b.GetLost()["ring"] != 2 {
			t.Errorf("from %+v: %v, %+v", at, err, b)
		}
		leave()
	}
	r, leave := follow(wire.Position{Boot: boot, Next: 3})
	defer leave()
	if b, err := r.Next(); err != nil || len(b.GetEnd()) != 0 || b.GetFirst() != 3 {
		t.Errorf("at the end: %v, %+v", err, b)
	}
	put()
	if b, err := r.Next(); err != nil || len(b.GetEnd()) != 1 || b.GetFirst() != 3 {
		t.Errorf("what comes: %v, %+v", err, b)
	}
	for query, code := range map[string]int{"?after=x": http.StatusBadRequest, "": http.StatusConflict} {
		of := l
		if query == "" {
			of = newLog(0)
		}
		w := httptest.NewRecorder()
		of.ServeFollow(w, httptest.NewRequest(http.MethodGet, wire.Path+query, nil))
		if w.Code != code {
			t.Errorf("%q: %d, want %d", query, w.Code, code)
		}
	}
}

// The agent starts again when other settings are in force than it was opened with, but only when
// its start will find them: else it would start again and again.
func TestRestart(t *testing.T) {
	t.Parallel()
	l := newLog(0)
	asked := 0
	l.Settings = func() (now, atStart time.Duration, known bool) {
		asked++
		switch asked {
		case 1:
			return time.Minute, time.Minute, false // nothing is known yet
		case 2:
			return time.Minute, 0, true // not written down yet
		}
		return time.Minute, time.Minute, true
	}
	if err := l.Run(t.Context()); !errors.Is(err, l.Restart) || asked != 3 {
		t.Errorf("%v after %d looks", err, asked)
	}
}

// What else serves records works while they are kept, and not otherwise.
func TestServes(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{0, time.Minute} {
		l, served := newLog(interval), false
		l.Settings = func() (now, atStart time.Duration, known bool) { return interval, interval, true }
		ctx, cancel := context.WithCancel(t.Context())
		l.Serve = func(ctx context.Context) error {
			served = true
			cancel()
			<-ctx.Done()
			return nil
		}
		if interval == 0 {
			cancel()
		}
		if err := l.Run(ctx); err != nil || served != (interval > 0) {
			t.Errorf("interval %s: served %t, %v", interval, served, err)
		}
		cancel()
	}
}
