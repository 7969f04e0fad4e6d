// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
)

// Ask asks a node's agent.
type Ask func(ctx context.Context, node string, q wire.Question, out io.Writer) error

// Found are the records of nodes.
type Found struct {
	Flows []*flows.Flow // by the time of their end
	Left  int           // older ones that are not among them
	Nodes []Node        // in the order in which they were named
}

// Node is what one node answered.
type Node struct {
	Name   string
	Status *flows.Status // nil where Err says why there is none
	Err    error
}

// Nodes asks the nodes for the records that a filter wants, and keeps the latest most of them; 0
// keeps all. The error is agentapi.ErrNoRight, or that no node answered.
func Nodes(ctx context.Context, ask Ask, nodes []string, f flows.Filter, most int) (*Found, error) {
	q := wire.Question{Path: flows.Path + "?" + f.Query().Encode()}
	found := &Found{Nodes: make([]Node, len(nodes))}
	var mu sync.Mutex
	errs := agentapi.Each(nodes, func(i int, node string) error {
		var answer bytes.Buffer
		if err := ask(ctx, node, q, &answer); err != nil {
			return err
		}
		records, status, err := readFlows(&answer)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		found.Nodes[i].Status = status
		found.Flows = append(found.Flows, records...)
		if most > 0 && len(found.Flows) > 2*most { // so that memory is bounded, however many nodes there are
			found.keep(most)
		}
		return nil
	})
	failed := 0
	for i, err := range errs {
		if errors.Is(err, agentapi.ErrNoRight) {
			return nil, err
		}
		if err != nil {
			failed++
		}
		found.Nodes[i].Name, found.Nodes[i].Err = nodes[i], err
	}
	found.keep(most)
	if failed == len(nodes) {
		return found, ErrNoAnswer
	}
	return found, nil
}

// ErrNoAnswer: no node answered; Found.Nodes say why.
var ErrNoAnswer = errors.New("no node answered")

// keep sorts the records, and leaves out the oldest beyond most.
func (f *Found) keep(most int) {
	slices.SortStableFunc(f.Flows, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	if beyond := len(f.Flows) - most; most > 0 && beyond > 0 {
		f.Flows, f.Left = slices.Clone(f.Flows[beyond:]), f.Left+beyond
	}
}
