// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
)

// MostRecords is how many records one answer has at most: what the page's table is made for.
const MostRecords = 100_000

// record is a line of the answer about flows: a record, or last the summary.
type record struct {
	// ID is the same whenever the same record is asked for.
	ID string `json:"id,omitempty"`
	*flows.Flow
	Summary *summary `json:"summary,omitempty"`
}

// summary says what the answer has.
type summary struct {
	Now     time.Time     `json:"now"`            // by the server's clock
	From    string        `json:"from,omitempty"` // who answered: the store, or agents
	Oldest  *time.Time    `json:"oldest,omitempty"`
	Left    int           `json:"left"`           // older records that the answer leaves out
	More    bool          `json:"more,omitempty"` // there are older ones that nobody counted
	Missing []string      `json:"missing,omitempty"`
	Nodes   []nodeRecords `json:"nodes"` // where agents answered
}

type nodeRecords struct {
	Node   string        `json:"node"`
	Error  string        `json:"error,omitempty"`
	Status *flows.Status `json:"status,omitempty"`
}

// flows answers with records, one JSON object a line, in the order of their end.
func (s *server) flows(w http.ResponseWriter, r *http.Request, of Source) {
	f, err := filterOf(r)
	if err != nil {
		s.refuse(w, r, errors.Join(ErrQuestion, err))
		return
	}
	now := time.Now()
	found, err := of.Records(r.Context(), f, MostRecords)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := bufio.NewWriterSize(w, 64<<10)
	for _, flow := range found.Flows {
		line, err := lineOf(flow)
		if err == nil {
			_, err = out.Write(line)
		}
		if err != nil {
			s.Log.Debug("an answer of the page ended early", "path", r.URL.Path, "error", err)
			return
		}
	}
	text, err := json.Marshal(record{Summary: summaryOf(found, now)})
	if err == nil {
		_, err = out.Write(append(Seen(text), '\n'))
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		s.Log.Debug("an answer of the page ended early", "path", r.URL.Path, "error", err)
	}
}

// filterOf reads the filter of a request: as flows.ParseQuery does, or with a time before its end,
// within=15m.
func filterOf(r *http.Request) (flows.Filter, error) {
	q := r.URL.Query()
	f, err := flows.ParseQuery(q)
	if v := q.Get("within"); err == nil && v != "" {
		var d time.Duration
		if d, err = time.ParseDuration(v); err != nil || d <= 0 {
			return f, fmt.Errorf("within %q: a time such as 15m", v)
		}
		end := f.Until
		if end.IsZero() {
			end = time.Now()
		}
		f.Since = end.Add(-d)
	}
	return f, err
}

// lineOf is a record as a line. Labels are left out: the page shows none, and they are most of it.
func lineOf(of *flows.Flow) ([]byte, error) {
	f := *of
	f.Source.Labels, f.Destination.Labels = nil, nil
	text, err := json.Marshal(record{Flow: &f})
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	line := append([]byte(`{"id":"`), strconv.FormatUint(h.Sum64(), 36)...)
	line = append(line, `",`...)
	return append(append(line, Seen(text[1:])...), '\n'), nil
}

func summaryOf(found *ask.Found, now time.Time) *summary {
	s := &summary{Now: now.UTC(), From: found.From, Left: found.Left, More: found.More, Missing: found.Missing, Nodes: []nodeRecords{}}
	if !found.Oldest.IsZero() {
		s.Oldest = &found.Oldest
	}
	for _, n := range found.Nodes {
		of := nodeRecords{Node: n.Name, Status: n.Status}
		if n.Err != nil {
			of.Error = n.Err.Error()
		}
		s.Nodes = append(s.Nodes, of)
	}
	return s
}
