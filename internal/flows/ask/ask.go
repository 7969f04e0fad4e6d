// SPDX-License-Identifier: Apache-2.0

// Package ask asks nodes for their records of flows, and writes the answers: one list by time, or
// sums by ends and port. What records say is the nodes' word, so nothing of it controls a terminal.
package ask

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/terminal"
)

// Options are what a user says of records.
type Options struct {
	Shown
	Node  string        // empty = all
	Since time.Duration // before now; 0 = all that is kept
	Of    flows.Filter  // but its Since
}

// Filter is what the options ask for, or says what is wrong with them.
func (o *Options) Filter() (flows.Filter, error) {
	f := o.Of
	if o.Output != "" && o.Output != "json" && o.Output != "wide" {
		return f, fmt.Errorf("output %q: json, wide, or none for text", o.Output)
	}
	if o.Since < 0 || o.Top < 0 {
		return f, errors.New("--since and --top are not negative")
	}
	if o.Since > 0 {
		f.Since = time.Now().Add(-o.Since)
	}
	return f, f.Check()
}

// Shown writes what nodes answer.
type Shown struct {
	Out, Errs io.Writer
	Output    string // json, wide; empty = text
	Top       int    // sums of so many pairs; 0 = the records
	// Ask asks a node's agent.
	Ask func(ctx context.Context, node string, q wire.Question, out io.Writer) error
}

// Found is what nodes answered.
type Found struct {
	Flows      []*flows.Flow    // in one list by time
	Status     []*flows.Status  // of the nodes that answered
	Unanswered map[string]error // nodes without an answer, and why
}

// Nodes asks nodes for their records. The error is agentapi.ErrNoRight, or that no node answered.
func Nodes(ctx context.Context, ask func(ctx context.Context, node string, q wire.Question, out io.Writer) error, nodes []string, f flows.Filter) (*Found, error) {
	q := wire.Question{Path: flows.Path + "?" + f.Query().Encode()}
	records := make([][]*flows.Flow, len(nodes))
	status := make([]*flows.Status, len(nodes))
	errs := agentapi.Each(nodes, func(i int, node string) (err error) {
		var answer bytes.Buffer
		if err := ask(ctx, node, q, &answer); err != nil {
			return err
		}
		records[i], status[i], err = readFlows(&answer)
		return err
	})
	found := &Found{Flows: slices.Concat(records...), Unanswered: map[string]error{}}
	for i, err := range errs {
		switch {
		case errors.Is(err, agentapi.ErrNoRight):
			return nil, err
		case err != nil:
			found.Unanswered[nodes[i]] = err
		default:
			found.Status = append(found.Status, status[i])
		}
	}
	slices.SortStableFunc(found.Flows, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
	if len(found.Status) == 0 {
		return found, errors.New("no node answered")
	}
	return found, nil
}

// Run asks the nodes, and writes their records in one list by time. A node without an answer, and
// what nodes have not kept, is written to Errs; the error is agentapi.ErrNoRight, or that no node
// answered.
func (s *Shown) Run(ctx context.Context, nodes []string, f flows.Filter) error {
	found, err := Nodes(ctx, s.Ask, nodes, f)
	if found != nil {
		for _, node := range slices.Sorted(maps.Keys(found.Unanswered)) {
			fmt.Fprintf(s.Errs, "weir: node %s has no answer: %s\n", node, terminal.OneLine(found.Unanswered[node].Error()))
		}
	}
	if err != nil {
		return err
	}
	if err := s.show(found.Flows, f.Denied); err != nil {
		return err
	}
	for _, st := range found.Status {
		var lost []string
		for _, why := range slices.Sorted(maps.Keys(st.Lost)) {
			if n := st.Lost[why]; n > 0 {
				lost = append(lost, fmt.Sprintf("%d (%s)", n, why))
			}
		}
		if len(lost) > 0 {
			fmt.Fprintf(s.Errs, "weir: node %s\n", terminal.OneLine(fmt.Sprintf("%s: records that it does not keep: %s", st.Node, strings.Join(lost, ", "))))
		}
	}
	return nil
}

// readFlows reads an agent's answer.
func readFlows(r io.Reader) (out []*flows.Flow, status *flows.Status, err error) {
	for d := json.NewDecoder(r); ; {
		var l flows.Line
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF) && status != nil:
			return out, status, nil
		case errors.Is(err, io.EOF):
			return nil, nil, errors.New("the answer ends early")
		case err != nil:
			return nil, nil, fmt.Errorf("an answer that is none: %w", err)
		}
		if l.Flow != nil {
			out = append(out, l.Flow)
		}
		if l.Status != nil {
			status = l.Status
		}
	}
}

