// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
)

// Reader reads records of nodes as they were made: one a connection and interval, with the labels
// that pods had then. Agents, Store and Preferred are such.
type Reader interface {
	// Read hands on the records that a question is about, until give returns an error, which it
	// returns then. Of a connection between two nodes each has records. The order is that of
	// nothing, but for a store's. The error is agentapi.ErrNoRight, ErrNoStore, or that nobody
	// answered; what an answer lacks is in Answer.
	Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) (*Answer, error)
}

// Answer says who answered, and what the answer does not have.
type Answer struct {
	From    string             // for people
	Oldest  time.Time          // End of the oldest record that who answered keeps; zero = not known, or none
	Missing []string           // one line each
	Notes   []string           // what else is to be said of the records
	Sums    []flows.Sum        // where the question is for sums, and who answered makes them
	More    bool               // there are more records than the question's limit
	Store   *flows.StoreStatus // of a store
}

// Ask asks a node's agent: agentapi.Client.Ask.
type Ask func(ctx context.Context, node string, q wire.Question, out io.Writer) error

// Agents reads what nodes' agents keep in memory.
type Agents struct {
	Nodes []string
	Ask   Ask
}

// each asks the nodes, and hands on the records that a filter wants, until give returns an error,
// which is the last result then. A node has a status or an error.
func (a *Agents) each(ctx context.Context, f flows.Filter, give func(*flows.Flow) error) ([]*flows.Status, []error, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	path := wire.Question{Path: flows.Path + "?" + f.Query().Encode()}
	status := make([]*flows.Status, len(a.Nodes))
	var mu sync.Mutex // of give, and of stop
	var stop error
	errs := agentapi.Each(a.Nodes, func(i int, node string) error {
		err := lines(func(out io.Writer) error { return a.Ask(ctx, node, path, out) }, func(l *flows.Line) error {
			if l.Status != nil {
				status[i] = l.Status
			}
			if l.Flow == nil || !f.Wants(l.Flow) { // agents of other versions may not know all of the filter
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if stop == nil {
				if stop = give(l.Flow); stop != nil {
					cancel()
				}
			}
			return stop
		})
		if err == nil && status[i] == nil {
			err = errEarly
		}
		if err != nil {
			status[i] = nil
		}
		return err
	})
	return status, errs, stop
}

// Read is Reader's. It makes no sums, and gives all records whatever the limit is.
func (a *Agents) Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) (*Answer, error) {
	status, errs, err := a.each(ctx, q.Filter, give)
	if err != nil {
		return nil, err
	}
	answer, failed := &Answer{From: fmt.Sprintf("the agents of %d nodes", len(a.Nodes))}, 0
	for i, err := range errs {
		if errors.Is(err, agentapi.ErrNoRight) {
			return nil, err
		}
		if err != nil {
			failed++
			answer.Missing = append(answer.Missing, fmt.Sprintf("node %s has no answer: %v", a.Nodes[i], err))
		}
	}
	if failed == len(a.Nodes) {
		return answer, ErrNoAnswer
	}
	for i, s := range status {
		if errs[i] != nil {
			continue
		}
		if !s.Oldest.IsZero() && (answer.Oldest.IsZero() || s.Oldest.After(answer.Oldest)) {
			answer.Oldest = s.Oldest // before that a node may have had others
		}
		if lost := LostLine(s.Lost); lost != "" {
			answer.Missing = append(answer.Missing, fmt.Sprintf("node %s: records that it does not keep: %s", s.Node, lost))
		}
	}
	return answer, nil
}

// LostLine is counters by why, those that are not 0.
func LostLine(lost map[string]uint64) string {
	var out []string
	for _, why := range slices.Sorted(maps.Keys(lost)) {
		if n := lost[why]; n > 0 {
			out = append(out, fmt.Sprintf("%d (%s)", n, why))
		}
	}
	return strings.Join(out, ", ")
}

var errEarly = errors.New("the answer ends early")

// lines asks, and hands on each line of the answer as it comes, until each returns an error.
func lines(ask func(out io.Writer) error, each func(*flows.Line) error) error {
	r, w := io.Pipe()
	asked := make(chan error, 1)
	go func() {
		err := ask(w)
		w.CloseWithError(err)
		asked <- err
	}()
	for d := json.NewDecoder(r); ; {
		var l flows.Line
		err := d.Decode(&l)
		if err == nil {
			if err = each(&l); err != nil {
				r.CloseWithError(err)
				<-asked //nolint:errcheck // err is why
				return err
			}
			continue
		}
		r.CloseWithError(err)
		switch failed := <-asked; {
		case failed != nil:
			return failed
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errEarly
		}
		return fmt.Errorf("an answer that is none: %w", err)
	}
}

