// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	flowwire "github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/flows/wire/wiretest"
	"github.com/weir-net/weir/internal/flowstore"
)

// serving has a hundred records, one a second, the last of which ended a second before now.
func serving(t *testing.T) (server *Server, store *ask.Store, now time.Time) {
	t.Helper()
	now = time.Now()
	s, err := flowstore.Open(flowstore.Options{Dir: filepath.Join(t.TempDir(), "store"), Age: time.Hour, Bytes: 1 << 30, Records: 1000, Every: time.Hour, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	records := make([]*flows.Flow, 100)
	for i := range records {
		verdict := flows.Allowed
		if i%10 == 0 {
			verdict = flows.Denied
		}
		records[i] = &flows.Flow{End: now.Add(time.Duration(i-100) * time.Second), Node: "n1", Verdict: verdict, Protocol: "tcp", Sent: flows.Counters{Packets: 1, Bytes: uint64(i)},
			Source: flows.Peer{Namespace: "shop", Pod: "web-1", Workload: "Deployment web"}, Destination: flows.Peer{Namespace: "db", Pod: "pg-0", Workload: "StatefulSet pg", Port: 5432}}
	}
	take := func(node, boot string, next uint64, records ...*flows.Flow) {
		if _, err := s.Take(&flowstore.Batch{Node: node, At: flowwire.Position{Boot: boot, Next: next}, Records: wiretest.Rows(t, node, records...)}); err != nil {
			t.Fatal(err)
		}
	}
	take("n1", "a", 0)
	take("n1", "a", 4, records[:60]...)
	s.Flush()
	take("n2", "b", 0, records[60:]...)
	server = &Server{Store: s, Nodes: func() []string { return []string{"n1"} }, Age: time.Hour, Log: slog.New(slog.DiscardHandler)}
	server.Exports = func(since time.Time) map[string]map[string]uint64 {
		if since.After(now) {
			return nil
		}
		return map[string]map[string]uint64{"otlp": {"queue": 2}}
	}
	h := httptest.NewServer(server)
	t.Cleanup(h.Close)
	return server, &ask.Store{Ask: func(ctx context.Context, q wire.Question, out io.Writer) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL+q.Path, nil)
		if err != nil {
			return err
		}
		resp, err := h.Client().Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(out, resp.Body)
		return err
	}}, now
}

// What users ask is answered: records of a filter, the latest of them, sums, and how the store is.
func TestAnswers(t *testing.T) {
	t.Parallel()
	_, store, now := serving(t)
	for _, c := range []struct {
		question flows.Question
		records  int
		more     bool
		sums     int
	}{
		{flows.Question{}, 100, false, 0},
		{flows.Question{Filter: flows.Filter{Denied: true}}, 10, false, 0},
		{flows.Question{Filter: flows.Filter{Until: now.Add(-70 * time.Second)}}, 31, false, 0},
		{flows.Question{Limit: 7}, 7, true, 0},
		{flows.Question{Limit: 100}, 100, false, 0},
		{flows.Question{Top: 5}, 0, false, 2},
		{flows.Question{Status: true}, 0, false, 0},
	} {
		var got []*flows.Flow
		a, err := store.Read(t.Context(), c.question, func(f *flows.Flow) error { got = append(got, f); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != c.records || a.More != c.more || len(a.Sums) != c.sums || a.Store.Records != 100 || a.Store.Nodes != 1 || a.Store.Counted["old"] != 4 {
			t.Errorf("%+v: %d records, %+v", c.question, len(got), a)
		}
		if len(a.Missing) != 2 || !strings.Contains(a.Missing[0], "4 (old)") || !strings.Contains(a.Missing[1], "n2") {
			t.Errorf("missing are %q", a.Missing)
		}
		if c.question.Limit == 7 && now.Sub(got[0].End) > 2*time.Second {
			t.Errorf("the latest is of %s", got[0].End)
		}
	}
	st, err := store.Status(t.Context(), now.Add(-time.Hour))
	if err != nil || len(st.Old) != 1 || st.Old[0].Records != 4 || st.Exports["otlp"]["queue"] != 2 {
		t.Errorf("%v: %+v", err, st)
	}
	if st, err = store.Status(t.Context(), now.Add(time.Hour)); err != nil || len(st.Old)+len(st.Exports) != 0 {
		t.Errorf("of another time: %v: %+v", err, st)
	}
	a, err := store.Read(t.Context(), flows.Question{Top: 1}, func(*flows.Flow) error { return nil })
	if want := (flows.Sum{From: "shop/web", To: "db/pg", Protocol: "tcp", Port: 5432, Verdict: flows.Allowed, Packets: 90, Bytes: 4500}); err != nil || len(a.Sums) != 1 || a.Sums[0] != want {
		t.Errorf("%v: %+v", err, a.Sums)
	}
	oldest := time.Time{}
	if _, err := store.Read(t.Context(), flows.Question{Oldest: true}, func(f *flows.Flow) error {
		if f.End.Before(oldest) {
			t.Errorf("%s comes after %s", f.End, oldest)
		}
		oldest = f.End
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Questions that mean nothing are refused, and so are those beyond what is answered at a time.
func TestRefusals(t *testing.T) {
	t.Parallel()
	server, _, _ := serving(t)
	code := func(query string) int {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, flows.Path+query, nil))
		return w.Code
	}
	for _, query := range []string{"?since=soon", "?limit=-1", "?top=many", "?oldest=perhaps", "?to=a/b/c"} {
		if got := code(query); got != http.StatusBadRequest {
			t.Errorf("%s: %d", query, got)
		}
	}
	for range atOnce {
		server.slots <- struct{}{}
	}
	if got := code("?status=true"); got != http.StatusTooManyRequests {
		t.Errorf("beyond: %d", got)
	}
	<-server.slots
	if got := code("?status=true"); got != http.StatusOK {
		t.Errorf("when one has ended: %d", got)
	}
}

// noted says that something was written.
type noted struct {
	*httptest.ResponseRecorder
	wrote chan struct{}
}

func (n *noted) Write(p []byte) (int, error) {
	select {
	case n.wrote <- struct{}{}:
	default:
	}
	return n.ResponseRecorder.Write(p)
}

// While nothing is found, an empty line says that the answer goes on.
func TestBeats(t *testing.T) {
	t.Parallel()
	w := &noted{httptest.NewRecorder(), make(chan struct{}, 1)}
	l := newLines(w)
	l.beat.Reset(time.Millisecond)
	<-w.wrote
	l.end()
	text := w.Body.String()
	if text == "" || strings.Trim(text, "\n") != "" {
		t.Errorf("%q", text)
	}
	var line flows.Line
	if err := json.NewDecoder(strings.NewReader(text + `{"sum":{}}`)).Decode(&line); err != nil || line.Sum == nil {
		t.Errorf("a reader finds %v", err)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	server, _, _ := serving(t)
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(server)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{"weir_flowstore_agents": 1, "weir_flowstore_records_total": 100, "weir_flowstore_records": 100, "weir_flowstore_records_lost_total old": 4} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if got["weir_flowstore_bytes"] <= 0 || time.Since(time.UnixMilli(int64(1000*got["weir_flowstore_oldest_timestamp_seconds"]))) < 99*time.Second {
		t.Errorf("%v", got)
	}
}
