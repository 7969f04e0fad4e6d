// SPDX-License-Identifier: Apache-2.0

package past

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/agentapi/wire"
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

// Agents are the agents of nodes, which keep the latest records of each.
type Agents struct {
	Nodes []string
	Ask   func(ctx context.Context, node string, q wire.Question, out io.Writer) error
}

// Each implements Source. The error may be agentapi.ErrNoRight.
func (a *Agents) Each(ctx context.Context, since time.Time, give func(*flows.Flow) error) (gaps, notes []string, err error) {
	found, err := ask.Nodes(ctx, a.Ask, a.Nodes, flows.Filter{Since: since})
	if err != nil {
		if found != nil {
			for _, node := range slices.Sorted(maps.Keys(found.Unanswered)) {
				return nil, nil, fmt.Errorf("%w: node %s: %w", err, node, found.Unanswered[node])
			}
		}
		return nil, nil, err
	}
	for _, node := range slices.Sorted(maps.Keys(found.Unanswered)) {
		gaps = append(gaps, fmt.Sprintf("node %s has no answer: %v", node, found.Unanswered[node]))
	}
	for _, s := range found.Status {
		if s.Lost["old"] > 0 && s.Oldest.After(since) {
			gaps = append(gaps, fmt.Sprintf("node %s keeps no records of before %s", s.Node, s.Oldest.UTC().Format(time.RFC3339)))
		}
		var lost []string
		for _, why := range slices.Sorted(maps.Keys(s.Lost)) {
			if n := s.Lost[why]; n > 0 && why != "old" {
				lost = append(lost, fmt.Sprintf("%d (%s)", n, why))
			}
		}
		if len(lost) > 0 {
			notes = append(notes, fmt.Sprintf("node %s has lost records since its agent started: %s", s.Node, strings.Join(lost, ", ")))
		}
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