// show writes records. What they say is the node's word: nothing of it gets to the terminal as it
// came.
func (s *Shown) show(all []*flows.Flow, denied bool) error {
	if s.Top > 0 {
		return s.showTop(all, denied)
	}
	for _, f := range all {
		text := terminal.OneLine(f.String())
		switch s.Output {
		case "json":
			line, err := terminal.JSON(f, "")
			if err != nil {
				return err
			}
			text = strings.TrimSuffix(line, "\n")
		case "wide":
			text = terminal.OneLine(fmt.Sprintf("%s; sent %d packets, %d bytes; received %d packets, %d bytes; path %s/%s; %s", f, f.Sent.Packets, f.Sent.Bytes,
				f.Received.Packets, f.Received.Bytes, cmp.Or(f.Path, "-"), cmp.Or(f.Return, "-"), cmp.Or(f.Ended, "open")))
		}
		if _, err := fmt.Fprintln(s.Out, text); err != nil {
			return err
		}
	}
	return nil
}

// pair is what --top sums by.
type pair struct {
	From, To, Protocol string
	Port               uint16
	Verdict, Rule      string
}

type sum struct {
	pair
	Packets, Bytes uint64
}

// topOf sums by pairs. A connection between two nodes has records of both: what the node says
// counts that has seen most of the pair.
func topOf(all []*flows.Flow, n int, denied bool) []sum {
	byNode := map[pair]map[string]sum{}
	for _, f := range all {
		p := pair{From: f.Source.String(), To: f.Destination.String(), Protocol: f.Protocol, Port: f.Destination.Port, Verdict: f.Verdict}
		if f.Rule != nil && f.Verdict != flows.Allowed {
			p.Rule = f.Rule.String()
		}
		if byNode[p] == nil {
			byNode[p] = map[string]sum{}
		}
		s := byNode[p][f.Node]
		s.pair = p
		s.Packets += f.Sent.Packets + f.Received.Packets
		s.Bytes += f.Sent.Bytes + f.Received.Bytes
		byNode[p][f.Node] = s
	}
	most := func(a, b sum) int {
		if denied {
			return cmp.Or(-cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.From+a.To, b.From+b.To))
		}
		return cmp.Or(-cmp.Compare(a.Bytes, b.Bytes), -cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.From+a.To, b.From+b.To))
	}
	var out []sum
	for _, nodes := range byNode {
		out = append(out, slices.MinFunc(slices.Collect(maps.Values(nodes)), most))
	}
	slices.SortFunc(out, most)
	return out[:min(n, len(out))]
}

func (s *Shown) showTop(all []*flows.Flow, denied bool) error {
	top := topOf(all, s.Top, denied)
	if s.Output == "json" {
		for _, t := range top {
			line, err := terminal.JSON(t, "")
			if err != nil {
				return err
			}
			if _, err := io.WriteString(s.Out, line); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(s.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "FROM\tTO\tPORT\tPACKETS\tBYTES\tVERDICT")
	for _, t := range top {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", terminal.OneLine(t.From), terminal.OneLine(t.To), terminal.OneLine(fmt.Sprintf("%s:%d", t.Protocol, t.Port)), t.Packets, t.Bytes,
			terminal.OneLine(strings.TrimSpace(t.Verdict+" "+t.Rule)))
	}
	return w.Flush()
}
