// SPDX-License-Identifier: Apache-2.0

// Package answer answers questions about the records of a store (flows.Question), as lines of JSON
// (flows.Line), and offers its metrics. Who may ask has been decided before: the controller hands
// questions of users on.
package answer

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore"
)

const (
	// atOnce is how many questions are answered at a time: each may have a segment in memory.
	atOnce = 3
	// beatEvery is the time between two lines, of which an empty one says that the answer goes on.
	beatEvery = 10 * time.Second
)

// Server answers flows.Path. It is safe for concurrent use.
type Server struct {
	Store *flowstore.Store
	Nodes func() []string // that are followed now
	Age   time.Duration   // for which records are kept
	// Exports are what other programs did not get, by protocol and why, of those where it was so
	// after a time; nil = records are sent to nobody.
	Exports func(since time.Time) map[string]map[string]uint64
	Log     *slog.Logger

	once  sync.Once
	slots chan struct{}
}

// ServeHTTP implements http.Handler. An answer whose last line has no status ends early.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.once.Do(func() { s.slots = make(chan struct{}, atOnce) })
	q, err := flows.ParseQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		http.Error(w, "the store of flow records is answering as many questions as it can; try again", http.StatusTooManyRequests)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := newLines(w)
	defer out.end()
	if err := s.answer(r, q, out); err != nil {
		s.Log.Warn("an answer about flow records ended early", "err", err)
	}
}

func (s *Server) answer(r *http.Request, q flows.Question, out *lines) error {
	status := s.Status(q.Since, q.Until)
	query := flowstore.Query{Filter: q.Filter, Oldest: q.Oldest}
	switch {
	case q.Status:
	case q.Top > 0:
		top, beyond, err := s.Store.Top(r.Context(), query, q.Top)
		if err != nil {
			return err
		}
		status.NotSummed = beyond
		for i := range top {
			if err := out.write(&flows.Line{Sum: &top[i]}); err != nil {
				return err
			}
		}
	default:
		var failed error
		given := 0
		err := s.Store.Each(r.Context(), query, func(f *flows.Flow) bool {
			if q.Limit > 0 && given == q.Limit {
				status.More = true
				return false
			}
			given++
			failed = out.write(&flows.Line{Flow: f})
			return failed == nil
		})
		if failed != nil {
			return failed
		}
		if err != nil {
			return err
		}
	}
	return out.write(&flows.Line{Store: &status})
}

// Status is how the store is, with what it lost of a time.
func (s *Server) Status(since, until time.Time) flows.StoreStatus {
	st, nodes := s.Store.Status(), s.Nodes()
	out := flows.StoreStatus{Records: st.Records + st.Memory, Bytes: st.Bytes, Oldest: st.Oldest, Nodes: len(nodes), Lost: s.Store.Missing(since, until), Counted: st.Lost}
	every := time.Duration(0)
	out.Coarse, every = s.Store.CoarseUntil(since, until)
	out.CoarseSeconds = every.Seconds()
	out.Old = mostLost(s.Store.Old(since))
	if s.Exports != nil {
		out.Exports = s.Exports(since)
	}
	for _, node := range s.Store.Seen(time.Now().Add(-s.Age)) {
		if _, is := slices.BinarySearch(nodes, node); !is {
			out.Silent = append(out.Silent, node)
		}
	}
	return out
}

// mostLost are the nodes that lost most.
func mostLost(old map[string]uint64) []flows.NodeLost {
	out := make([]flows.NodeLost, 0, len(old))
	for node, n := range old {
		out = append(out, flows.NodeLost{Node: node, Records: n})
	}
	slices.SortFunc(out, func(a, b flows.NodeLost) int {
		return cmp.Or(cmp.Compare(b.Records, a.Records), cmp.Compare(a.Node, b.Node))
	})
	return out[:min(len(out), flows.MostNodes)]
}

// lines writes lines, and an empty one where there was none for a while.
type lines struct {
	mu    sync.Mutex
	to    *bufio.Writer
	json  *json.Encoder
	flush *http.ResponseController
	wrote bool // since the last beat
	beat  *time.Ticker
	done  chan struct{}
}

func newLines(w http.ResponseWriter) *lines {
	l := &lines{to: bufio.NewWriterSize(w, 32<<10), flush: http.NewResponseController(w), beat: time.NewTicker(beatEvery), done: make(chan struct{})}
	l.json = json.NewEncoder(l.to)
	go l.run()
	return l
}

func (l *lines) run() {
	for {
		select {
		case <-l.done:
			return
		case <-l.beat.C:
		}
		l.mu.Lock()
		select {
		case <-l.done: // the handler has returned
		default:
			if !l.wrote {
				_, _ = io.WriteString(l.to, "\n") // who asked may have gone
			}
			_ = l.to.Flush()
			_ = l.flush.Flush()
			l.wrote = false
		}
		l.mu.Unlock()
	}
}

func (l *lines) write(line *flows.Line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrote = true
	return l.json.Encode(line)
}

func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat.Stop()
	close(l.done)
	_ = l.to.Flush() // who asked may have gone
}
