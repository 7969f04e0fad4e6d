// SPDX-License-Identifier: Apache-2.0

// Package ask reads records of flows, from the cluster's store of them or from the agents of nodes
// (Reader), and writes the answers: one list by time, sums by ends and port, or all as lines of
// JSON. What records say is the nodes' word, so nothing of it controls a terminal.
package ask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/terminal"
)

// Options are what a user says of records.
type Options struct {
	Shown
	Node  string        // its agent alone; empty = the store, or all agents
	Since time.Duration // before now; 0 = all that is kept
	Until time.Duration // before now
	Last  int           // the latest so many records; 0 = all
	Top   int           // sums of so many pairs; 0 = the records
	Of    flows.Filter  // but its times
}

// Question is what the options ask for, or says what is wrong with them.
func (o *Options) Question() (flows.Question, error) {
	q := flows.Question{Filter: o.Of, Top: o.Top, Limit: o.Last}
	if o.Output != "" && o.Output != "json" && o.Output != "wide" {
		return q, fmt.Errorf("output %q: json, wide, or none for text", o.Output)
	}
	if o.Since < 0 || o.Until < 0 || o.Top < 0 || o.Last < 0 {
		return q, errors.New("--since, --until, --top and --last are not negative")
	}
	if o.Since > 0 && o.Since <= o.Until {
		return q, fmt.Errorf("--since %s is not before --until %s", o.Since, o.Until)
	}
	if now := time.Now(); o.Since > 0 || o.Until > 0 {
		if o.Since > 0 {
			q.Since = now.Add(-o.Since)
		}
		if o.Until > 0 {
			q.Until = now.Add(-o.Until)
		}
	}
	return q, q.Check()
}

// Shown writes what nodes answer.
type Shown struct {
	Out, Errs io.Writer
	Output    string // json, wide; empty = text
}

// Run asks, and writes the records in one list by time, or sums. Who answered and what the answer
// does not have is written to Errs.
func (s *Shown) Run(ctx context.Context, r Reader, q flows.Question) error {
	var all []*flows.Flow
	answer, err := r.Read(ctx, q, func(f *flows.Flow) error {
		all = append(all, f)
		return nil
	})
	if err == nil {
		slices.SortStableFunc(all, func(a, b *flows.Flow) int { return a.End.Compare(b.End) })
		if q.Limit > 0 && q.Top == 0 && len(all) > q.Limit {
			all, answer.More = all[len(all)-q.Limit:], true
		}
		switch {
		case q.Top == 0:
			err = s.showRecords(all)
		case answer.Sums != nil:
			err = s.showTop(answer.Sums)
		default:
			err = s.showTop(topOf(all, q.Top, q.Denied))
		}
	}
	if answer != nil {
		s.explain(answer, q, len(all))
	}
	return err
}

// explain writes to Errs who answered and what is missing.
func (s *Shown) explain(a *Answer, q flows.Question, records int) {
	say := func(format string, args ...any) {
		fmt.Fprintln(s.Errs, "weir: "+terminal.OneLine(fmt.Sprintf(format, args...)))
	}
	from := "asked: " + a.From
	if !a.Oldest.IsZero() {
		from += ", which has records from " + a.Oldest.Local().Format(time.DateTime) + " on"
	}
	say("%s", from)
	if a.More && q.Top == 0 {
		say("the latest %d records, of more (--last)", records)
	}
	for _, line := range slices.Concat(a.Missing, a.Notes) {
		say("%s", line)
	}
}

// Export asks, and writes each record as one line of JSON as it comes. What nothing of the answer
// has is written to errs. It returns how many records there were.
func Export(ctx context.Context, r Reader, q flows.Question, out, errs io.Writer) (n int, err error) {
	q.Oldest = true
	answer, err := r.Read(ctx, q, func(f *flows.Flow) error {
		line, err := terminal.JSON(f, "")
		if err != nil {
			return err
		}
		n++
		_, err = io.WriteString(out, line)
		return err
	})
	if answer != nil {
		(&Shown{Errs: errs}).explain(answer, q, n)
	}
	return n, err
}

// showRecords writes records. What they say is the node's word: nothing of it gets to the terminal
// as it came.
func (s *Shown) showRecords(all []*flows.Flow) error {
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
			if f.Handshake > 0 {
				text += fmt.Sprintf("; handshake %v", time.Duration(f.Handshake)*time.Microsecond)
			}
			if again := f.Retransmitted; again != nil {
				text += fmt.Sprintf("; retransmitted %d and %d", again.Sent, again.Received)
			}
		}
		if _, err := fmt.Fprintln(s.Out, text); err != nil {
			return err
		}
	}
	return nil
}

// topOf sums by pairs of pods. A connection between two nodes has records of both: what the node
// says counts that has seen most of the pair.
func topOf(all []*flows.Flow, n int, denied bool) []flows.Sum {
	byNode := map[flows.Sum]map[string]flows.Sum{} // by what is summed, without numbers
	for _, f := range all {
		p := flows.Sum{From: f.Source.String(), To: f.Destination.String(), Protocol: f.Protocol, Port: f.Destination.Port, Verdict: f.Verdict}
		if f.Rule != nil && f.Verdict != flows.Allowed {
			p.Rule = f.Rule.String()
		}
		if byNode[p] == nil {
			byNode[p] = map[string]flows.Sum{}
		}
		s := byNode[p][f.Node]
		packets, bytes := s.Packets, s.Bytes
		s = p
		s.Packets = packets + f.Sent.Packets + f.Received.Packets
		s.Bytes = bytes + f.Sent.Bytes + f.Received.Bytes
		byNode[p][f.Node] = s
	}
	var out []flows.Sum
	for _, nodes := range byNode {
		out = append(out, flows.Largest(slices.Collect(maps.Values(nodes)), 1, denied)...)
	}
	return flows.Largest(out, n, denied)
}

func (s *Shown) showTop(top []flows.Sum) error {
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
