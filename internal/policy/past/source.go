// SPDX-License-Identifier: Apache-2.0

package past

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
)

// Source is where records come from.
type Source interface {
	// Each hands on the records whose End is later than since, the zero time wants all, until give
	// returns an error. gaps says what of that time is missing, a line each: a node that does not
	// answer, records that are not kept. The notes are what else is to be said of losses.
	Each(ctx context.Context, since time.Time, give func(*flows.Flow) error) (gaps, notes []string, err error)
}

// Nodes are the store of flow records or, where none answers, the agents of nodes, which keep the
// latest records of each.
type Nodes struct {
	Store  *ask.Store // nil = the agents are asked
	Agents ask.Agents
}

// Each implements Source. The error may be agentapi.ErrNoRight. A store that fails when it has
// given records is an error.
func (n *Nodes) Each(ctx context.Context, since time.Time, give func(*flows.Flow) error) (gaps, notes []string, err error) {
	if n.Store == nil {
		return n.ofAgents(ctx, since, give)
	}
	answer, final, err := n.Store.Try(ctx, flows.Question{Filter: flows.Filter{Since: since}, Oldest: true}, give)
	if !final {
		gaps, notes, failed := n.ofAgents(ctx, since, give)
		if failed == nil && !errors.Is(err, agentapi.ErrNoStore) {
			notes = append(notes, err.Error())
		}
		return gaps, notes, failed
	}
	if err != nil {
		return nil, nil, err
	}
	if answer.Oldest.After(since) && !since.IsZero() {
		gaps = append(gaps, fmt.Sprintf("the store keeps no records of before %s", answer.Oldest.UTC().Format(time.RFC3339)))
	}
	return append(gaps, answer.Missing...), answer.Notes, nil
}

func (n *Nodes) ofAgents(ctx context.Context, since time.Time, give func(*flows.Flow) error) (gaps, notes []string, err error) {
	found, err := n.Agents.Latest(ctx, flows.Filter{Since: since}, 0)
	if found == nil {
		return nil, nil, err
	}
	for _, of := range found.Nodes {
		if of.Err != nil && err != nil {
			return nil, nil, fmt.Errorf("%w: node %s: %w", err, of.Name, of.Err)
		}
		if of.Err != nil {
			gaps = append(gaps, fmt.Sprintf("node %s has no answer: %v", of.Name, of.Err))
			continue
		}
		s := of.Status
		if s.Lost["old"] > 0 && s.Oldest.After(since) {
			gaps = append(gaps, fmt.Sprintf("node %s keeps no records of before %s", s.Node, s.Oldest.UTC().Format(time.RFC3339)))
		}
		delete(s.Lost, "old") // a matter of time, which gaps tell
		if lost := ask.LostLine(s.Lost); lost != "" {
			notes = append(notes, fmt.Sprintf("node %s has lost records since its agent started: %s", s.Node, lost))
		}
	}
	if err != nil { // there is no node
		return nil, nil, err
	}
	for _, f := range found.Flows {
		if err := give(f); err != nil {
			return nil, nil, err
		}
	}
	return gaps, notes, nil
}

// File reads what `weir flows -o json` wrote, one record a line.
type File struct {
	Name string
	From io.Reader
}

// Each implements Source. Of what is missing a file says nothing.
func (f *File) Each(_ context.Context, since time.Time, give func(*flows.Flow) error) (gaps, notes []string, err error) {
	d := json.NewDecoder(f.From)
	for n := 1; ; n++ {
		var l flows.Line
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return nil, nil, nil
		case err != nil:
			return nil, nil, fmt.Errorf("%s: record %d: %w", f.Name, n, err)
		}
		if l.Flow == nil || l.Verdict == "" || !l.Source.Address.IsValid() || !l.Destination.Address.IsValid() {
			if l.Status != nil {
				continue // as an agent answers
			}
			return nil, nil, fmt.Errorf("%s: record %d is none of `weir flows -o json`: it has no verdict, or no addresses", f.Name, n)
		}
		if !l.End.After(since) {
			continue
		}
		if err := give(l.Flow); err != nil {
			return nil, nil, err
		}
	}
}