// Store reads what the cluster's store of records has.
type Store struct {
	// Ask asks the store: agentapi.Client.AskStore.
	Ask func(ctx context.Context, q wire.Question, out io.Writer) error
}

// Read is Reader's.
func (s *Store) Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) (*Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer := &Answer{From: "the store of flow records"}
	path := wire.Question{Path: flows.Path + "?" + q.Query().Encode()}
	err := lines(func(out io.Writer) error { return s.Ask(ctx, path, out) }, func(l *flows.Line) error {
		switch {
		case l.Store != nil:
			answer.Store = l.Store
		case l.Sum != nil:
			answer.Sums = append(answer.Sums, *l.Sum)
		case l.Flow != nil && q.Wants(l.Flow):
			return give(l.Flow)
		}
		return nil
	})
	if err == nil && answer.Store == nil {
		err = errEarly
	}
	if err != nil {
		return nil, err
	}
	st := answer.Store
	answer.Oldest, answer.More = st.Oldest, st.More
	if q.Top > 0 && answer.Sums == nil {
		answer.Sums = []flows.Sum{}
	}
	if lost := LostLine(st.Lost); lost != "" {
		answer.Missing = append(answer.Missing, "records of that time that it does not have: "+lost)
	}
	if !st.Coarse.IsZero() {
		answer.Notes = append(answer.Notes, coarseLine(st))
	}
	if len(st.Silent) > 0 {
		answer.Missing = append(answer.Missing, silentLine(st.Silent))
	}
	if st.NotSummed > 0 {
		answer.Missing = append(answer.Missing, fmt.Sprintf("%d records are of more pairs than it tells apart, and in no sum", st.NotSummed))
	}
	return answer, nil
}

// coarseLine says which records are sums.
func coarseLine(st *flows.StoreStatus) string {
	return fmt.Sprintf("records up to %s are coarser: each is the sum of those of its ends, port and decision in %s, without source ports, TCP flags and how connections ended",
		st.Coarse.Local().Format(time.DateTime), time.Duration(st.CoarseSeconds*float64(time.Second)))
}

// silentLine names nodes that a store does not follow.
func silentLine(nodes []string) string {
	const named = 3
	text := fmt.Sprintf("%d nodes whose records it had are not connected: %s", len(nodes), strings.Join(nodes[:min(named, len(nodes))], ", "))
	if len(nodes) > named {
		text += ", …"
	}
	return text
}

// statusWithin is how long a store may take to say how it is.
const statusWithin = 5 * time.Second

// Status asks the store how it is; what it says of losses is about what is since then.
func (s *Store) Status(ctx context.Context, since time.Time) (*flows.StoreStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusWithin)
	defer cancel()
	answer, err := s.Read(ctx, flows.Question{Filter: flows.Filter{Since: since}, Status: true}, func(*flows.Flow) error { return nil })
	if err != nil {
		return nil, err
	}
	return answer.Store, nil
}

// StatusLine says how a store is, for people.
func StatusLine(st *flows.StoreStatus) string {
	text := fmt.Sprintf("%d records", st.Records)
	if !st.Oldest.IsZero() {
		text += " from " + st.Oldest.Local().Format(time.DateTime) + " on"
	}
	text += fmt.Sprintf(", %.1f MiB on its disk, of %d nodes", float64(st.Bytes)/(1<<20), st.Nodes)
	if len(st.Silent) > 0 {
		text += "; " + silentLine(st.Silent)
	}
	return text
}

// Preferred reads from the store, and from the agents where there is none or it does not answer.
type Preferred struct {
	Store  *Store
	Agents *Agents
}

// Read is Reader's. A store that fails when it has given records is an error.
func (p *Preferred) Read(ctx context.Context, q flows.Question, give func(*flows.Flow) error) (*Answer, error) {
	answer, final, err := p.Store.Try(ctx, q, give)
	if final {
		return answer, err
	}
	answer, failed := p.Agents.Read(ctx, q, give)
	switch {
	case answer == nil:
	case errors.Is(err, agentapi.ErrNoStore):
		answer.From += ", as no store of flow records answers"
	default:
		answer.Missing = append([]string{err.Error()}, answer.Missing...)
	}
	return answer, failed
}

// Try reads, and says whether that is final. Where it is not, the store has given nothing, and
// agents may be asked in its place; the error is agentapi.ErrNoStore, or says that it does not
// answer.
func (s *Store) Try(ctx context.Context, q flows.Question, give func(*flows.Flow) error) (answer *Answer, final bool, err error) {
	given := false
	answer, err = s.Read(ctx, q, func(f *flows.Flow) error {
		given = true
		return give(f)
	})
	if err == nil || given || ctx.Err() != nil {
		return answer, true, err
	}
	return nil, false, fmt.Errorf("the store of flow records does not answer: %w", err)
}
