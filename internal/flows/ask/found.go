// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/flows"
)

// Found are the latest records of a time, with who answered and what is not among them.
type Found struct {
	Flows []*flows.Flow // by the time of their end
	Left  int           // older ones that are not among them, as far as they were counted
	More  bool          // there are older ones that nobody counted
	From  string        // who answered, for people
	// Oldest is the End of the oldest record that who answered keeps; zero = not known, or none.
	Oldest  time.Time
	Missing []string // what is not among them, one line each; of agents Nodes say more
	Nodes   []Node   // where agents answered: in the order in which they were named
}

// Node is what one node answered.
type Node struct {
	Name   string
	Status *flows.Status // nil where Err says why there is none
	Err    error
}

// Latest asks for the records that a filter wants, and keeps the latest most of them; 0 keeps all.
// The error is agentapi.ErrNoRight, or that no node answered.
func (a *Agents) Latest(ctx context.Context, f flows.Filter, most int) (*Found, error) {
	found := &Found{Nodes: make([]Node, len(a.Nodes))}
	status, errs, err := a.each(ctx, f, func(r *flows.Flow) error {
		found.Flows = append(found.Flows, r)
		if most > 0 && len(found.Flows) > 2*most { // so that memory is bounded, however many nodes there are
			found.keep(most)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	failed := 0
	for i, err := range errs {
		if errors.Is(err, agentapi.ErrNoRight) {
			return nil, err
		}
		if err != nil {
			failed++
		}
		found.Nodes[i] = Node{Name: a.Nodes[i], Status: status[i], Err: err}
	}
	found.keep(most)
	found.From = fmt.Sprintf("the agents of %d nodes", len(a.Nodes))
	if failed == len(a.Nodes) {
		return found, ErrNoAnswer
	}
	return found, nil
}

// Latest asks the store for the latest most records that a filter wants, and the agents where there
// is none or it does not answer. The error is as of Agents.Latest, or that of a store that refuses,
// or failed in the middle of its answer.
func (p *Preferred) Latest(ctx context.Context, f flows.Filter, most int) (*Found, error) {
	found := &Found{}
	answer, final, err := p.Store.Try(ctx, flows.Question{Filter: f, Limit: most}, func(r *flows.Flow) error {
		found.Flows = append(found.Flows, r)
		return nil
	})
	switch {
	case final && err != nil, errors.Is(err, agentapi.ErrRefused): // a store that has much to do is one
		return nil, err
	case final:
		found.From, found.Oldest, found.Missing, found.More = answer.From, answer.Oldest, slices.Concat(answer.Missing, answer.Notes), answer.More
		found.keep(most)
		return found, nil
	}
	found, failed := p.Agents.Latest(ctx, f, most)
	switch {
	case found == nil:
	case errors.Is(err, agentapi.ErrNoStore):
		found.From += ", as no store of flow records answers"
	default:
		found.Missing = append(found.Missing, err.Error())
	}
	return found, failed
}

// ErrNoAnswer: no node answered; Found.Nodes, or Answer.Missing, say why.
var ErrNoAnswer = errors.New("no node answered")

// keep sorts the records, and leaves out the oldest beyond most.
func (f *Found) keep(most int) {
	slices.SortStableFunc(f.Flows, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	if beyond := len(f.Flows) - most; most > 0 && beyond > 0 {
		f.Flows, f.Left = slices.Clone(f.Flows[beyond:]), f.Left+beyond
	}
}
